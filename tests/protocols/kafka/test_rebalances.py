"""How the history and the tools show groups with Kafka members."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from libramq.codes import RequestCode as R
from libramq.formats.document import decode_body
from libramq.formats.route import BrokerData, TopicRouteData
from libramq.groups.classic.saved_state import SavedClassicGroup, SavedClassicMember, SavedProtocol
from libramq.groups.classic.state import INITIAL_DELAY_MS
from libramq.groups.cluster_view import coordinator_of
from libramq.groups.rebalance_event import RebalanceEvent, decode_event
from libramq.groups.rebalance_history import BrokerEvent, Rebalance, rebalances
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.queue import MessageQueue
from libramq.protocols.kafka import rebalances as kafka_rebalances
from libramq.protocols.kafka.group_requests import CLASSIC_HOLD_MS_MAX
from libramq.protocols.kafka.rebalances import COLLECT_MS, QUIET_MS
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumerConnection, ConsumeStats
from libramq.remoting.body.kafka_cluster import PeerGroupsBody
from libramq.wire.kafka.apis.groups import DeleteGroupsRequest, HeartbeatRequest, JoinGroupProtocol
from libramq.wire.kafka.apis.handshake import ApiVersionsRequest
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.primitives import encode_int16, encode_int32
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint
from tests.protocols.kafka.test_groups import SESSION_MS, Member, join_request

GRACE_MS = 150


def partitions(*indexes: int, topic: str = "T") -> bytes:
    named = encode_int16(len(topic)) + topic.encode()
    content = named + encode_int32(len(indexes)) + b"".join(map(encode_int32, indexes))
    return encode_int32(1) + content if indexes else encode_int32(0)


def share(*indexes: int) -> bytes:
    return encode_int16(1) + partitions(*indexes) + encode_int32(0)


def subscription(*owned: int, topic: str = "T") -> bytes:
    topics = encode_int32(1) + encode_int16(len(topic)) + topic.encode()
    return encode_int16(1) + topics + encode_int32(0) + partitions(*owned)


def strategy(*owned: int, topic: str = "T") -> dict[str, Any]:
    return {"protocols": (JoinGroupProtocol(name="range", metadata=subscription(*owned, topic=topic)),)}


class Reader(Member):
    """A member that subscribes to T, and gives up all its queues when it rejoins."""

    def rejoin(self, *owned: int, **fields: Any) -> None:
        self.peer.tell(join_request(self.group, self.member_id, **(strategy(*owned) | fields)), self.version)


def events(talk: Conversation) -> list[RebalanceEvent]:
    talk.tick()  # They are stored after the turn that recorded them.
    return [decode_event(message.body) for message in talk.messages(REBALANCE_EVENTS_TOPIC)]


def history(talk: Conversation) -> list[Rebalance]:
    return rebalances([BrokerEvent("b", each) for each in events(talk)], wall_ms=talk.clock.wall_ms())


def settled(*shares: tuple[Reader, bytes]) -> None:
    """Have members accept the assignment of the first one, which leads."""
    for member, _ in shares:
        member.joined()
    for member, _ in reversed(shares[1:]):
        member.sync()
    leader = shares[0][0]
    leader.sync({member.member_id: content for member, content in shares})
    for member, _ in shares:
        assert [each.error_code for each in member.peer.answers()] == [0]


@pytest.fixture
def alone(endpoint: KafkaEndpoint) -> Reader:
    """A member that reads both queues of T."""
    member = Reader(endpoint)
    endpoint.talk.advance(INITIAL_DELAY_MS)
    settled((member, share(0, 1)))
    endpoint.talk.advance(1_000)  # Rebalances less than a millisecond apart count as one.
    return member


def test_the_first_member_takes_all_queues(alone: Reader, talk: Conversation):
    (found,) = history(talk)
    assert [cause.reason for cause in found.causes] == ["member_joined"]
    assert (found.moved, found.minimum, found.unowned, found.member_count) == (2, 2, 0, 1)
    assert found.loads == {alone.member_id: 2}
    assert found.time_to_stable_ms == INITIAL_DELAY_MS


def test_a_rebalance_has_its_cause_its_duration_its_moves_and_its_pauses(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    """The first member stops with its join, 70 ms after the second one joined and 30 ms before assignment."""
    other = Reader(endpoint)
    talk.advance(70)
    alone.rejoin()
    talk.advance(30)
    settled((alone, share(0)), (other, share(1)))
    _, found = history(talk)
    assert [cause.who for cause in found.causes] == [other.member_id]
    assert (found.moved, found.minimum, found.time_to_stable_ms, found.worst_pause_ms) == (1, 1, 100, 30)
    (move,) = found.moves
    assert (move.from_, move.to, move.queue, move.pause_ms) == (alone.member_id, other.member_id, 1, 30)
    assert move.redelivered_bound is None  # Fetches do not name their group, so the count is unknown.
    assert found.loads == {alone.member_id: 1, other.member_id: 1}


def test_a_cooperative_rebalance_of_two_generations_is_one(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    """Queue 0 is read throughout, queue 1 from the second generation on.

    The member without queues in the first generation hears of the second one at once.
    """
    other = Reader(endpoint)
    alone.rejoin(0, 1)
    talk.advance(10)
    alone.joined()
    other.joined()
    other.sync()
    alone.sync({alone.member_id: share(0), other.member_id: share()})
    assert [each.error_code for each in alone.peer.answers()] == [0]
    talk.advance(40)
    assert other.peer.answers() == []
    alone.rejoin(0)
    assert [each.error_code for each in other.peer.answers()] == [ErrorCode.REBALANCE_IN_PROGRESS]
    other.rejoin()
    settled((alone, share(0)), (other, share(1)))
    _, found = history(talk)
    assert (found.moved, found.minimum, found.worst_pause_ms) == (1, 1, 40)
    assert [cause.reason for cause in found.causes] == ["member_joined"]


def test_a_cooperative_member_of_librdkafka_is_told_its_share_at_once(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    """Its held heartbeat announces the second generation; after an error it would wait for a second."""
    other = Reader(endpoint)
    software = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.1")
    other.peer.tell(software, 3)
    alone.rejoin(0, 1)
    alone.joined()
    joined, _ = other.peer.answers()
    other.generation = joined.generation_id
    other.sync()
    alone.sync({alone.member_id: share(0), other.member_id: share()})
    assert [each.error_code for each in other.peer.answers()] == [0]


def test_unassigned_queues_are_unowned_after_a_while(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    alone.rejoin()
    settled((alone, share(1)))
    assert len(history(talk)) == 2
    assert history(talk)[-1].unowned is None  # It may still be assigned.
    talk.advance(QUIET_MS)
    assert history(talk)[-1].unowned == 1


@pytest.mark.parametrize(
    "reason", ["member_left", "connection_closed", "session_expired", "processing_timeout"]
)
def test_the_history_names_the_reason_why_a_member_is_gone(
    reason: str, alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    other = Reader(endpoint)
    alone.rejoin()
    settled((alone, share(0)), (other, share(1)))
    if reason == "member_left":
        other.leave()
    elif reason == "connection_closed":
        other.peer.end()
        talk.advance(GRACE_MS)
    elif reason == "session_expired":
        talk.advance(SESSION_MS - 1_000)
        alone.hold_beat()
        talk.advance(1_000)
    else:  # A third member joins, and the second one sends heartbeats but does not rejoin.
        Reader(endpoint)
        alone.peer.answers()
        alone.rejoin()
        for _ in range(12):
            talk.advance(5_000)
            other.beat()
    if reason != "processing_timeout":
        alone.peer.answers()
        alone.rejoin()
        alone.joined()
        alone.sync({alone.member_id: share(0, 1)})
    talk.advance(COLLECT_MS)
    found = history(talk)[-1]
    assert (reason, other.member_id) in [(cause.reason, cause.who) for cause in found.causes]


def test_the_pause_of_a_dead_members_queues_begins_with_its_last_sign_of_life(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    other = Reader(endpoint)
    alone.rejoin()
    settled((alone, share(0)), (other, share(1)))
    talk.advance(SESSION_MS - 1_000)
    alone.hold_beat()
    talk.advance(1_000)
    alone.peer.answers()
    alone.rejoin()
    settled((alone, share(0, 1)))
    assert history(talk)[-1].worst_pause_ms == SESSION_MS


def test_a_member_whose_client_is_back_in_time_has_not_stopped(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    alone.peer.end()
    talk.advance(GRACE_MS - 50)
    alone.peer = endpoint.peer()
    alone.beat()
    talk.advance(GRACE_MS)
    assert len(history(talk)) == 1
    (member,) = connected(talk).connection_set
    assert member.queues == {"T": {talk.broker.config.broker_name: [0, 1]}}


def test_members_that_come_at_once_are_one_event(endpoint: KafkaEndpoint, talk: Conversation):
    """Each event names the members: a hundred events would be a hundred long messages."""
    members = [Reader(endpoint) for _ in range(3)]
    talk.advance(COLLECT_MS)
    (started,) = events(talk)
    assert started.member_count == 3
    assert set((started.who or "").split(", ")) == {member.member_id for member in members}


def test_a_leader_that_sees_more_partitions_joins_again(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    talk.create_topic("T", queues=4)
    alone.rejoin()
    settled((alone, share(0, 1, 2, 3)))
    found = history(talk)[-1]
    assert [cause.reason for cause in found.causes] == ["queue_count_changed"]
    assert (found.moved, found.loads) == (2, {alone.member_id: 4})


def test_a_changed_subscription_is_the_cause(alone: Reader, talk: Conversation):
    talk.create_topic("U", queues=1)
    alone.rejoin(**strategy(topic="U"))
    alone.joined()
    alone.sync({alone.member_id: encode_int16(1) + partitions(0, topic="U") + encode_int32(0)})
    found = history(talk)[-1]
    assert [cause.reason for cause in found.causes] == ["subscription_changed"]
    assert found.loads == {alone.member_id: 1}


def test_a_group_without_members_has_settled_and_is_forgotten(alone: Reader, talk: Conversation):
    alone.leave()
    found = history(talk)[-1]
    assert ([cause.reason for cause in found.causes], found.member_count) == (["member_left"], 0)
    assert talk.broker.members.consumers.foreign.get("G") is None


def test_queues_are_followed_up_to_a_bound_in_all(
    endpoint: KafkaEndpoint, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    """25,000 groups could each name 10,000 queues."""
    monkeypatch.setattr(kafka_rebalances, "READERS_MAX", 3)
    for name, known in (("G1", 2), ("G2", 0)):
        member = Reader(endpoint, name)
        talk.advance(INITIAL_DELAY_MS)
        settled((member, share(0, 1)))
        found = talk.broker.members.consumers.foreign.get(name)
        assert found is not None
        assert len(found.members[0].queues) == known


@pytest.mark.parametrize("count", [3, 12])
def test_a_rebalance_reads_each_members_bytes_a_few_times_however_many_there_are(
    count: int, endpoint: KafkaEndpoint, talk: Conversation, monkeypatch: pytest.MonkeyPatch
):
    """Each request read the bytes of all members: a thousand members took a minute of the broker's time."""
    calls: Counter[str] = Counter()

    def counted(name: str, read: Callable[[bytes], Any]) -> None:
        def count_and_read(content: bytes) -> Any:
            calls[name] += 1
            return read(content)

        monkeypatch.setattr(kafka_rebalances, name, count_and_read)

    counted("subscribed_topics", kafka_rebalances.subscribed_topics)
    counted("assigned_partitions", kafka_rebalances.assigned_partitions)
    members = [Reader(endpoint) for _ in range(count)]
    talk.advance(2 * INITIAL_DELAY_MS)
    for member in members:
        member.joined()
    members[0].sync({members[0].member_id: share(0), members[1].member_id: share(1)})
    for member in members[1:]:  # Each one is answered in its own turn.
        member.sync()
    assert calls == {"subscribed_topics": 1, "assigned_partitions": count}
    assert history(talk)[-1].loads == {each.member_id: int(each in members[:2]) for each in members}


def connected(talk: Conversation, group: str = "G") -> ConsumerConnection:
    answer = talk.ask(FakePeer(), R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader(consumer_group=group))
    return decode_body(answer.body, ConsumerConnection)


def test_tools_of_rocketmq_see_members_and_lag(alone: Reader, talk: Conversation):
    for _ in range(3):
        talk.send(FakePeer(), "T")
    found = connected(talk)
    assert (found.protocol, found.generation, found.strategy) == ("Kafka", 1, "range")
    assert list(found.subscription_table) == ["T"]
    (member,) = found.connection_set
    assert (member.client_id, member.client_addr) == (alone.member_id, "127.0.0.1")
    assert "%RETRY%G" in talk.broker.topics
    answer = talk.ask(FakePeer(), R.GET_CONSUME_STATS, h.ConsumeStatsHeader(consumer_group="G"))
    stats = decode_body(answer.body, ConsumeStats)
    name = talk.broker.config.broker_name
    assert sum(stats.offset_table[MessageQueue("T", name, index)].broker_offset for index in (0, 1)) == 3


def test_a_deleted_group_is_not_shown_by_tools_any_more(alone: Reader, talk: Conversation):
    alone.leave()
    (result,) = alone.peer.ask(DeleteGroupsRequest(groups_names=("G",))).results
    assert result.error_code == 0
    assert "%RETRY%G" not in talk.broker.topics


def other_coordinator(talk: Conversation, group: str) -> None:
    """Add another broker to the cluster that coordinates a group."""
    view = talk.broker.cluster.nodes.view
    name = next(
        name
        for name in map("broker-{}".format, range(100))
        if coordinator_of(group, [name, view.own_name]) == name
    )
    route = TopicRouteData(broker_datas=[BrokerData(broker_name=name, broker_addrs={0: "127.0.0.1:1"})])
    view.brokers_reported(route, linked=())
    view.announce()


def test_a_group_that_another_broker_coordinates_now_has_not_changed(
    alone: Reader, endpoint: KafkaEndpoint, talk: Conversation
):
    before = events(talk)
    other_coordinator(talk, alone.group)
    talk.advance(QUIET_MS)
    assert alone.beat() == ErrorCode.NOT_COORDINATOR
    assert events(talk) == before


def test_a_group_that_continues_here_has_not_changed_until_somebody_joins(
    endpoint: KafkaEndpoint, talk: Conversation
):
    """The former coordinator has handed it over."""
    member = SavedClassicMember(
        session_ms=SESSION_MS,
        rebalance_ms=60_000,
        protocols=[SavedProtocol(name="range", metadata=subscription())],
        assignment=share(0, 1),
    )
    state = SavedClassicGroup(
        generation=7,
        members={"m": member},
        protocol_type="consumer",
        protocol_name="range",
        leader="m",
    )
    body = PeerGroupsBody(broker_name="broker-b", sequence=1, classic={"G": state})
    assert talk.broker.cluster.copies.take(body)
    heartbeat = HeartbeatRequest(group_id="G", generation_id=7, member_id="m")
    peer = endpoint.peer()
    peer.tell(heartbeat)
    talk.advance(CLASSIC_HOLD_MS_MAX)
    assert [each.error_code for each in peer.answers()] == [0]
    assert events(talk) == []
    Reader(endpoint)
    talk.advance(COLLECT_MS)
    (found,) = history(talk)
    assert found.member_count == 2
    assert peer.ask(heartbeat).error_code == ErrorCode.REBALANCE_IN_PROGRESS
