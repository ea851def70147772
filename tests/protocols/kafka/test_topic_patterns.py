"""Members of KIP-848 groups that subscribe to a pattern, which the broker resolves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.groups.modern import topic_pattern
from libramq.groups.modern.group import COLLECT_MS, INITIAL_DELAY_MS
from libramq.groups.modern.subscribed_topics import TOPICS_LOOK_MS
from libramq.groups.modern.values import LEAVES
from libramq.kernel.connection import Principal
from libramq.protocols.kafka import topic_patterns
from libramq.protocols.kafka.group_requests import MODERN_HOLD_MS
from libramq.protocols.kafka.node import id_of
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from libramq.wire.kafka.error_code import ErrorCode
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint

TOPICS = ("T", "orders-eu", "orders-us", "other")


class Member:
    """A member with its own connection, and the topics of its partitions."""

    def __init__(self, endpoint: KafkaEndpoint, member_id: str = "a") -> None:
        self.peer = endpoint.peer()
        self.member_id = member_id
        self.epoch = 0
        self.topics: set[str] = set()

    def beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse | None:
        """Send a heartbeat; return the answers."""
        named = {"group_id": "G", "member_id": self.member_id, "member_epoch": self.epoch}
        self.peer.tell(ConsumerGroupHeartbeatRequest(**(named | fields)))
        return self.heard()

    def join(self, pattern: str | None, *names: str) -> ConsumerGroupHeartbeatResponse | None:
        return self.beat(
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=names or None,
            subscribed_topic_regex=pattern,
            topic_partitions=(),
        )

    def heard(self) -> ConsumerGroupHeartbeatResponse | None:
        self.peer.compute()
        answers = self.peer.answers()
        for each in answers:
            if each.error_code == 0:
                self.epoch = each.member_epoch
            if each.assignment is not None:
                ids = {topic.topic_id for topic in each.assignment.topic_partitions}
                self.topics = {name for name in (*TOPICS, "orders-new") if id_of(name) in ids}
        return answers[-1] if answers else None


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(tmp_path)
    for name in TOPICS:
        talk.create_topic(name, queues=2)
    yield talk
    talk.close()


@pytest.fixture
def member(endpoint: KafkaEndpoint) -> Member:
    """A member that reads the topics matching `orders`."""
    member = Member(endpoint)
    member.join("orders-.*")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    member.heard()
    return member


def test_a_member_gets_the_topics_that_fit_its_pattern(endpoint: KafkaEndpoint, member: Member):
    assert member.topics == {"orders-eu", "orders-us"}
    (group,) = endpoint.peer().ask(ConsumerGroupDescribeRequest(group_ids=("G",))).groups
    (described,) = group.members
    assert (described.subscribed_topic_names, described.subscribed_topic_regex) == ((), "orders-.*")


def test_a_pattern_and_names_are_both_read(endpoint: KafkaEndpoint):
    member = Member(endpoint)
    member.join("other|x+", "T")
    endpoint.talk.advance(INITIAL_DELAY_MS)
    member.heard()
    assert member.topics == {"T", "other"}


def test_creating_and_deleting_topics_changes_the_matches(endpoint: KafkaEndpoint, member: Member):
    endpoint.talk.create_topic("orders-new", queues=1)
    member.beat()
    endpoint.talk.advance(TOPICS_LOOK_MS)
    member.heard()
    member.beat()
    endpoint.talk.advance(COLLECT_MS)
    member.heard()
    assert member.topics == {"orders-eu", "orders-us", "orders-new"}
    endpoint.talk.broker.members.removal.remove_topic("orders-eu", endpoint.talk.clock.wall_ms())
    member.beat()
    endpoint.talk.advance(TOPICS_LOOK_MS)
    member.heard()
    member.beat()
    endpoint.talk.advance(COLLECT_MS)
    member.heard()
    assert member.topics == {"orders-us", "orders-new"}


def test_a_member_changes_its_pattern_and_drops_it(endpoint: KafkaEndpoint, member: Member):
    def say(**fields: Any) -> None:
        member.beat(**fields)
        endpoint.talk.advance(COLLECT_MS)
        member.heard()
        member.beat(topic_partitions=())  # It has given up the others.
        endpoint.talk.advance(MODERN_HOLD_MS)
        member.heard()

    say(subscribed_topic_regex="oth.*")
    assert member.topics == {"other"}
    say(subscribed_topic_names=("T",), subscribed_topic_regex="")
    assert member.topics == {"T"}
    endpoint.talk.advance(2 * TOPICS_LOOK_MS)
    assert len(endpoint.translator.modern_groups._patterns) == 0


def test_a_member_keeps_its_topics_until_those_of_its_new_pattern_are_known(
    endpoint: KafkaEndpoint, member: Member
):
    frame = {
        "group_id": "G",
        "member_id": "a",
        "member_epoch": member.epoch,
        "subscribed_topic_regex": "orders-e.*",
    }
    peer = member.peer
    peer._entrance.received(peer, [peer.frame(ConsumerGroupHeartbeatRequest(**frame), 1)])
    endpoint.talk.advance(COLLECT_MS)
    assert peer.answers() == [], "nothing is revoked yet"
    peer.compute()
    endpoint.talk.advance(COLLECT_MS)
    member.heard()
    assert member.topics == {"orders-eu"}


def test_a_second_member_knows_the_pattern_at_once(endpoint: KafkaEndpoint, member: Member):
    second = Member(endpoint, "b")
    second.join("orders-.*")
    endpoint.talk.advance(COLLECT_MS)
    second.heard()
    group = endpoint.translator.modern_groups.groups.get("G")
    assert group is not None
    assert {each.topics for each in group.members.values()} == {frozenset({"orders-eu", "orders-us"})}
    for each in (member, second):
        each.beat(member_epoch=LEAVES)
    endpoint.talk.advance(2 * TOPICS_LOOK_MS)
    assert len(endpoint.translator.modern_groups._patterns) == 0


def test_a_pattern_that_is_used_again_is_looked_after_again(endpoint: KafkaEndpoint, member: Member):
    other = Member(endpoint, "b")
    other.join(None, "T")
    endpoint.talk.advance(COLLECT_MS)
    other.heard()
    member.beat(member_epoch=LEAVES)
    endpoint.talk.advance(2 * TOPICS_LOOK_MS)
    again = Member(endpoint, "c")
    again.join("orders-.*")
    endpoint.talk.advance(COLLECT_MS)
    again.heard()
    endpoint.talk.create_topic("orders-new", queues=1)
    for _ in range(3):
        again.beat()
        endpoint.talk.advance(TOPICS_LOOK_MS)
        again.heard()
    assert again.topics == {"orders-eu", "orders-us", "orders-new"}


def test_system_topics_and_denied_topics_do_not_match(tmp_path: Path):
    guard = Guard({"Topic:orders-eu"})
    talk = Conversation(tmp_path, authorizer=guard)
    for name in TOPICS:
        talk.create_topic(name, queues=2)
    endpoint = KafkaEndpoint(talk)
    member = Member(endpoint)
    member.peer.principal = Principal("alice")
    guard.principals.clear()
    member.join(".*")
    talk.advance(INITIAL_DELAY_MS)
    member.heard()
    group = endpoint.translator.modern_groups.groups.get("G")
    assert group is not None
    assert {"T", "orders-us", "other"} <= group.topics
    assert "orders-eu" not in group.topics
    assert not any(each.startswith(("RMQ_SYS", "rmq_sys", "%")) for each in group.topics)
    assert guard.principals == {Principal("alice")}
    talk.close()


def test_a_group_with_a_pattern_continues_after_a_restart(
    endpoint: KafkaEndpoint, member: Member, tmp_path: Path
):
    endpoint.talk.kill()
    again = Conversation(tmp_path, clock=endpoint.talk.clock)
    member.peer = KafkaEndpoint(again).peer()
    before, member.topics = member.topics, set()
    member.beat()
    assert member.topics == before
    again.create_topic("orders-new", queues=1)
    for _ in range(3):
        member.beat()
        again.advance(TOPICS_LOOK_MS)
        member.heard()
    assert member.topics == before | {"orders-new"}
    again.close()


def test_a_recorded_pattern_that_is_refused_now_keeps_its_topics(
    endpoint: KafkaEndpoint, member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Earlier releases interpreted patterns differently."""
    endpoint.talk.kill()
    monkeypatch.setattr(topic_pattern, "PROGRAM_MAX", 0)
    again = Conversation(tmp_path, clock=endpoint.talk.clock)
    member.peer = KafkaEndpoint(again).peer()
    before, member.topics = member.topics, set()
    answer = member.beat(subscribed_topic_names=())
    assert answer is not None
    assert (answer.error_code, member.topics) == (0, before)
    again.close()


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "[ab]{900}[ac]{900}"])
def test_patterns_that_are_not_understood_are_refused(endpoint: KafkaEndpoint, pattern: str):
    answer = Member(endpoint).join(pattern)
    assert answer is not None
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.error_message
    assert len(endpoint.translator.modern_groups.groups) == 0


def test_the_number_of_patterns_is_bounded(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch, member: Member
):
    monkeypatch.setattr(topic_patterns, "PATTERNS_MAX", 1)
    answer = Member(endpoint, "b").join("x")
    assert answer is not None
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert Member(endpoint, "c").join("orders-.*") is None, "a known one takes no room"


def test_one_group_leaves_room_for_the_patterns_of_others(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch, member: Member
):
    monkeypatch.setattr(topic_patterns, "PATTERNS_OF_GROUP_MAX", 2)
    assert Member(endpoint, "b").join("x") is None
    answer = Member(endpoint, "c").join("y")
    assert answer is not None
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    join = {"member_epoch": 0, "rebalance_timeout_ms": 60_000, "topic_partitions": ()}
    assert Member(endpoint, "d").beat(group_id="H", subscribed_topic_regex="y", **join) is None


def test_a_refused_heartbeat_takes_no_room_for_patterns(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch, member: Member
):
    """A member that is refused anyway could keep all others from subscribing."""
    monkeypatch.setattr(topic_patterns, "PATTERNS_MAX", 3)
    for number in range(10):
        stranger = Member(endpoint, f"stranger-{number}")
        answer = stranger.beat(member_epoch=5, subscribed_topic_regex=f"x{number}", rebalance_timeout_ms=1)
        assert answer is not None
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert Member(endpoint, "b").join("another") is None
