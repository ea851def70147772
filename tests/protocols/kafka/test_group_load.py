"""A broker that has just started in a cluster waits for the groups that the others hand over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.broker.cluster.kafka.group_copies import AGAIN_MS, LOAD_MS_MAX
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConnectFailed, LibraError, broker_error
from libramq.groups.classic.saved_state import SavedClassicGroup, SavedClassicMember, SavedProtocol
from libramq.groups.cluster_view import BROKERS_TOPIC
from libramq.groups.modern.group import INITIAL_DELAY_MS
from libramq.groups.modern.saved_state import SavedEntry, SavedGroup, SavedMember, member_key
from libramq.protocols.kafka.group_requests import MODERN_HOLD_MS
from libramq.remoting.body.kafka_cluster import PeerGroupsBody, PeerHandoverBody
from libramq.rpc import peer_calls
from libramq.rpc.question import Question
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    WantedGroup,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Request, Topic
from tests.broker.clusters import group_at
from tests.broker.test_peers import ADDRESSES, C_, HERE, A, B, Node, brokers, peer
from tests.protocols.kafka.peers import KafkaEndpoint
from tests.protocols.kafka.test_groups import join_request
from tests.protocols.kafka.test_modern_groups import Member

GROUP, OTHER = HERE, group_at(A, [A], besides=B)


class Starting(Node):
    """Broker a, which serves Kafka's clients; the other brokers do not answer it yet."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.endpoint = KafkaEndpoint(self)
        self.client = self.endpoint.peer()

    def sees(self, *names: str) -> None:
        self.routes(BROKERS_TOPIC, brokers(A, *names))

    def handovers(self, name: str = B) -> list[Question]:
        return self.take(R.PEER_HANDOVER, ADDRESSES[name])

    def answer_handover(self, outcome: bool | LibraError) -> None:
        (question,) = self.handovers()
        self.answer(question, outcome)

    def passed(self, body: PeerGroupsBody) -> None:
        """Receive groups that broker b hands over."""
        reply = self.ask(peer(B), R.PEER_GROUPS, None, peer_calls.pass_on_groups(body).body)
        assert reply.ext["lbKnown"] == "1"

    def code(self, request: Request) -> ErrorCode:
        """Return the error code of a response; the group's successor receives what it is sent."""
        self.client.tell(request)
        self.advance(MODERN_HOLD_MS if isinstance(request, ConsumerGroupHeartbeatRequest) else 0)
        while questions := self.take(R.PEER_GROUPS):
            for question in questions:
                self.answer(question, True)
        (response,) = self.client.answers()
        return ErrorCode(_code(response))


def _code(response: Any) -> int:
    """Return the error code of a response, or of its first group or partition."""
    for parts in ("groups", "topics", "partitions"):
        if found := getattr(response, parts, ()):
            return _code(found[0])
    return response.error_code


def beat(epoch: int = 7) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=epoch)


CLASSIC_BEAT = HeartbeatRequest(group_id=GROUP, generation_id=7, member_id="m")
COMMIT = OffsetCommitRequest(
    group_id=GROUP,
    generation_id_or_member_epoch=7,
    member_id="m",
    topics=(Topic(name="T", partitions=(CommittedPartition(partition_index=0, committed_offset=0),)),),
)
FETCH = OffsetFetchRequest(groups=(WantedGroup(group_id=GROUP, topics=(Topic(name="T", partitions=(0,)),)),))
MODERN = PeerGroupsBody(
    broker_name=B,
    sequence=1,
    gone=[GROUP],
    modern={
        GROUP: SavedEntry(group=SavedGroup(epoch=7)),
        member_key(GROUP, "m"): SavedEntry(member=SavedMember(epoch=7, topics=["T"])),
    },
)
CLASSIC = PeerGroupsBody(
    broker_name=B,
    sequence=1,
    classic={
        GROUP: SavedClassicGroup(
            generation=7,
            members={
                "m": SavedClassicMember(
                    session_ms=10_000,
                    rebalance_ms=60_000,
                    protocols=[SavedProtocol(name="range", metadata=b"")],
                    assignment=b"",
                )
            },
            protocol_type="consumer",
            protocol_name="range",
            leader="m",
        )
    },
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Starting]:
    node = Starting(tmp_path)
    yield node
    node.close()


@pytest.mark.parametrize(("request_of", "body"), [(beat, MODERN), (lambda: CLASSIC_BEAT, CLASSIC)])
def test_a_members_heartbeat_before_its_group_is_handed_over_costs_it_nothing(
    node: Starting, request_of: Callable[[], Request], body: PeerGroupsBody
):
    """The answer was UNKNOWN_MEMBER_ID: the member rejoined, and the group handed over later was dropped."""
    node.sees(B)
    assert node.code(request_of()) in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE)
    node.answer_handover(False)
    node.passed(body)
    assert node.code(request_of()) is ErrorCode.NONE, "the group is here, regardless of later hand-overs"
    groups = node.endpoint.translator
    (found,) = [
        each
        for each in (groups.modern_groups.groups.get(GROUP), groups.classic_groups.groups.get(GROUP))
        if each
    ]
    assert list(found.members) == ["m"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (beat(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (join_request(GROUP, "m"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (FETCH, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (DescribeGroupsRequest(groups=(GROUP,)), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (
            LeaveGroupRequest(group_id=GROUP, members=(LeavingMember(member_id="m"),)),
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ),
        (CLASSIC_BEAT, ErrorCode.NONE),
        (SyncGroupRequest(group_id=GROUP, generation_id=7, member_id="m"), ErrorCode.REBALANCE_IN_PROGRESS),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("is_known", [False, True])
def test_requests_are_answered_as_by_kafkas_coordinator_while_it_loads(
    node: Starting, request_: Request, code: ErrorCode, is_known: bool
):
    if is_known:
        node.sees(B)
    assert node.code(request_) is code


def test_members_are_unknown_once_no_other_broker_has_groups(node: Starting):
    node.sees(B, C_)
    node.answer_handover(True)
    assert node.code(beat()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (question,) = node.handovers(C_)
    node.answer(question, False)
    node.advance(AGAIN_MS)
    assert not node.handovers(), "that broker has none"
    (question,) = node.handovers(C_)
    node.answer(question, True)
    assert node.code(beat()) is ErrorCode.UNKNOWN_MEMBER_ID
    node.advance(AGAIN_MS)
    assert not node.take(R.PEER_HANDOVER)


def test_a_broker_that_does_not_answer_is_awaited_for_a_while(node: Starting):
    node.sees(B)
    node.answer_handover(ConnectFailed("it is away"))
    node.advance(LOAD_MS_MAX // 2)
    assert node.handovers(), "it is asked again"
    assert node.code(join_request(GROUP)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.advance(LOAD_MS_MAX // 2)
    assert node.code(beat()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_departed_brokers_and_older_releases_are_not_awaited(node: Starting):
    node.sees(B, C_)
    node.answer_handover(broker_error(C.REQUEST_CODE_NOT_SUPPORTED, "31025 is not supported"))
    node.advance(1_000)
    assert node.code(beat()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    node.advance(1_000)
    node.sees(B)
    assert node.code(beat()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_broker_says_that_it_has_handed_over_once_the_other_one_has_its_groups(node: Starting):
    node.create_topic("T", queues=2)
    node.sees()
    member = Member(node.endpoint, "m", OTHER)
    node.advance(INITIAL_DELAY_MS)
    assert member.heard() is not None
    node.advance(1_000)
    node.sees(B)

    def handed_over() -> str:
        reply = node.ask(peer(B), R.PEER_HANDOVER, None, PeerHandoverBody(broker_name=B))
        return reply.ext["lbHandedOver"]

    (question,) = node.take(R.PEER_GROUPS)
    node.answer(question, ConnectFailed("it has just started"))
    assert handed_over() == "0"
    for _ in range(2):  # The first broker has none.
        (question,) = node.take(R.PEER_GROUPS)
        assert handed_over() == "0"
        node.answer(question, True)
    assert handed_over() == "0", "we are not connected to it: the answer could predate its restart"
    (question,) = node.take(R.PEER_MEMBERS)
    node.answer(question, True)
    assert handed_over() == "1"
