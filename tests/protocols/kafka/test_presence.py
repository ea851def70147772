"""Members are notified of a rebalance at once, and the end of a member's connection is noticed at once."""

from pathlib import Path

import pytest

from libramq.clock import MonotonicMs
from libramq.groups.classic.state import INITIAL_DELAY_MS
from libramq.protocols.kafka.group_requests import CLASSIC_HOLD_MS_MAX, MEMBERS_PER_CONNECTION_MAX, Presence
from libramq.wire.kafka.apis.groups import FindCoordinatorRequest, HeartbeatRequest
from libramq.wire.kafka.apis.handshake import ApiVersionsRequest
from libramq.wire.kafka.error_code import ErrorCode
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer
from tests.protocols.kafka.test_groups import SESSION_MS, Member, join_request, pair

GRACE_MS = 150


def news(member: Member) -> list[int]:
    """Return the error code of a held heartbeat, if it was answered."""
    return [each.error_code for each in member.peer.answers()]


def members(endpoint: KafkaEndpoint) -> set[str]:
    group = endpoint.translator.classic_groups.groups.get("G")
    return set(group.members) if group is not None else set()


def test_a_held_heartbeat_is_answered_when_a_rebalance_begins(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    first.hold_beat()
    second.hold_beat()
    assert news(first) == news(second) == []
    Member(endpoint)
    assert news(first) == news(second) == [ErrorCode.REBALANCE_IN_PROGRESS]


@pytest.mark.parametrize("software", ["librdkafka", "confluent-kafka-python"])
def test_a_commit_does_not_end_the_wait_of_a_client_that_needs_no_order(
    endpoint: KafkaEndpoint, software: str
):
    """Its next heartbeat, the only request that could return the news, came up to 3 s later."""
    first, _ = pair(endpoint)
    first.peer.ask(ApiVersionsRequest(client_software_name=software, client_software_version="2.16.1"))
    first.hold_beat()
    assert first.commit(1) == ErrorCode.NONE
    assert first.commit(2) == ErrorCode.NONE
    assert news(first) == []
    Member(endpoint)
    assert news(first) == [ErrorCode.REBALANCE_IN_PROGRESS]
    first.hold_beat()
    assert news(first) == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_held_fetch_keeps_no_request_of_such_a_client_waiting(endpoint: KafkaEndpoint):
    """A member that lost its coordinator learned the next one only after the fetch: half a second later."""
    peer = endpoint.peer()
    peer.ask(ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.1"))
    peer.tell(peer.fetch_request(max_wait_ms=500))
    assert peer.ask(FindCoordinatorRequest(coordinator_keys=("G",))).coordinators[0].error_code == 0
    endpoint.talk.advance(500)
    assert len(peer.answers()) == 1


def test_answers_to_java_keep_the_order_of_requests(endpoint: KafkaEndpoint):
    first, _ = pair(endpoint)
    first.peer.ask(ApiVersionsRequest(client_software_name="apache-kafka-java"))
    assert first.beat() == ErrorCode.NONE


def test_nothing_is_left_of_a_client_that_needs_no_order(endpoint: KafkaEndpoint):
    before = endpoint.talk.broker.purgatory.statistics()
    peer = endpoint.peer()
    peer.ask(ApiVersionsRequest(client_software_name="librdkafka"))
    peer.end()
    assert endpoint.talk.broker.purgatory.statistics() == before


@pytest.mark.parametrize("software", ["sarama", None])
def test_a_client_that_sends_nothing_else_meanwhile_is_answered_at_once(
    endpoint: KafkaEndpoint, software: str | None
):
    """The fetches of Sarama and kafkajs waited 2.8 s behind their heartbeats."""
    first = Member(endpoint, software=software)
    endpoint.talk.advance(3 * INITIAL_DELAY_MS)
    first.joined()
    first.sync({first.member_id: b"A"})
    first.peer.answers()
    first.hold_beat()
    assert news(first) == [ErrorCode.NONE]
    Member(endpoint)
    first.hold_beat()
    assert news(first) == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_held_heartbeat_is_answered_in_time_for_the_next(endpoint: KafkaEndpoint):
    first, _ = pair(endpoint)
    first.hold_beat()
    endpoint.talk.advance(CLASSIC_HOLD_MS_MAX - 1)
    assert news(first) == []
    endpoint.talk.advance(1)
    assert news(first) == [ErrorCode.NONE]


def test_a_short_session_has_several_heartbeats(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.ask(ApiVersionsRequest(client_software_name="kgo", client_software_version="1"))
    peer.tell(join_request(session_timeout_ms=1_200, rebalance_timeout_ms=1_200), 3)
    endpoint.talk.advance(2 * INITIAL_DELAY_MS)
    (joined,) = peer.answers()
    beat = HeartbeatRequest(group_id="G", generation_id=joined.generation_id, member_id=joined.member_id)
    peer.tell(beat)
    endpoint.talk.advance(400)
    assert [each.error_code for each in peer.answers()] == [ErrorCode.NONE]


def test_another_request_ends_the_wait_before_it_is_answered(endpoint: KafkaEndpoint):
    first, _ = pair(endpoint)
    first.hold_beat()
    first.peer.tell(ApiVersionsRequest())
    beat, versions = first.peer.answers()
    assert (beat.error_code, bool(versions.api_keys)) == (ErrorCode.NONE, True)


def test_a_held_heartbeat_disappears_with_its_connection(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    first.hold_beat()
    first.peer.end()
    endpoint.talk.advance(CLASSIC_HOLD_MS_MAX)
    assert len(endpoint.translator.classic_groups.held_heartbeats) == 0
    assert not endpoint.translator._answers._waiting
    second.peer.end()
    endpoint.talk.advance(SESSION_MS)
    assert len(endpoint.talk.broker.purgatory) == 0
    assert len(endpoint.translator.classic_groups.presence) == 0


def test_a_member_whose_connection_ended_is_missed_after_the_grace(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    first.hold_beat()
    second.peer.end()
    endpoint.talk.advance(GRACE_MS - 1)
    assert (news(first), members(endpoint)) == ([], {first.member_id, second.member_id})
    endpoint.talk.advance(1)
    assert news(first) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert members(endpoint) == {first.member_id}


def test_a_lost_member_is_missed_although_the_broker_stood_still(endpoint: KafkaEndpoint):
    """The member gets as much extra time as the broker was stalled, not a whole session."""
    first, second = pair(endpoint)
    second.peer.end()
    endpoint.talk.extend_deadlines(1_000)
    assert second.member_id in members(endpoint)
    endpoint.talk.advance(1_000)
    assert members(endpoint) == {first.member_id}


def test_the_grace_can_be_switched_off(tmp_path: Path):
    talk = Conversation(tmp_path, kafka_member_grace_ms=0)
    endpoint = KafkaEndpoint(talk)
    first, second = pair(endpoint)
    second.peer.end()
    talk.advance(SESSION_MS - 1)
    assert second.member_id in members(endpoint)
    first.beat()
    talk.advance(1)
    assert second.member_id not in members(endpoint)
    talk.close()


def test_a_client_of_very_many_members_is_found_at_once(endpoint: KafkaEndpoint):
    """Every member was compared with every other: ten thousand took seconds."""
    compared: list[None] = []

    class Id(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(None)
            return str.__eq__(self, other)  # type: ignore[arg-type]

    purgatory = endpoint.talk.broker.purgatory
    presence = Presence(purgatory, lambda *_: None)
    now_ms = MonotonicMs(1_000)
    everyone = [("G" if each % 2 else "H", Id(each)) for each in range(300)]
    for who in everyone:
        presence.wait_for(who, ("client", "host", "user"), now_ms, now_ms + GRACE_MS)
    assert presence.returned(("client", "host", "other"), None, now_ms) == []
    assert presence.returned(("client", "host", "user"), ("G",), now_ms) == everyone[1::2]
    assert presence.returned(("client", "host", "user"), None, now_ms + GRACE_MS) == everyone[::2]
    assert presence.returned(("client", "host", "user"), None, now_ms + GRACE_MS) == []
    assert len(compared) <= 10 * len(everyone)


@pytest.mark.parametrize("request_", [ApiVersionsRequest(), FindCoordinatorRequest(coordinator_keys=("G",))])
def test_a_client_that_is_back_keeps_its_member(
    endpoint: KafkaEndpoint, request_: ApiVersionsRequest | FindCoordinatorRequest
):
    first, second = pair(endpoint)
    second.peer.end()
    endpoint.talk.advance(GRACE_MS - 1)
    back = endpoint.peer()
    back.ask(request_)
    endpoint.talk.advance(SESSION_MS - 1)
    first.beat()
    assert second.member_id in members(endpoint)
    endpoint.talk.advance(1)
    assert second.member_id not in members(endpoint)


def test_a_member_that_is_heard_over_a_new_connection_keeps_its_place(endpoint: KafkaEndpoint):
    _, second = pair(endpoint)
    old, second.peer = second.peer, endpoint.peer()
    assert second.beat() == ErrorCode.NONE
    old.end()
    endpoint.talk.advance(2 * GRACE_MS)
    assert second.member_id in members(endpoint)


@pytest.mark.parametrize("client_id", ["other", "test"])
def test_a_client_from_another_host_keeps_no_member_alive(endpoint: KafkaEndpoint, client_id: str):
    _, second = pair(endpoint)
    second.peer.end()
    stranger = endpoint.peer("127.0.0.1:1" if client_id == "other" else "127.0.0.2:1")
    stranger.client_id = client_id
    stranger.ask(ApiVersionsRequest())
    endpoint.talk.advance(GRACE_MS)
    assert second.member_id not in members(endpoint)


def test_a_static_member_has_its_whole_session(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(join_request(group_instance_id="i"))
    endpoint.talk.advance(2 * INITIAL_DELAY_MS)
    (joined,) = peer.answers()
    peer.end()
    endpoint.talk.advance(SESSION_MS // 2)
    assert members(endpoint) == {joined.member_id}
    endpoint.talk.advance(SESSION_MS)
    assert members(endpoint) == set()


def test_a_rebalance_does_not_wait_for_a_member_that_died_in_it(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    newcomer = Member(endpoint)
    first.rejoin()
    newcomer.peer.end()
    second.rejoin()
    assert first.peer.answers() == [], "the newcomer may come back"
    endpoint.talk.advance(GRACE_MS)
    assert len(first.joined().members) == 2


def test_a_connection_speaks_for_few_members():
    """Each member takes memory as long as the connection is open."""
    talk_lost: list[object] = []
    peer = FakePeer()
    presence = Presence(_Purgatory(), lambda connection, lost: talk_lost.extend(lost))  # type: ignore[arg-type]
    for number in range(MEMBERS_PER_CONNECTION_MAX + 5):
        presence.seen(peer, ("G", str(number)))
    assert len(presence) == MEMBERS_PER_CONNECTION_MAX


class _Purgatory:
    """A purgatory that always has room."""

    def has_room(self, connection: object) -> bool:
        return True

    def park(self, parked: object, *, unlink: object) -> None:
        """Keep nothing."""


def test_a_late_answer_affects_no_other_member(endpoint: KafkaEndpoint):
    """The held heartbeat belongs to a member that has since left over another connection."""
    first, second = pair(endpoint)
    second.hold_beat()
    old: KafkaPeer = second.peer
    second.peer = endpoint.peer()
    second.leave()
    assert [each.error_code for each in old.answers()] == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert members(endpoint) == {first.member_id}
