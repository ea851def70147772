"""KIP-848 groups whose broker is killed and restarted: members continue where they were."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.errors import BrokerError
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.group import COLLECT_MS, INITIAL_DELAY_MS, RETURN_MS
from libramq.groups.modern.values import LEAVES, LEAVES_FOR_A_WHILE
from libramq.protocols.kafka.group_requests import MODERN_HOLD_MS
from libramq.wire.kafka.error_code import ErrorCode
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint
from tests.protocols.kafka.test_groups import join_request
from tests.protocols.kafka.test_modern_groups import Member, owned
from tests.protocols.kafka.test_rebalances import history


class Restarts:
    """A broker that is killed and restarted, and the members of its groups."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = options
        self.talk = Conversation(path, **options)
        self.talk.create_topic("T", queues=2)
        self.endpoint = KafkaEndpoint(self.talk)

    def kill(self, *members: Member) -> None:
        """Kill the broker and restart it; members reconnect to it."""
        self.talk.kill()
        self.talk = Conversation(self.path, clock=self.talk.clock, **self.options)
        self.endpoint = KafkaEndpoint(self.talk)
        for each in members:
            each.peer = self.endpoint.peer()

    def pair(self, **fields: Any) -> tuple[Member, Member]:
        """Return two members with one partition each. `fields` are the second member's."""
        first, second = Member(self.endpoint, "a"), Member(self.endpoint, "b", **fields)
        self.talk.advance(INITIAL_DELAY_MS)
        first.heard()
        second.heard()
        assert sorted(first.partitions + second.partitions) == [0, 1]
        return first, second


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[Restarts]:
    restarts = Restarts(tmp_path)
    yield restarts
    restarts.talk.close()


def test_members_keep_their_partitions_and_get_a_later_epoch(restarts: Restarts):
    members = restarts.pair()
    before = [(each.epoch, each.partitions) for each in members]
    restarts.kill(*members)
    for each in members:
        each.hold_beat()
        each.heard()
    after = [(each.epoch, each.partitions) for each in members]
    assert [partitions for _, partitions in after] == [partitions for _, partitions in before]
    assert min(epoch for epoch, _ in after) > max(epoch for epoch, _ in before)
    assert [each.commit(0) for each in members] == [ErrorCode.NONE] * 2
    restarts.talk.advance(MODERN_HOLD_MS)
    assert len(history(restarts.talk)) == 1, "the restart was no rebalance"


def test_epochs_go_on_where_a_power_cut_took_the_groups_record_and_left_its_members(restarts: Restarts):
    """The journal lost one page but not a later one: members got epoch 101 after 102."""
    members = restarts.pair()
    restarts.kill(*members)
    for each in members:
        each.hold_beat()
        each.heard()
    last = max(each.epoch for each in members)
    journal = max((restarts.path / "config").glob("kafkaGroups.json.journal.*"))
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [bytes(len(line) - 1) + b"\n" if line.startswith(b'{"name":"G"') else line for line in lines]
    assert kept != lines
    journal.write_bytes(b"".join(kept))
    restarts.kill(*members)
    for each in members:
        each.hold_beat()
        each.heard()
        assert each.epoch > last


def test_a_kill_during_a_move_never_assigns_a_partition_twice(restarts: Restarts):
    first = Member(restarts.endpoint, "a")
    restarts.talk.advance(INITIAL_DELAY_MS)
    first.heard()
    first.hold_beat()
    second = Member(restarts.endpoint, "b")
    restarts.talk.advance(COLLECT_MS)
    first.heard()
    assert len(first.partitions) == 1
    restarts.kill(first, second)
    second.hold_beat(
        member_epoch=0, rebalance_timeout_ms=60_000, subscribed_topic_names=("T",), topic_partitions=()
    )
    assert second.heard() is None, "the first one has not given up its partition yet"
    first.hold_beat(topic_partitions=owned(*first.partitions))
    first.heard()
    second.heard()
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_a_member_that_does_not_return_is_given_up(restarts: Restarts):
    first, second = restarts.pair()
    restarts.kill(first)
    for _ in range(RETURN_MS // MODERN_HOLD_MS + 2):
        first.hold_beat()
        restarts.talk.advance(MODERN_HOLD_MS)
        first.heard()
    assert first.partitions == (0, 1)
    second.peer = restarts.endpoint.peer()
    assert second.refused() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_returns_under_another_id_has_its_partitions_at_once(restarts: Restarts):
    _, second = restarts.pair(instance_id="i")
    restarts.kill()
    other = Member(restarts.endpoint, "c", instance_id="i")
    other.heard()
    assert other.partitions == second.partitions


def test_a_static_member_that_left_for_a_while_is_expected_back(restarts: Restarts):
    first, second = restarts.pair(instance_id="i")
    second.hold_beat(member_epoch=LEAVES_FOR_A_WHILE)
    restarts.kill(first)
    first.hold_beat()
    restarts.talk.advance(MODERN_HOLD_MS)
    first.heard()
    assert len(first.partitions) == 1
    other = Member(restarts.endpoint, "c", instance_id="i")
    other.heard()
    assert other.partitions == second.partitions


def test_where_there_are_other_brokers_members_join_anew(restarts: Restarts, monkeypatch: pytest.MonkeyPatch):
    """One of the other brokers has coordinated the group since the record was written."""
    first, second = restarts.pair()
    last = first.epoch
    monkeypatch.setattr(ClusterView, "is_alone", property(lambda _: False))
    restarts.kill(first, second)
    assert first.refused() is ErrorCode.UNKNOWN_MEMBER_ID
    for each in (first, second):
        each.join()
    restarts.talk.advance(INITIAL_DELAY_MS)
    for each in (first, second):
        each.heard()
    assert min(first.epoch, second.epoch) > last
    restarts.endpoint.translator.modern_groups.moved()
    first.hold_beat()
    assert first.heard() is None, "the group is ours"


def test_a_group_that_everybody_left_goes_on_with_later_epochs(restarts: Restarts):
    first, second = restarts.pair()
    for each in (first, second):
        each.hold_beat(member_epoch=LEAVES)
        each.peer.answers()
    last = restarts.talk.broker.tables.modern_groups.by_name["G"].group
    assert last is not None
    assert list(restarts.talk.broker.tables.modern_groups.by_name) == ["G"], "no member is left"
    again = Member(restarts.endpoint, "c")
    restarts.talk.advance(INITIAL_DELAY_MS)
    again.heard()
    assert again.epoch > last.epoch
    again.hold_beat(member_epoch=LEAVES)
    restarts.kill()
    later = Member(restarts.endpoint, "d")
    restarts.talk.advance(INITIAL_DELAY_MS)
    later.heard()
    assert later.epoch > again.epoch


def test_a_clean_stop_keeps_the_group_too(restarts: Restarts):
    first, second = restarts.pair()
    restarts.talk.close()
    restarts.kill(first, second)
    for each in (first, second):
        each.hold_beat()
        assert each.heard() is not None
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_a_restored_group_keeps_other_protocols_out(restarts: Restarts):
    restarts.pair()
    restarts.kill()
    with pytest.raises(BrokerError):
        restarts.talk.broker.groups.require_not_taken("G")
    assert restarts.endpoint.peer().ask(join_request()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_answers_wait_for_the_disk_under_sync_flush(tmp_path: Path):
    restarts = Restarts(tmp_path, flush_disk_type="SYNC_FLUSH")
    member = Member(restarts.endpoint, "a")
    restarts.talk.advance(INITIAL_DELAY_MS)
    assert member.heard() is None
    restarts.talk.flush()
    assert member.heard() is not None
    assert member.partitions == (0, 1)
    restarts.talk.close()


def test_a_revocation_that_could_not_be_recorded_is_announced_again(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch
):
    """The member's next heartbeat returned no news; it was removed when its revocation time was over."""
    member = Member(restarts.endpoint, "a")
    restarts.talk.advance(INITIAL_DELAY_MS)
    member.heard()
    assert member.partitions == (0, 1)

    def refuse(*_: object) -> None:
        raise OSError("full")

    Member(restarts.endpoint, "b")
    with monkeypatch.context() as full:
        full.setattr(restarts.talk.broker.tables.modern_groups, "_record", refuse)
        restarts.talk.advance(COLLECT_MS)
        assert member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    member.hold_beat()
    member.heard()
    assert len(member.partitions) == 1


def test_nothing_is_assigned_while_the_disk_refuses_records(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(restarts.talk.broker.tables.modern_groups, "_record", refuse)
    member = Member(restarts.endpoint, "a")
    restarts.talk.advance(INITIAL_DELAY_MS)
    (answer,) = member.peer.answers()
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    member.join()
    restarts.talk.advance(INITIAL_DELAY_MS)
    member.heard()
    assert member.partitions == (0, 1)
