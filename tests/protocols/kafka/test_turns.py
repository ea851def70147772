"""Requests with thousands of elements: the work of one turn, counted in queries to the authorizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.groups.classic.state import INITIAL_DELAY_MS
from libramq.kernel.connection import Principal
from libramq.kernel.effect import Thread
from libramq.kernel.work import PORTION
from libramq.protocols.kafka.api11_classic_groups import MEMBERS_RETURN_MS
from libramq.protocols.kafka.api19_topics import SETTINGS_MAX
from libramq.runtime import performer
from libramq.wire.kafka.api import APIS
from libramq.wire.kafka.apis.fetch import (
    FetchPartition,
    FetchRequest,
)
from libramq.wire.kafka.apis.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    LeaveGroupRequest,
    LeavingMember,
)
from libramq.wire.kafka.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    WantedGroup,
)
from libramq.wire.kafka.apis.produce import (
    ProducePartition,
    ProduceRequest,
)
from libramq.wire.kafka.apis.topics import (
    TOPIC,
    AlterConfigsRequest,
    AlteredResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    WantedSetting,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Request, Topic
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint, batch, record
from tests.protocols.kafka.test_groups import Member
from tests.protocols.kafka.test_modern_groups import Member as ModernMember

COUNT = 15_000
NAMES = tuple(f"n{number}" for number in range(COUNT))

LARGE: dict[str, Request] = {
    "FindCoordinator": FindCoordinatorRequest(coordinator_keys=NAMES),
    "CreateTopics": CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=(), assignments=())
            for name in NAMES[:2_000]
        ),
        validate_only=True,
    ),
    "DeleteTopics": DeleteTopicsRequest(topic_names=NAMES),
    "OffsetCommit": OffsetCommitRequest(
        group_id="G",
        topics=(
            Topic(
                name="T",
                partitions=tuple(
                    CommittedPartition(partition_index=number, committed_offset=1) for number in range(COUNT)
                ),
            ),
        ),
    ),
    "OffsetFetch": OffsetFetchRequest(
        groups=tuple(
            WantedGroup(group_id=name, topics=(Topic(name="T", partitions=(0,)),)) for name in NAMES[:4_000]
        )
    ),
    "DeleteRecords": DeleteRecordsRequest(
        topics=tuple(
            Topic(name=name, partitions=(DeleteRecordsPartition(partition_index=0, offset=0),))
            for name in NAMES[:2_000]
        )
    ),
    "AlterConfigs": AlterConfigsRequest(
        resources=tuple(
            AlteredResource(
                resource_type=TOPIC,
                resource_name=name,
                configs=(WantedSetting(name="cleanup.policy", value="delete"),),
            )
            for name in NAMES[:2_000]
        )
    ),
    "IncrementalAlterConfigs": IncrementalAlterConfigsRequest(
        resources=tuple(
            AlteredResource(
                resource_type=TOPIC,
                resource_name=name,
                configs=(IncrementalConfig(name="cleanup.policy", config_operation=0, value="delete"),),
            )
            for name in NAMES[:2_000]
        )
    ),
    "Metadata": MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=name) for name in NAMES), allow_auto_topic_creation=False
    ),
    "Fetch": FetchRequest(
        topics=tuple(
            Topic(name=name, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),))
            for name in NAMES[:7_000]
        ),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
    ),
    "Produce": ProduceRequest(
        acks=1,
        timeout_ms=1_000,
        topics=tuple(
            Topic(name=name, partitions=(ProducePartition(index=0, records=b""),)) for name in NAMES[:7_000]
        ),
    ),
    "OffsetFetch of one group": OffsetFetchRequest(
        groups=(
            WantedGroup(
                group_id="G",
                topics=tuple(Topic(name=name, partitions=(0,)) for name in NAMES[:7_000]),
            ),
        )
    ),
    "DescribeGroups": DescribeGroupsRequest(groups=NAMES),
    "DeleteGroups": DeleteGroupsRequest(groups_names=NAMES),
}


MEMBERS = tuple(LeavingMember(member_id=name) for name in NAMES)
ALICE = Principal("alice")
#: The queries to the authorizer allowed in a step of any request: one about a group, and two for each
#: element.
ASKED_MAX = 2 * PORTION + 1


class Turns:
    """A broker with a client whose requests are run turn by turn.

    `count` is the number of turns since the last request; `most` is the number of authorizer queries in the
    busiest of them.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(performer, "TURN_US_MAX", 0)  # A turn has one step.
        self.guard = Guard()
        self.talk = Conversation(tmp_path, authorizer=self.guard)
        self.talk.create_topic("T", queues=2)
        self.endpoint = KafkaEndpoint(self.talk)
        self.count = self.most = 0

    def ask(self, request: Request) -> Any:
        """Send a request, and return its response."""
        peer = self.endpoint.peer()
        peer.principal = ALICE
        self.guard.principals.clear()  # The preparation's turns.
        version = max(api.last for api in APIS.values() if api.request is type(request))
        before = len(self.guard.asked)
        peer._entrance.received(peer, [peer.frame(request, version)])
        self.count, self.most = 0, len(self.guard.asked) - before
        while self._step():
            self.count += 1
        (response,) = peer.answers()
        assert self.guard.principals <= {ALICE}
        return response

    def _step(self) -> bool:
        before = len(self.guard.asked)
        ran = self.talk.threads.run_all(Thread.COMPUTE)
        has_run = run_turn(self.talk)
        self.most = max(self.most, len(self.guard.asked) - before)
        return bool(ran) or has_run


def run_turn(talk: Conversation) -> bool:
    """Run the next turn; return whether there was one."""
    turn = talk.performer.turns.timer
    if turn is not None:
        turn.cancel()
        turn.action()  # type: ignore[attr-defined]
    return turn is not None


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    turns = Turns(tmp_path, monkeypatch)
    yield turns
    turns.talk.close()


@pytest.mark.parametrize("name", LARGE)
def test_a_request_with_thousands_of_elements_is_served_in_turns(name: str, turns: Turns):
    """On the clock these took 68 to 290 ms of one turn, while no other client was served."""
    turns.ask(LARGE[name])
    assert turns.count > 10
    assert turns.most <= ASKED_MAX


@pytest.mark.parametrize("is_modern", [False, True])
def test_members_leave_in_turns(turns: Turns, *, is_modern: bool):
    if is_modern:
        ModernMember(turns.endpoint, "present")
    response = turns.ask(LeaveGroupRequest(group_id="G", members=MEMBERS))
    assert turns.count > COUNT // (2 * PORTION)
    assert [each.error_code for each in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * COUNT


def test_topics_are_created_few_in_a_turn(turns: Turns):
    """Each creation is written to a journal."""
    topics = tuple(
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=(), assignments=())
        for name in NAMES[:200]
    )
    response = turns.ask(CreateTopicsRequest(topics=topics))
    assert turns.most <= 1
    assert {each.error_code for each in response.topics} == {0}
    assert set(NAMES[:200]) <= set(turns.talk.broker.topics.names())


def test_a_large_commit_and_fetch_agree(turns: Turns):
    turns.talk.create_topic("Many", queues=1_000)
    partitions = tuple(
        CommittedPartition(partition_index=number, committed_offset=0) for number in range(1_001)
    )
    topics = (Topic(name="Many", partitions=partitions), Topic(name="T", partitions=()))
    response = turns.ask(OffsetCommitRequest(group_id="G", topics=topics))
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [0] * 1_000 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert response.topics[1].partitions == ()
    wanted = (
        Topic(name="T", partitions=(0,)),
        Topic(name="Many", partitions=tuple(range(1_001))),
    )
    groups = (WantedGroup(group_id="G", topics=wanted), WantedGroup(group_id="H", topics=None))
    found, other = turns.ask(OffsetFetchRequest(groups=groups)).groups
    assert [each.committed_offset for each in found.topics[0].partitions] == [-1]
    assert [each.committed_offset for each in found.topics[1].partitions] == [0] * 1_000 + [-1]
    assert (other.group_id, other.topics) == ("H", ())


def test_all_offsets_of_many_groups_are_fetched_in_turns(turns: Turns):
    """kafka-consumer-groups requests them this way; each 10,000 took 100 ms of the same turn."""
    turns.talk.create_topic("Many", queues=500)
    commits = tuple(CommittedPartition(partition_index=number, committed_offset=0) for number in range(500))
    groups = [f"G{each}" for each in range(10)]
    for group in groups:
        topics = (Topic(name="Many", partitions=commits),)
        turns.ask(OffsetCommitRequest(group_id=group, topics=topics))
    found = turns.ask(OffsetFetchRequest(groups=tuple(WantedGroup(group_id=each) for each in groups))).groups
    assert [(each.group_id, len(each.topics[0].partitions)) for each in found] == [(g, 500) for g in groups]
    assert turns.most <= ASKED_MAX


def test_offsets_are_deleted_in_turns(turns: Turns):
    turns.talk.create_topic("Many", queues=1_000)
    commits = tuple(CommittedPartition(partition_index=number, committed_offset=0) for number in range(1_000))
    turns.ask(OffsetCommitRequest(group_id="G", topics=(Topic(name="Many", partitions=commits),)))
    partitions = tuple(number for number in range(1_000))
    topics = (
        Topic(name="Many", partitions=partitions),
        *(Topic(name=name, partitions=partitions[:1]) for name in NAMES[:1_000]),
    )
    response = turns.ask(OffsetDeleteRequest(group_id="G", topics=topics))
    assert turns.count >= 2_000 // PORTION
    assert [len(each.partitions) for each in response.topics] == [1_000] + [1] * 1_000
    assert {each.error_code for topic in response.topics for each in topic.partitions} == {0}
    wanted = (Topic(name="Many", partitions=tuple(range(1_000))),)
    (found,) = turns.ask(OffsetFetchRequest(groups=(WantedGroup(group_id="G", topics=wanted),))).groups
    assert {each.committed_offset for each in found.topics[0].partitions} == {-1}


def test_batches_of_many_partitions_are_stored_in_turns(turns: Turns):
    turns.talk.create_topic("Many", queues=40)
    data = batch(*(record() for _ in range(200)))
    partitions = tuple(ProducePartition(index=number, records=data) for number in range(40))
    topics = (Topic(name="Many", partitions=partitions),)
    response = turns.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topics=topics))
    assert turns.count >= 40
    assert turns.most <= 1
    (topic,) = response.responses
    assert [(each.index, each.error_code, each.base_offset) for each in topic.partitions] == [
        (number, 0, 0) for number in range(40)
    ]


def test_a_resource_has_a_bounded_number_of_settings(endpoint: KafkaEndpoint):
    setting = WantedSetting(name="cleanup.policy", value="delete")
    resource = AlteredResource(
        resource_type=TOPIC, resource_name="T", configs=(setting,) * (SETTINGS_MAX + 1)
    )
    (altered,) = endpoint.peer().ask(AlterConfigsRequest(resources=(resource,))).responses
    assert altered.error_code == ErrorCode.INVALID_REQUEST


def test_a_commit_stops_at_the_next_generation_of_its_group(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
):
    """The rest of a large commit would overwrite later commits by the next owners."""
    monkeypatch.setattr(performer, "TURN_US_MAX", 0)
    endpoint.talk.create_topic("Many", queues=1_000)
    endpoint.talk.advance(MEMBERS_RETURN_MS)
    member = Member(endpoint)
    endpoint.talk.advance(INITIAL_DELAY_MS)
    member.joined()
    member.sync({member.member_id: b""})
    member.peer.answers()
    partitions = tuple(CommittedPartition(partition_index=n, committed_offset=0) for n in range(1_000))
    request = OffsetCommitRequest(
        group_id="G",
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        topics=(Topic(name="Many", partitions=partitions),),
    )
    peer = member.peer
    peer._entrance.received(peer, [peer.frame(request, 8)])
    endpoint.talk.threads.run_all(Thread.COMPUTE)
    run_turn(endpoint.talk)
    leaver = endpoint.peer()
    leaver._entrance.received(
        leaver,
        [
            leaver.frame(
                LeaveGroupRequest(group_id="G", members=(LeavingMember(member_id=member.member_id),)), 5
            )
        ],
    )
    peer.compute()
    (response,) = peer.answers()
    codes = [each.error_code for each in response.topics[0].partitions]
    assert 0 < codes.count(0) < 1_000
    assert set(codes[codes.count(0) :]) == {ErrorCode.UNKNOWN_MEMBER_ID}
