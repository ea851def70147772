"""KIP-848 groups over Kafka's wire, beside classic groups and RocketMQ's."""

import gc
import hashlib
from typing import Any

import pytest

from libramq.broker.cluster.kafka.nodes import Nodes
from libramq.groups import limits
from libramq.groups.classic.values import Beat as HeldOf
from libramq.groups.modern.group import COLLECT_MS, INITIAL_DELAY_MS
from libramq.groups.modern.member import SESSION_MS
from libramq.groups.modern.values import LEAVES, LEAVES_FOR_A_WHILE
from libramq.kernel.effect import Thread
from libramq.protocols.kafka.api68_modern_groups import HEARTBEAT_MS, WAITING_HEARTBEAT_MS
from libramq.protocols.kafka.group_requests import MODERN_HOLD_MS
from libramq.protocols.kafka.node import KafkaNodes, id_of
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    TopicPartitions,
)
from libramq.wire.kafka.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    WantedGroup,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Topic
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint, record
from tests.protocols.kafka.test_groups import join_request
from tests.protocols.kafka.test_rebalances import history

GRACE_MS = 150


def owned(*partitions: int, topic: str = "T") -> tuple[TopicPartitions, ...]:
    return (TopicPartitions(topic_id=id_of(topic), partitions=partitions),) if partitions else ()


class Member:
    """A member with its own connection, which has joined and received its first answer."""

    def __init__(self, endpoint: KafkaEndpoint, member_id: str, group: str = "G", **fields: Any) -> None:
        self.peer = endpoint.peer()
        self.member_id = member_id
        self.group = group
        self.instance_id: str | None = fields.get("instance_id")
        self.epoch = 0
        self.partitions: tuple[int, ...] = ()
        self.join(**fields)

    def join(self, **fields: Any) -> None:
        joining = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": ("T",),
            "topic_partitions": (),
            "member_epoch": 0,
        }
        self.hold_beat(**(joining | fields))

    def hold_beat(self, **fields: Any) -> None:
        """Send a heartbeat, which is held until there is news."""
        named = {"member_epoch": self.epoch, "instance_id": self.instance_id}
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, **(named | fields)
        )
        self.peer.tell(request)

    def heard(self) -> ConsumerGroupHeartbeatResponse | None:
        """Return the last answer, and act on it."""
        responses = self.peer.answers()
        for each in responses:
            assert each.error_code == 0, each
            self.epoch = each.member_epoch
            if each.assignment is not None:
                topics = each.assignment.topic_partitions
                assert all(topic.topic_id == id_of("T") for topic in topics)
                self.partitions = tuple(number for topic in topics for number in topic.partitions)
        return responses[-1] if responses else None

    def refused(self, **fields: Any) -> ErrorCode:
        self.hold_beat(**fields)
        return ErrorCode(self.peer.answers()[-1].error_code)

    def commit(self, offset: int, epoch: int | None = None, version: int = 9) -> ErrorCode:
        partitions = (CommittedPartition(partition_index=0, committed_offset=offset),)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.member_id,
            topics=(Topic(name="T", partitions=partitions),),
        )
        self.peer.tell(request, version)
        response = next(each for each in self.peer.answers() if hasattr(each, "topics"))
        return ErrorCode(response.topics[0].partitions[0].error_code)


@pytest.fixture
def pair(endpoint: KafkaEndpoint) -> tuple[Member, Member]:
    """Two members with one partition each."""
    first, second = Member(endpoint, "a"), Member(endpoint, "b")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    first.heard()
    second.heard()
    assert sorted(first.partitions + second.partitions) == [0, 1]
    return first, second


def test_a_member_hears_of_another_one_in_a_round_trip(endpoint: KafkaEndpoint):
    first = Member(endpoint, "a")
    assert first.heard() is None
    endpoint.talk.advance(INITIAL_DELAY_MS)
    answer = first.heard()
    assert answer is not None
    assert (answer.member_id, answer.member_epoch, first.partitions) == ("a", 1, (0, 1))
    assert answer.heartbeat_interval_ms == HEARTBEAT_MS
    first.hold_beat(topic_partitions=owned(0, 1))
    second = Member(endpoint, "b")
    endpoint.talk.advance(COLLECT_MS)
    first.heard()
    assert len(first.partitions) == 1
    assert second.heard() is None, "others give up partitions for it"
    first.hold_beat(topic_partitions=owned(*first.partitions))
    answer = second.heard()
    assert answer is not None
    assert answer.heartbeat_interval_ms == HEARTBEAT_MS
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_a_member_that_waits_for_partitions_asks_more_often(endpoint: KafkaEndpoint):
    first = Member(endpoint, "a")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    first.heard()
    second = Member(endpoint, "b")
    endpoint.talk.advance(MODERN_HOLD_MS)
    for _ in range(2):
        answer = second.heard()
        assert answer is not None
        assert (answer.heartbeat_interval_ms, second.partitions) == (WAITING_HEARTBEAT_MS, ())
        second.hold_beat()
    first.hold_beat(topic_partitions=owned(0, 1))
    first.heard()
    first.hold_beat(topic_partitions=owned(*first.partitions))
    second.hold_beat()
    second.heard()
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_a_heartbeat_without_news_is_answered_in_its_interval(
    endpoint: KafkaEndpoint, pair: tuple[Member, Member]
):
    pair[0].hold_beat()
    endpoint.talk.advance(MODERN_HOLD_MS - 1)
    assert pair[0].heard() is None
    endpoint.talk.advance(1)
    answer = pair[0].heard()
    assert answer is not None
    assert answer.assignment is None
    assert answer.heartbeat_interval_ms > MODERN_HOLD_MS, "librdkafka waits no longer than this for an answer"


def test_a_lost_answer_is_given_again(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    first, second = pair
    first.hold_beat()
    lost, first.peer = first.peer, endpoint.peer()
    first.hold_beat(
        rebalance_timeout_ms=60_000, subscribed_topic_names=("T",), topic_partitions=owned(*first.partitions)
    )
    answer = first.heard()
    assert answer is not None
    assert answer.assignment is not None, "a client that asks for all gets all"
    first.hold_beat()
    second.peer.end()
    endpoint.talk.advance(GRACE_MS + COLLECT_MS)
    first.heard()
    assert first.partitions == (0, 1), "the news goes to the connection that was heard last"
    assert all(each.assignment is None for each in lost.answers())


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_closed_connection_ends_a_dynamic_members_session_after_the_grace(
    endpoint: KafkaEndpoint, instance: str | None
):
    first, second = Member(endpoint, "a"), Member(endpoint, "b", instance_id=instance)
    endpoint.talk.advance(INITIAL_DELAY_MS)
    first.heard()
    second.heard()
    first.hold_beat()
    second.peer.end()
    endpoint.talk.advance(GRACE_MS + COLLECT_MS)
    first.heard()
    assert first.partitions == ((0, 1) if instance is None else (0,))
    for _ in range(SESSION_MS // HEARTBEAT_MS + 1):
        first.hold_beat()
        endpoint.talk.advance(HEARTBEAT_MS)
        first.heard()
    assert first.partitions == (0, 1)


def test_a_member_that_leaves_gives_its_partitions_to_the_others(
    endpoint: KafkaEndpoint, pair: tuple[Member, Member]
):
    first, second = pair
    first.hold_beat()
    second.hold_beat(member_epoch=LEAVES)
    assert second.peer.answers()[-1].member_epoch == LEAVES
    endpoint.talk.advance(COLLECT_MS)
    first.heard()
    assert first.partitions == (0, 1)
    assert second.refused(member_epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert history(endpoint.talk)[-1].causes[0].reason == "member_left"


def test_a_static_member_is_back_without_a_rebalance(endpoint: KafkaEndpoint):
    first, second = Member(endpoint, "a"), Member(endpoint, "b", instance_id="i")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    first.heard()
    second.heard()
    other = Member(endpoint, "c", instance_id="i")
    assert other.peer.answers()[0].error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    second.hold_beat(member_epoch=LEAVES_FOR_A_WHILE)
    assert second.peer.answers()[-1].member_epoch == LEAVES_FOR_A_WHILE
    other.join()
    other.heard()
    assert (other.epoch, other.partitions) == (1, second.partitions)
    first.hold_beat()
    endpoint.talk.advance(COLLECT_MS)
    assert first.heard() is None
    assert second.refused(member_epoch=1) is ErrorCode.FENCED_INSTANCE_ID


def test_wrong_epochs_are_fenced(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    first, _ = pair
    endpoint.peer().produce(record(), record())
    assert first.refused(member_epoch=7) is ErrorCode.FENCED_MEMBER_EPOCH
    assert first.commit(1, epoch=7) is ErrorCode.STALE_MEMBER_EPOCH
    assert first.commit(1, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert first.commit(1) is ErrorCode.NONE
    wanted = (Topic(name="T", partitions=(0,)),)

    def fetch(member_id: str | None, epoch: int) -> Any:
        group = WantedGroup(group_id="G", member_id=member_id, member_epoch=epoch, topics=wanted)
        return endpoint.peer().ask(OffsetFetchRequest(groups=(group,))).groups[0]

    assert fetch("a", 7).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for found in (fetch("a", 1), fetch(None, -1)):
        assert found.topics[0].partitions[0].committed_offset == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": owned(0)}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ("t" * 250,)}, ErrorCode.INVALID_REQUEST),
        (
            {"subscribed_topic_names": tuple(f"t{number}" for number in range(1_001))},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 250}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": "r" * 250}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"server_assignor": "rack"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(?=T).*"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"group_id": "a.b"}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_invalid_heartbeats_are_refused(endpoint: KafkaEndpoint, fields: dict[str, Any], code: ErrorCode):
    joining = {
        "group_id": "G",
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ("T",),
        "topic_partitions": (),
    }
    refused = endpoint.peer().ask(ConsumerGroupHeartbeatRequest(**(joining | fields)))
    assert refused.error_code == code
    assert len(endpoint.translator.modern_groups.groups) == 0


def test_a_group_has_members_of_one_protocol(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    refused = endpoint.peer().ask(join_request())
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    endpoint.peer().tell(join_request("classic"), 3)
    other = Member(endpoint, "c", group="classic")
    assert other.peer.answers()[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_rocketmqs_members_keep_modern_ones_out(endpoint: KafkaEndpoint):
    endpoint.talk.beat(FakePeer(), "stock")
    other = Member(endpoint, "c")
    assert other.peer.answers()[0].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_tools_see_the_group(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    tool = endpoint.peer()
    (group,) = tool.ask(ConsumerGroupDescribeRequest(group_ids=("G",))).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (
        0,
        "Stable",
        1,
        1,
    )
    assert group.assignor_name == "uniform"
    assert [(each.member_id, each.member_epoch, each.member_type) for each in group.members] == [
        ("a", 1, 1), ("b", 1, 1),
    ]  # fmt: skip
    assert {
        each.assignment.topic_partitions[0].partitions[0]: each.target_assignment for each in group.members
    } == {each.assignment.topic_partitions[0].partitions[0]: each.assignment for each in group.members}
    (listed,) = tool.ask(ListGroupsRequest(types_filter=("consumer",))).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("G", "consumer", "Stable")
    assert tool.ask(ListGroupsRequest(types_filter=("classic",))).groups == ()
    (classic,) = tool.ask(DescribeGroupsRequest(groups=("G",))).groups
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (deleted,) = tool.ask(DeleteGroupsRequest(groups_names=("G",))).results
    assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP
    (unknown,) = tool.ask(ConsumerGroupDescribeRequest(group_ids=("other",))).groups
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    old = tool.ask(LeaveGroupRequest(group_id="G", member_id="x"), version=2)
    assert old.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    members = (LeavingMember(member_id="a"), LeavingMember(member_id="x"))
    left = tool.ask(LeaveGroupRequest(group_id="G", members=members)).members
    assert [each.error_code for each in left] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [each.client_host for each in group.members] == ["/127.0.0.1"] * 2


def test_the_history_has_causes_moves_and_pauses(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    talk = endpoint.talk
    (started,) = history(talk)
    assert {cause.who for cause in started.causes} == {"a, b"}
    assert (started.moved, started.minimum, started.unowned, started.member_count) == (2, 2, 0, 2)
    first, second = pair
    talk.advance(1_000)
    first.hold_beat()
    second.peer.end()
    talk.advance(GRACE_MS + COLLECT_MS)
    first.heard()
    assert first.partitions == (0, 1)
    _, found = history(talk)
    assert [(cause.reason, cause.who) for cause in found.causes] == [("connection_closed", "b")]
    assert (found.moved, found.minimum, found.worst_pause_ms) == (1, 1, COLLECT_MS)
    assert found.loads == {"a": 2}
    talk.advance(1_000)
    first.hold_beat()
    third = Member(endpoint, "c")
    talk.advance(COLLECT_MS)
    first.heard()
    talk.advance(30)
    first.hold_beat(topic_partitions=owned(*first.partitions))
    third.heard()
    *_, found = history(talk)
    assert [(cause.reason, cause.who) for cause in found.causes] == [("member_joined", "c")]
    (move,) = found.moves
    assert (move.from_, move.to, move.pause_ms) == ("a", "c", 0), "it is read until it has been given up"
    assert found.time_to_stable_ms == COLLECT_MS + 30


def test_topics_are_asked_for_by_their_ids(endpoint: KafkaEndpoint):
    wanted = (
        MetadataRequestTopic(topic_id=id_of("T"), name=None),
        MetadataRequestTopic(topic_id=b"x" * 16, name=None),
    )
    java = MetadataRequest(topics=(MetadataRequestTopic(topic_id=id_of("T"), name=""),))
    assert [each.name for each in endpoint.peer().ask(java).topics] == ["T"], "its members of patterns ask so"
    found, unknown = endpoint.peer().ask(MetadataRequest(topics=wanted)).topics
    assert (found.name, found.topic_id, len(found.partitions)) == ("T", id_of("T"), 2)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


def test_many_unknown_topic_ids_cost_one_look_through_the_topics(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    """Each was looked up among all topics: a heartbeat with 20,000 of them stopped a broker for minutes."""
    looks: list[None] = []
    topics = Nodes.topics

    def counted(nodes: Nodes) -> list[str]:
        looks.append(None)
        return topics(nodes)

    monkeypatch.setattr(Nodes, "topics", counted)
    endpoint = KafkaEndpoint(talk)
    unknown = [hashlib.sha256(b"unknown %d" % each).digest()[:16] for each in range(200)]
    wanted = tuple(MetadataRequestTopic(topic_id=each, name=None) for each in unknown)
    found = endpoint.peer().ask(MetadataRequest(topics=wanted)).topics
    assert {each.error_code for each in found} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert [each.topic_id for each in found] == unknown, "each has an answer"
    assert len(looks) == 1
    endpoint.peer().create("later")
    later = (MetadataRequestTopic(topic_id=id_of("later"), name=None),)
    assert endpoint.peer().ask(MetadataRequest(topics=later)).topics[0].name == "later"


def test_a_group_that_is_named_twice_is_described_once(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    """A 16 MB request that repeated one group's name was answered with gigabytes."""
    tool = endpoint.peer()
    found = tool.ask(ConsumerGroupDescribeRequest(group_ids=("G", "other", "G"))).groups
    assert [each.group_id for each in found] == ["G", "other"]
    classic = tool.ask(DescribeGroupsRequest(groups=("G", "other", "G"))).groups
    assert [each.group_id for each in classic] == ["G", "other"]


def test_no_heartbeat_outlives_its_answer(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    """The broker kept each member's last heartbeat with all its fields."""
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, ConsumerGroupHeartbeatRequest)]
    assert not kept


@pytest.mark.parametrize("is_removed", [True, False])
def test_nothing_is_left_of_former_members_of_an_instance(endpoint: KafkaEndpoint, is_removed: bool):
    tool = endpoint.peer()
    for number in range(5):
        member = Member(endpoint, f"m{number}", instance_id="i")
        endpoint.talk.advance(MODERN_HOLD_MS)
        member.heard()
        if is_removed:
            leaving = (LeavingMember(member_id="", group_instance_id="i"),)
            tool.tell(LeaveGroupRequest(group_id="G", members=leaving))
        else:
            member.peer.end()
        keeper = Member(endpoint, "keeper")
        endpoint.talk.advance(INITIAL_DELAY_MS)
        keeper.heard()
    requests = endpoint.translator.modern_groups
    group = requests.groups.get("G")
    assert group is not None
    gc.collect()
    beats = [each for each in gc.get_objects() if isinstance(each, HeldOf)]
    assert len(beats) <= len(group.members)
    assert len(requests.presence) <= len(group.members)


def test_nothing_is_left_of_groups_that_other_brokers_coordinate(
    endpoint: KafkaEndpoint, pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
):
    """Their readers counted forever: in the end no rebalance was recorded any more."""
    monkeypatch.setattr("libramq.protocols.kafka.rebalances.READERS_MAX", 2)
    requests = endpoint.translator.modern_groups
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(KafkaNodes, "is_elsewhere", lambda self, name: True)
        requests.moved()
    assert (len(requests.groups), requests.groups.cost_bytes, len(requests.presence)) == (0, 0, 0)
    other = Member(endpoint, "c", group="H")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    other.heard()
    seen = endpoint.talk.broker.members.consumers.foreign.get("H")
    assert seen is not None
    assert len(seen.members[0].queues) == 2


def test_a_large_assignment_is_made_on_a_thread(endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
    member = Member(endpoint, "a")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.ASSIGN]
    endpoint.talk.advance(MODERN_HOLD_MS)
    member.heard()
    assert (member.epoch, member.partitions) == (1, ())
    member.hold_beat()
    assert member.heard() is None
    endpoint.talk.threads.run_all(Thread.ASSIGN)
    member.heard()
    assert (member.epoch, member.partitions) == (2, (0, 1))


def test_members_keep_their_partitions_if_an_assignment_fails(
    endpoint: KafkaEndpoint, pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
    first, second = pair
    for member in pair:
        member.hold_beat()
    third = Member(endpoint, "c")
    endpoint.talk.advance(COLLECT_MS)
    ((_, _, assigned),) = endpoint.talk.threads.work
    endpoint.talk.threads.work.clear()
    assigned(MemoryError())
    before = first.partitions, second.partitions
    for member in (first, second, third):
        answer = member.heard()
        assert answer is not None
    assert ((first.partitions, second.partitions), third.partitions) == (before, ())
    assert {first.epoch, second.epoch, third.epoch} == {2}


def test_members_do_not_say_more_than_there_is_memory_for(
    endpoint: KafkaEndpoint, pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("libramq.groups.protocol_groups.COST_BYTES_MAX", 1_000)
    first, _ = pair
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert first.refused(subscribed_topic_names=("T", "U")) is refused
    other = Member(endpoint, "c", group="other")
    assert other.peer.answers()[0].error_code == refused
    first.hold_beat()
    endpoint.talk.advance(MODERN_HOLD_MS)
    assert first.heard() is not None


def test_nothing_is_left_of_a_group_without_members(endpoint: KafkaEndpoint, pair: tuple[Member, Member]):
    for member in pair:
        member.hold_beat()
        member.peer.end()
    endpoint.talk.advance(GRACE_MS + COLLECT_MS)
    requests = endpoint.translator.modern_groups
    assert (len(requests.groups), len(requests.held_heartbeats), len(requests.presence)) == (0, 0, 0)
    assert requests.groups.cost_bytes == 0
    endpoint.peer().tell(join_request(), 3)
    assert endpoint.translator.classic_groups.groups.get("G") is not None, "a classic group may have the name"


@pytest.mark.parametrize("field", ["member_id", "instance_id", "rack_id"])
def test_ids_with_control_characters_are_refused(endpoint: KafkaEndpoint, field: str):
    """Operators list ids on terminals, which interpret control characters."""
    fields = {"group_id": "G", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1_000}
    named = {"subscribed_topic_names": ("T",), "topic_partitions": (), field: "evil\x1b[2J"}
    beat = ConsumerGroupHeartbeatRequest(**(fields | named))  # type: ignore[arg-type]
    answer = endpoint.peer().ask(beat, 1)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "control characters" in answer.error_message
