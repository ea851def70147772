"""Rebalances as a broker observes them: which member pulls which queue, and the cost."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.clock import Now
from libramq.groups.rebalance import (
    IDLE_MS_MAX,
    QUIET_MS,
    READING_MS_MAX,
    SETTLE_MS_MAX,
    UNREPORTED_MS,
    GroupRebalance,
)
from libramq.groups.rebalance_event import (
    EVENT_BYTES_MAX,
    QueueMove,
    Reason,
    RebalanceEvent,
    bounded_loads,
    bounded_members,
    decode_event,
    encode_event,
    split_moves,
)
from libramq.groups.unsettled import minimum_moves
from libramq.message.queue import MessageQueue


def at(ms: int) -> Now:
    """Return a moment at which both clocks agree."""
    return Now(wall_ms=ms, monotonic_ms=ms)


Q = [MessageQueue("T", "b", n) for n in range(4)]


class Group:
    """A group whose members pull when the test says so; time stands still in between."""

    def __init__(self, queues: list[MessageQueue] = Q) -> None:
        self.rebalance = GroupRebalance("G")
        self.queues = queues
        self.members: list[str] = []
        self.now_ms = 1_000_000
        self.wall_ahead_ms = 0
        self.events: list[RebalanceEvent] = []
        self.offsets = dict.fromkeys(queues, 0)

    @property
    def now(self) -> Now:
        return Now(wall_ms=self.now_ms + self.wall_ahead_ms, monotonic_ms=self.now_ms)

    def change(self, reason: Reason, who: str) -> RebalanceEvent:
        event = self.rebalance.changed(reason, who, self.members, now=self.now)
        self.events.append(event)
        return event

    def join(self, who: str) -> RebalanceEvent:
        self.members.append(who)
        return self.change(Reason.MEMBER_JOINED, who)

    def leave(self, who: str, reason: Reason = Reason.MEMBER_LEFT) -> RebalanceEvent:
        self.members.remove(who)
        return self.change(reason, who)

    def pull(self, who: str, *queues: int, offset: int = 0) -> None:
        for number in queues:
            self.rebalance.pulled(self.queues[number], who, offset, now_ms=self.now_ms)

    def deliver(self, who: str, queue: int, next_offset: int | None) -> None:
        self.rebalance.answered(self.queues[queue], who, next_offset, now_ms=self.now_ms)

    def settle(self, after_ms: int = QUIET_MS) -> list[RebalanceEvent]:
        self.now_ms += after_ms
        events = self.rebalance.settle(self.queues, now=self.now)
        self.events += events
        return events

    def settled(self, after_ms: int = QUIET_MS) -> RebalanceEvent:
        event = self.settle(after_ms)[-1]
        assert event.kind == "settled"
        return event


def steady(*members: str) -> Group:
    """Return a settled group whose members share the queues in runs."""
    group = Group()
    for member in members:
        group.join(member)
    share = len(Q) // len(members)
    for position, member in enumerate(members):
        group.pull(member, *range(position * share, (position + 1) * share))
    group.settled()
    group.now_ms += 60_000
    for position, member in enumerate(members):
        group.pull(member, *range(position * share, (position + 1) * share))
    return group


def test_the_first_member_starts_a_rebalance_that_settles_when_it_has_all_queues():
    group = Group()
    started = group.join("alice")
    assert (started.kind, started.reason, started.who, started.members) == (
        "started", "member_joined", "alice", ["alice"],
    )  # fmt: skip
    group.pull("alice", 0, 1, 2)
    assert group.settle() == []
    group.now_ms += 500
    group.pull("alice", 3)
    moved, settled = group.settle()
    assert [(move.queue, move.from_, move.to, move.stopped_ms) for move in moved.moves] == [
        (n, None, "alice", None) for n in range(4)
    ]
    assert (settled.moved, settled.minimum, settled.unowned, settled.loads) == (4, 4, 0, {"alice": 4})
    assert settled.time_to_stable_ms == QUIET_MS + 500
    assert settled.worst_pause_ms == 0
    assert group.rebalance.is_settled


def test_a_rebalance_settles_after_a_quiet_second():
    group = Group()
    group.join("alice")
    group.pull("alice", 0, 1, 2, 3)
    assert group.settle(QUIET_MS - 1) == []
    assert group.settle(1)


def test_a_join_moves_half_and_measures_pause_and_redelivery():
    group = steady("alice")
    group.deliver("alice", 2, 150)
    group.deliver("alice", 3, 70)
    last_read_ms = group.now_ms
    group.now_ms += 200
    group.join("bob")
    group.now_ms += 1_300
    group.pull("bob", 2, offset=100)
    group.now_ms += 100
    group.pull("bob", 3, offset=70)
    group.pull("alice", 0, 1)
    moved, settled = group.settle()
    assert [(m.queue, m.from_, m.to, m.stopped_ms, m.pause_ms, m.redelivered) for m in moved.moves] == [
        (2, "alice", "bob", last_read_ms, 1_500, 50),
        (3, "alice", "bob", last_read_ms, 1_600, 0),
    ]
    assert (settled.moved, settled.minimum, settled.worst_pause_ms) == (2, 2, 1_600)
    assert settled.redelivered_upper_bound == 50
    assert settled.time_to_stable_ms == 1_400
    assert settled.loads == {"alice": 2, "bob": 2}


def test_a_held_pull_reads_until_the_rebalance_begins():
    """A consumer that waits at the end of its queue still reads it, however old its pull is."""
    group = steady("alice")
    group.now_ms += 14_000
    group.join("bob")
    group.now_ms += 1_000
    group.pull("bob", 2, 3)
    moved, _ = group.settle()
    assert [move.pause_ms for move in moved.moves] == [1_000, 1_000]


def test_an_empty_pull_counts_as_a_read():
    group = steady("alice")
    group.now_ms += 14_000
    group.deliver("alice", 3, None)
    group.now_ms += 10
    group.leave("alice")
    group.join("bob")
    group.now_ms += 500
    group.pull("bob", 0, 1, 2, 3)
    moved, _ = group.settle()
    pauses = {move.queue: move.pause_ms for move in moved.moves}
    assert pauses == {0: 500, 1: 500, 2: 500, 3: 510}


def test_a_clean_departure_and_a_kill_are_distinguished():
    group = steady("alice", "bob")
    assert group.leave("bob").reason == "member_left"
    group.pull("alice", 2, 3)
    settled = group.settled()
    assert (settled.moved, settled.minimum, settled.loads) == (2, 2, {"alice": 4})
    group.join("bob")
    group.pull("bob", 2, 3)
    group.settled()
    assert group.leave("bob", Reason.CONNECTION_CLOSED).reason == "connection_closed"


def test_queues_of_a_dead_member_have_no_owner_until_the_next_pull():
    group = steady("alice", "bob")
    group.leave("bob", Reason.CONNECTION_CLOSED)
    assert group.settle(SETTLE_MS_MAX - 1) == []
    settled = group.settled(1)
    assert (settled.unowned, settled.moved, settled.loads) == (2, 0, {"alice": 2})


@pytest.mark.parametrize(
    ("reason", "bound"),
    [(Reason.CONNECTION_CLOSED, None), (Reason.SESSION_EXPIRED, None), (Reason.MEMBER_LEFT, 0)],
)
def test_without_a_successor_it_is_not_known_what_a_killed_member_leaves(reason, bound):
    """The report was "no message was redelivered"; only a member that leaves cleanly has committed."""
    group = steady("alice")
    group.deliver("alice", 0, 32)
    group.leave("alice", reason)
    group.queues = []
    settled = group.settled()
    assert (settled.member_count, settled.redelivered_upper_bound) == (0, bound)


def test_changes_before_settling_are_one_rebalance():
    """bob joins and dies before anything moved, carol joins: one rebalance, three epochs."""
    group = steady("alice")
    epochs = [group.join("bob").epoch]
    group.now_ms += 300
    epochs.append(group.leave("bob", Reason.CONNECTION_CLOSED).epoch)
    group.now_ms += 300
    epochs.append(group.join("carol").epoch)
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
    group.now_ms += 700
    group.pull("carol", 2, 3)
    settled = group.settled()
    assert (settled.epoch, settled.moved, settled.time_to_stable_ms) == (epochs[-1], 2, 1_300)
    assert [event.kind for event in group.events].count("settled") == 2


def test_a_queue_that_returns_did_not_move_but_its_redelivery_counts():
    group = steady("alice")
    group.deliver("alice", 3, 40)
    group.join("bob")
    group.pull("bob", 2)
    group.pull("bob", 3, offset=30)
    group.deliver("bob", 3, 45)
    group.now_ms += 100
    group.pull("alice", 3, offset=30)
    settled = group.settled()
    assert settled.moved == 1
    assert settled.redelivered_upper_bound == 10 + 15


def test_the_redelivery_of_a_queue_read_before_the_broker_started_is_unknown():
    """A restarted broker does not know what the previous owner was sent; unknown must not count as none."""
    group = Group()
    group.rebalance = GroupRebalance("G", sent_before=lambda queue: None if queue == Q[3] else 0)
    group.join("alice")
    group.pull("alice", 0, 1, 2, 3, offset=100)
    moved, settled = group.settle()
    assert settled.redelivered_upper_bound is None
    assert [move.redelivered_bound for move in moved.moves] == [0, 0, 0, None]
    assert decode_event(encode_event(moved)) == moved
    assert encode_event(moved).count(b'"redelivered":0') == 4, "0.1.0 needs a number"
    assert encode_event(moved).count(b"redelivered_known") == 1
    assert b"redelivered" not in encode_event(settled)
    group.join("bob")
    group.deliver("alice", 3, 132)
    group.pull("bob", 2, offset=100)
    group.pull("bob", 3, offset=110)
    assert group.settled().redelivered_upper_bound == 22, "known from here on"


def test_uncommitted_messages_of_an_empty_group_are_redelivered_to_the_next_member():
    group = Group()
    group.rebalance = GroupRebalance("G", sent_before={Q[0]: 40, Q[1]: 10}.get)
    group.rebalance.opened(Q[0], "alice", now_ms=group.now_ms)
    group.join("alice")
    group.pull("alice", 0, offset=30)
    assert group.settle(SETTLE_MS_MAX)[-1].redelivered_upper_bound == 10


@pytest.mark.parametrize(("sent", "bound"), [(0, 0), (5, None), (None, None)])
def test_the_redelivery_of_a_queue_not_yet_read_by_its_new_owner_is_unknown(sent, bound):
    """The new owner is paused; where nothing was sent before, nothing can be redelivered."""
    group = Group()
    group.rebalance = GroupRebalance("G", sent_before=lambda _: sent)
    group.join("alice")
    for queue in Q:
        group.rebalance.opened(queue, "alice", now_ms=group.now_ms)
    group.rebalance.completed(["alice"], uncommitted=Q)
    assert group.settled().redelivered_upper_bound == bound


@pytest.mark.parametrize(("lost", "bound"), [([], 0), ([Q[3]], 1_351 - 20)])
def test_members_that_join_a_new_group_one_after_the_other_repeat_nothing(lost, bound):
    """The first one's prefetched messages counted, although it had committed before releasing the queue."""
    group = Group()
    group.join("alice")
    group.rebalance.completed(["alice"], uncommitted=Q)
    for queue in Q:
        group.rebalance.opened(queue, "alice", now_ms=group.now_ms)
    group.pull("alice", 0, 1, 2, 3)
    group.deliver("alice", 3, 1_351)
    group.join("bob")
    group.rebalance.completed(["alice", "bob"], uncommitted=lost)
    group.rebalance.opened(Q[3], "bob", was_open=True, now_ms=group.now_ms)
    group.pull("bob", 3, offset=20)
    assert group.settled().redelivered_upper_bound == bound


@pytest.mark.parametrize("is_coordinated", [False, True])
def test_an_opening_without_a_commit_is_not_the_first(is_coordinated):
    group = Group()
    group.join("alice")
    if is_coordinated:
        group.rebalance.completed(["alice"], uncommitted=Q)
    for queue in Q:
        group.rebalance.opened(queue, "alice", was_open=queue == Q[1], now_ms=group.now_ms)
    group.pull("alice", 0, 1, 2, 3)
    assert group.settled().redelivered_upper_bound is None


def test_a_member_that_joins_and_leaves_at_once_moves_nothing():
    """The queues had no owner before, and have none afterwards."""
    group = Group()
    group.join("alice")
    group.pull("alice", 0, 1, 2, 3)
    group.now_ms += 300
    group.leave("alice")
    assert [event.kind for event in group.settle()] == ["settled"]
    settled = group.events[-1]
    assert (settled.moved, settled.minimum, settled.member_count) == (0, 0, 0)


def test_a_queue_that_passes_through_two_members_moved_once():
    group = steady("alice")
    stopped_ms = group.now_ms
    group.deliver("alice", 3, 1)
    group.join("bob")
    group.join("carol")
    group.now_ms += 100
    group.pull("bob", 2, 3)
    group.now_ms += 100
    group.pull("carol", 3)
    moved, _ = group.settle()
    (last,) = [move for move in moved.moves if move.queue == 3]
    assert (last.from_, last.to, last.stopped_ms) == ("alice", "carol", stopped_ms)


def test_idle_members_keep_a_rebalance_open_for_one_round():
    group = steady("alice")
    group.join("bob")
    assert group.settle(IDLE_MS_MAX - 1) == []
    settled = group.settled(1)
    assert settled.loads == {"alice": 4, "bob": 0}
    assert (settled.moved, settled.minimum) == (0, 0)


def test_more_members_than_queues_do_not_keep_it_open():
    group = Group(Q[:1])
    group.join("alice")
    group.join("bob")
    group.pull("bob", 0)
    assert group.settled().loads == {"alice": 0, "bob": 1}


def test_a_group_can_be_forgotten_after_its_last_member_left():
    group = steady("alice")
    group.leave("alice")
    assert not group.rebalance.is_forgettable
    group.queues = []
    settled = group.settled()
    assert (settled.members, settled.loads, settled.minimum) == ([], {}, 0)
    assert group.rebalance.is_forgettable


def test_a_pull_by_another_outside_a_rebalance_changes_the_owner_quietly():
    group = steady("alice", "bob")
    group.pull("alice", 3)
    group.join("carol")
    group.pull("carol", 3)
    moved, _ = group.settle()
    assert [(move.from_, move.to) for move in moved.moves] == [("alice", "carol")]


def test_an_opening_before_its_rebalance_is_known_counts_for_it():
    """If the link to the coordinator is blocked, members get grants before this broker gets PEER_STARTED."""
    rebalance = GroupRebalance("G")
    rebalance.changed(Reason.MEMBER_JOINED, "alice", ["alice"], epoch=1, is_part=True, now=at(0))
    for queue in Q:
        rebalance.opened(queue, "alice", now_ms=10)
        rebalance.pulled(queue, "alice", 0, is_opened=True, now_ms=20)
    rebalance.completed(["alice"])
    openings = dict.fromkeys(Q, True)
    assert rebalance.settle(Q, openings=openings, now=at(2_000))[-1].kind == "settled"
    rebalance.opened(Q[0], "bob", now_ms=60_000)
    rebalance.pulled(Q[0], "bob", 0, is_opened=True, now_ms=60_500)
    assert rebalance.is_settled
    rebalance.changed(Reason.MEMBER_JOINED, "bob", ["alice", "bob"], epoch=2, is_part=True, now=at(61_000))
    rebalance.opened(Q[1], "bob", now_ms=61_100)
    rebalance.replaced("bob", "bobby", "till", now_ms=61_200)
    rebalance.completed(["alice", "bobby"])
    moved, settled = rebalance.settle(Q, openings=openings, now=at(63_000))
    assert [(move.queue, move.from_, move.to, move.resumed_ms) for move in moved.moves] == [
        (0, "alice", "bobby", 60_500),
        (1, "alice", "bobby", 61_100),
    ]
    assert (settled.moved, settled.loads, settled.time_to_stable_ms) == (2, {"alice": 2, "bobby": 2}, 100)
    rebalance.changed(Reason.MEMBER_JOINED, "cora", ["alice", "bobby"], epoch=3, is_part=True, now=at(90_000))
    rebalance.completed(["alice", "bobby"])
    (settled,) = rebalance.settle(Q, openings=openings, now=at(92_000))
    assert settled.moved == 0


@pytest.mark.parametrize(
    ("gone_ms", "pause_ms"), [(500, 1_500), (None, 2_000)], ids=["seen to end", "frozen"]
)
def test_a_static_members_restart_is_an_event_with_the_pause_of_its_queues(gone_ms, pause_ms):
    """A held pull counts as reading until its connection ends, or, without an end, until it was made."""
    group = steady("alice", "bob")
    group.deliver("bob", 2, 7)
    group.pull("bob", 2, 3, offset=7)
    began_ms = group.now_ms
    if gone_ms is not None:
        group.rebalance.gone("bob", began_ms + gone_ms)
    group.now_ms += 1_000
    group.rebalance.replaced("bob", "bob-2", "till", now_ms=group.now_ms)
    group.members = ["alice", "bob-2"]
    group.pull("bob-2", 2, offset=5)
    assert group.rebalance.restarted(now=group.now) == []
    group.now_ms += 1_000
    group.pull("bob-2", 3, offset=7)
    (event,) = group.rebalance.restarted(now=group.now)
    assert (event.kind, event.reason, event.who) == ("restarted", "static_member_restarted", "till")
    assert (event.worst_pause_ms, event.moved, event.unowned) == (pause_ms, 0, 0)
    assert event.redelivered_upper_bound == 2  # Of the first queue 5 and 6.
    assert not group.rebalance.restarts
    assert group.rebalance.is_settled
    group.leave("bob-2")
    group.join("cora")
    group.pull("cora", 2, 3)
    assert group.settled().moved == 2


def test_a_static_member_restarted_again_before_it_reads_has_one_event():
    """A process crashes at its start: its queues stand still from its first end."""
    group = steady("alice", "bob")
    group.rebalance.gone("bob", group.now_ms)
    for former, client_id in (("bob", "bob-2"), ("bob-2", "bob-3"), ("bob-3", "bob-4")):
        group.now_ms += 1_000
        group.rebalance.replaced(former, client_id, "till", now_ms=group.now_ms)
        group.rebalance.gone(client_id, group.now_ms)
        if client_id == "bob-3":
            group.pull("bob-3", 2)
    group.pull("bob-4", 2, 3)
    (event,) = group.rebalance.restarted(now=group.now)
    assert (event.worst_pause_ms, event.unowned) == (3_000, 0)
    group.now_ms += SETTLE_MS_MAX
    assert group.rebalance.restarted(now=group.now) == []
    assert not group.rebalance.restarts


def test_a_restart_that_leaves_queues_unread_is_recorded_after_a_while():
    group = steady("alice", "bob")
    group.rebalance.replaced("bob", "bob-2", "till", now_ms=group.now_ms)
    group.now_ms += SETTLE_MS_MAX
    (event,) = group.rebalance.restarted(now=group.now)
    assert (event.unowned, event.worst_pause_ms) == (2, 0)


@pytest.mark.parametrize(("opened_ms", "moved"), [(10_000, 1), (9_999, 0)])
def test_a_queue_opened_long_before_a_rebalance_has_its_owner(opened_ms: int, moved: int):
    """It was opened in a rebalance that this broker did not see; the next one did not move the queue."""
    rebalance = GroupRebalance("G")
    rebalance.opened(Q[0], "alice", now_ms=opened_ms)
    started_ms = 10_000 + UNREPORTED_MS
    rebalance.changed(
        Reason.MEMBER_JOINED, "bob", ["alice", "bob"], epoch=2, is_part=True, now=at(started_ms)
    )
    rebalance.completed(["alice", "bob"])
    settled = rebalance.settle(Q[:1], openings={Q[0]: True}, now=at(started_ms + 2_000))[-1]
    assert (settled.moved, settled.loads, settled.unowned) == (moved, {"alice": 1, "bob": 0}, 0)


def test_a_rebalance_settles_only_when_every_opener_is_known():
    """The member's heartbeat may be late, and the coordinator, which knows its name, at another broker."""
    rebalance = GroupRebalance("G")
    rebalance.changed(Reason.MEMBER_JOINED, "alice", ["alice"], epoch=1, is_part=True, now=at(0))
    rebalance.opened(Q[0], None, now_ms=10)
    rebalance.opened(Q[1], None, now_ms=20)
    rebalance.opened(Q[1], "alice", now_ms=30)
    rebalance.completed(["alice"])
    openings = dict.fromkeys(Q[:2], True)
    assert rebalance.settle(Q[:2], openings=openings, now=at(5_000)) == []
    rebalance.pulled(Q[0], "alice", 0, is_opened=True, now_ms=5_100)
    moved, settled = rebalance.settle(Q[:2], openings=openings, now=at(7_000))
    assert [(move.queue, move.from_, move.to) for move in moved.moves] == [
        (1, None, "alice"),
        (0, None, "alice"),
    ]
    assert (settled.moved, settled.loads, settled.unowned) == (2, {"alice": 2}, 0)


def test_sequence_numbers_have_no_gaps():
    group = steady("alice", "bob")
    group.leave("bob")
    group.pull("alice", 2, 3)
    group.settle()
    assert [event.seq for event in group.events] == list(range(1, len(group.events) + 1))


# The minimum.


def fewest(before: list[str | None], loads: dict[str, int]) -> int:
    """Return the fewest moves, by trying every allocation with these loads, however members share them."""
    members = list(loads)
    best = len(before)
    for order in permutations(loads.values()):
        slots = [member for member, load in zip(members, order, strict=True) for _ in range(load)]
        for given_to in set(permutations(slots)):
            best = min(best, sum(a != b for a, b in zip(before, given_to, strict=True)))
    return best


@given(st.data())
def test_the_minimum_of_moves_equals_brute_force(data):
    members = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    before = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=5))
    after = data.draw(st.lists(st.sampled_from(members), min_size=len(before), max_size=len(before)))
    counted = Counter(after)
    loads = {member: counted[member] for member in members}
    owners = {MessageQueue("T", "b", n): owner for n, owner in enumerate(before) if owner is not None}
    minimum = minimum_moves(owners, loads)
    assert minimum == fewest(before, loads)
    assert minimum <= sum(a != b for a, b in zip(before, after, strict=True))


def test_between_even_allocations_the_minimum_is_zero():
    before = {queue: "ab"[queue.queue_id // 2] for queue in Q}
    assert minimum_moves(before, {"a": 2, "b": 2}) == 0
    assert minimum_moves(before, {"a": 4}) == 2
    assert minimum_moves({}, {}) == 0


@given(st.lists(st.tuples(st.sampled_from("jlkps"), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_loads_and_moves_always_add_up(steps):
    """Joins, leaves, kills, pulls and passing time come in any order."""
    group = Group()
    for step, who, queue in steps:
        name = f"m{who}"
        if step == "j" and name not in group.members:
            group.join(name)
        elif step in "lk" and name in group.members:
            group.leave(name, Reason.MEMBER_LEFT if step == "l" else Reason.CONNECTION_CLOSED)
        elif step == "p" and name in group.members:
            group.pull(name, queue)
        else:
            group.settle(QUIET_MS)
    group.settle(SETTLE_MS_MAX)
    assert group.rebalance.is_settled
    for event in group.events:
        assert decode_event(encode_event(event)) == event
        if event.kind == "settled":
            assert sum(event.loads.values()) + event.unowned == len(Q)
            assert 0 <= event.minimum <= len(Q)
            assert event.worst_pause_ms >= 0
        if event.kind == "moved":
            assert all(move.from_ != move.to for move in event.moves)


# The event's bytes.


def test_an_event_is_json_with_the_fields_of_its_kind_only():
    group = Group()
    assert encode_event(group.join("alice")) == (
        b'{"v":1,"group":"G","epoch":1,"seq":1,"at_ms":1000000,"kind":"started","reason":"member_joined",'
        b'"who":"alice","members":["alice"],"member_count":1}'
    )


def move(n: int, name: str) -> QueueMove:
    return QueueMove(
        topic="T" * 127,
        broker="b" * 127,
        queue=n,
        from_=name,
        to=name + "2",
        stopped_ms=1,
        resumed_ms=2,
        redelivered=3,
    )


def test_no_event_is_larger_than_its_bound():
    names = [f"{n:04}" + "\x01ü" * 120 for n in range(5_000)]
    rebalance = GroupRebalance("G" * 120)
    started = rebalance.changed(Reason.MEMBER_JOINED, names[0], names, now=at(1))
    assert started.member_count == 5_000
    assert 50 < len(started.members) <= 200
    assert len(encode_event(started)) <= EVENT_BYTES_MAX
    queues = [MessageQueue("T" * 127, "b" * 127, n) for n in range(4_000)]
    for queue in queues:
        rebalance.pulled(queue, names[queue.queue_id % 100], 0, now_ms=2)
    events = rebalance.settle(queues, now=at(SETTLE_MS_MAX + 1))
    assert max(len(encode_event(event)) for event in events) <= EVENT_BYTES_MAX
    assert sum(len(event.moves) for event in events[:-1]) == 4_000
    assert len(events) > 2


def test_moves_are_split_in_order_and_none_is_lost():
    moves = [move(n, "client" * 30) for n in range(2_000)]
    parts = list(split_moves(moves))
    assert [one for part in parts for one in part] == moves
    assert len(parts) > 1
    assert list(split_moves([])) == []


def test_only_the_largest_loads_are_kept_where_not_all_fit():
    loads = {f"{n:05}" + "x" * 200: n for n in range(1_000)}
    kept = bounded_loads(loads)
    assert 0 < len(kept) < 1_000
    assert min(kept.values()) == 1_000 - len(kept)
    assert bounded_loads({"a": 0, "b": 2}) == {"a": 0, "b": 2}
    assert bounded_members(["a", "b"]) == ["a", "b"]


def test_double_reading_is_recorded_until_the_former_owner_stops():
    """bob takes queue 2 at 1,000 ms; alice, who has not noticed yet, pulls it once more 300 ms later."""
    group = steady("alice")
    group.join("bob")
    group.now_ms += 1_000
    group.pull("bob", 2, 3)
    group.now_ms += 300
    group.pull("alice", 2)
    group.now_ms += 50
    group.pull("bob", 2)
    moved, settled = group.settle()
    assert {m.queue: (m.double_owner_ms, m.pause_ms) for m in moved.moves} == {2: (300, 1_000), 3: (0, 1_000)}
    assert settled.time_to_stable_ms == 1_300


def test_the_catch_up_peak_is_the_busiest_second_before_a_pull_waited():
    """bob reads 32 messages every 10 ms of a backlog in queue 2, then waits at its end."""
    group = steady("alice")
    group.join("bob")
    group.now_ms += 1_000
    for pull in range(10):
        group.pull("bob", 2, offset=32 * pull)
        group.deliver("bob", 2, 32 * pull + 32)
        group.now_ms += 10
    group.pull("bob", 2, offset=320)
    group.now_ms += 5
    group.deliver("bob", 2, 9_999)
    group.pull("bob", 2, offset=9_999)
    group.deliver("bob", 2, 20_000)
    settled = group.settled()
    assert settled.peak_catch_up_rate == 320
    assert settled.duplicates_reported == 0


def test_messages_of_different_seconds_are_not_one_peak():
    group = steady("alice")
    group.join("bob")
    group.now_ms += 1_000
    for pull in range(3):
        group.pull("bob", 2, offset=32 * pull)
        group.deliver("bob", 2, 32 * pull + 32)
        group.now_ms += 1_000
    assert group.settled().peak_catch_up_rate == 32


def test_members_that_alternate_on_a_queue_are_double_readers():
    """Both pull queue 2 in turn: a single pull may be late, but the second takeover means two readers."""
    group = steady("alice", "bob")
    since_ms = group.now_ms
    for who in ("alice", "bob"):
        assert group.rebalance.contested.read_by_two(since_ms=since_ms, now_ms=group.now_ms) == []
        group.now_ms += 15_000
        group.pull(who, 2)
    assert group.rebalance.contested.read_by_two(since_ms=since_ms, now_ms=group.now_ms) == [Q[2]]
    assert group.rebalance.contested.read_by_two(since_ms=since_ms + 15_000, now_ms=group.now_ms) == []
    later_ms = group.now_ms + READING_MS_MAX
    assert group.rebalance.contested.read_by_two(since_ms=since_ms, now_ms=later_ms) == []
    group.leave("alice")
    assert group.rebalance.contested.read_by_two(since_ms=since_ms, now_ms=group.now_ms) == []


def test_unread_queues_of_a_settled_group_are_recorded():
    group = steady("alice", "bob")
    assert group.rebalance.read_by_none(Q) == []
    group.leave("bob")
    assert group.rebalance.read_by_none(Q) == []
    group.settle(SETTLE_MS_MAX)
    assert group.rebalance.read_by_none(Q) == Q[2:]


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 3_600_000], ids=["back", "forward"])
def test_setting_the_wall_clock_does_not_change_a_rebalance(set_by_ms):
    """An hour's shift between start and end changes neither when the rebalance settles nor its pauses."""
    group = steady("alice")
    group.join("bob")
    group.wall_ahead_ms = set_by_ms
    group.now_ms += 300
    group.pull("bob", 2, 3)
    assert group.settle(QUIET_MS - 1) == [], "it has not been quiet yet"
    moved, settled = group.settle(1)
    assert moved.moves is not None
    assert [move.pause_ms for move in moved.moves] == [300, 300]
    assert (settled.time_to_stable_ms, settled.worst_pause_ms) == (300, 300)
    assert (settled.at_ms, moved.moves[0].resumed_ms) == (group.now.wall_ms, group.now.wall_ms - QUIET_MS)
