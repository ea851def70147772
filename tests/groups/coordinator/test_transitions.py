"""The table of the coordinated group: each cell by itself, each transition in walks, and its drawing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from random import Random

import pytest

from libramq.codes import ResponseCode
from libramq.errors import BrokerError
from libramq.fencing import Claim, FenceGrant, FenceReport
from libramq.groups import limits
from libramq.groups.coordinator import balance as group_balance
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator import target_assignment as group_assigning
from libramq.groups.coordinator import transitions
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.groups.coordinator.coordinated_group import CoordinatedGroup
from libramq.groups.coordinator.inquiry import PARTING_MS
from libramq.groups.coordinator.state import State
from libramq.groups.coordinator.transitions import ALIVE, TABLE
from libramq.groups.rebalance_event import Reason
from tests.groups.coordinator.coordinated import GROUP, Consumer, Gather, Surroundings, queues_of
from tests.groups.coordinator.test_coordinator_machine import Cluster

Seen = set[tuple[type[ev.Event], State, State]]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Record every transition of every group, and refuse transitions missing from the table."""
    seen: Seen = set()
    handle = transitions.handle

    def note(group: CoordinatedGroup, event: ev.Event, *, now_ms: int) -> None:
        before, kind = group.state, type(event)
        assert before in TABLE[kind], f"{kind.__name__} in {before.name}"
        try:
            handle(group, event, now_ms=now_ms)
        finally:
            then = group.state
            assert then in TABLE[kind][before].then, f"{kind.__name__} in {before.name}: {then.name}"
            seen.add((kind, before, then))

    with monkeypatch.context() as patch:
        patch.setattr(transitions, "handle", note)
        yield seen


def core(group: Surroundings) -> CoordinatedGroup:
    return group.coordinator._groups[GROUP]


# How a group enters each state, with alice and bob as its members (except in EMPTY).


def empty() -> Surroundings:
    group = Surroundings()
    group.leave(group.add("alice"))
    group.run(100)
    return group


def stable() -> Surroundings:
    group = Surroundings()
    group.add("alice")
    group.add("bob")
    group.run(100)
    return group


def assigning() -> Surroundings:
    group = stable()
    group.add("carol")
    return group


def reconciling() -> Surroundings:
    group = stable()
    for consumer in group.consumers.values():
        consumer.drains = False
    group.add("carol")
    group.run(100)
    return group


def gathering() -> Surroundings:
    group = stable()
    group.happen(ev.FencesInDoubt())
    return group


def awaiting() -> Surroundings:
    """Return a group whose fences report a member that is not connected."""
    group = gathering()
    open_to_zoe = FenceReport(epoch=9, openings={queues_of("T", 1)[0]: Claim("zoe", 9)})
    group.happen(ev.FencesReported([open_to_zoe]))
    return group


def self_allocating() -> Surroundings:
    group = stable()
    group.stock("java")
    group.run(100)
    return group


def parting() -> Surroundings:
    group = self_allocating()
    group.stock()
    return group


def returning() -> Surroundings:
    """Return a group whose two members do not poll again."""
    group = parting()
    for consumer in group.consumers.values():
        consumer.is_silent = True
    group.now_ms += PARTING_MS
    group.do(group.coordinator.tick(group.now_ms))
    return group


WAYS: dict[State, Callable[[], Surroundings]] = {
    State.EMPTY: empty,
    State.ASSIGNING: assigning,
    State.RECONCILING: reconciling,
    State.STABLE: stable,
    State.GATHERING: gathering,
    State.AWAITING: awaiting,
    State.SELF_ALLOCATING: self_allocating,
    State.PARTING: parting,
    State.RETURNING: returning,
}


def happen(group: Surroundings, kind: type[ev.Event]) -> None:
    """Make an event happen to a group, by the calls and times that cause it where there are any."""
    coordinator, now_ms = group.coordinator, group.now_ms
    alice = group.consumers.get("alice", Consumer("alice", peer="p"))
    calls: dict[type[ev.Event], Callable[[], object]] = {
        ev.Joined: lambda: group.add("dave"),
        ev.Polled: lambda: group.poll(alice),
        ev.Released: lambda: group.release(alice),
        ev.Left: lambda: group.leave(alice),
        ev.Removed: lambda: group.remove("alice"),
        ev.ConnectionClosed: lambda: group.do(coordinator.closed(alice.peer, now_ms=now_ms)),
        ev.QueuesChanged: lambda: group.tell("T", queues_of("T", 9)),
        ev.QueuesRemoved: lambda: group.happen(ev.QueuesRemoved("T", "b", Reason.OPERATOR)),
        ev.StockMembersJoined: lambda: group.stock("java", "another"),
        ev.StockMembersLeft: group.stock,
        ev.GrantRefused: lambda: group.happen(ev.GrantRefused(1_000, 1_001)),
        ev.FencesInDoubt: lambda: group.happen(ev.FencesInDoubt()),
        ev.FencesReported: lambda: group.happen(ev.FencesReported(())),
        ev.Stalled: lambda: group.happen(ev.Stalled(10)),
        ev.Dissolved: lambda: group.do(coordinator.drop(GROUP, now_ms=now_ms)),
    }
    if kind in calls:
        calls[kind]()
        return
    member = next(iter(core(group).members), None)
    holders = {queue: holding.member for queue, holding in core(group).balance.queues.holdings.items()}
    direct: dict[type[ev.Event], Callable[[], ev.Event]] = {
        ev.Assigned: lambda: ev.Assigned(core(group).balance._work, group_assigning.Made(holders)),
        ev.SessionEnded: lambda: ev.SessionEnded(member, Reason.SESSION_EXPIRED),
    }
    event = direct[kind]() if kind in direct else kind()
    transitions.handle(core(group), event, now_ms=now_ms)
    group.do(core(group).publish(now_ms=now_ms))


@pytest.mark.parametrize("state", ALIVE, ids=lambda state: state.name)
def test_every_state_is_reachable(state: State):
    assert core(WAYS[state]()).state is state


@pytest.mark.parametrize(
    ("kind", "state"), [(kind, state) for kind, row in TABLE.items() for state in row],
    ids=lambda each: each.name if isinstance(each, State) else each.__name__,
)  # fmt: skip
def test_every_cell_leads_where_the_table_says(
    kind: type[ev.Event], state: State, monkeypatch: pytest.MonkeyPatch
):
    group = WAYS[state]()
    with watched(monkeypatch) as seen:
        happen(group, kind)
    assert any((event, before) == (kind, state) for event, before, _ in seen)


@pytest.mark.parametrize(
    ("kind", "state"), [(kind, state) for kind, row in TABLE.items() for state in ALIVE if state not in row],
    ids=lambda each: each.name if isinstance(each, State) else each.__name__,
)  # fmt: skip
def test_an_event_outside_the_table_is_refused_and_changes_nothing(
    kind: type[ev.Event], state: State, caplog
):
    group = core(WAYS[state]())
    epoch, members = group.epoch, len(group.members)
    event = kind.__new__(kind)
    with pytest.raises(BrokerError, match=f"{kind.__name__} cannot happen while group G is {state.name}"):
        transitions.handle(group, event, now_ms=0)
    assert (group.state, group.epoch, len(group.members)) == (state, epoch, members)
    assert "impossible event in this state" in caplog.text


def test_a_request_that_cannot_happen_is_answered_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    group = stable()
    row = {state: cell for state, cell in TABLE[ev.Left].items() if state is not State.STABLE}
    monkeypatch.setitem(TABLE, ev.Left, row)
    group.effects.clear()
    alice = group.consumers["alice"]
    group.leave(alice)
    assert group.effects[-1].code == ResponseCode.SYSTEM_ERROR
    group.run(100)
    assert len(group.view.members) == 2


def test_an_unexpected_state_is_kept_and_logged(monkeypatch: pytest.MonkeyPatch, caplog):
    group = stable()
    cell = TABLE[ev.Left][State.STABLE]
    row = {**TABLE[ev.Left], State.STABLE: cell._replace(then=frozenset({State.STABLE}))}
    monkeypatch.setitem(TABLE, ev.Left, row)
    group.leave(group.consumers["alice"])
    assert "impossible transition" in caplog.text
    group.run(100)
    assert group.loads() == {"bob": 8}


class Walk(Cluster):
    """A cluster to which random events from a seed happen, with fences that may not answer."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.do_fences_answer = True
        super().__init__()
        self.work_ms = [0, 5, 300][seed % 3]
        self.has_lied = True
        self.started = 0
        for _ in range(WALK_STEPS):
            self.step()

    def do(self, effects: list) -> None:
        super().do([each for each in effects if self.do_fences_answer or not isinstance(each, Gather)])

    def granted(self, grant: FenceGrant) -> None:
        """Check nothing: silent fences and lying members may mislead a coordinator, but fences refuse."""

    def step(self) -> None:
        """Make one event happen, most often the passing of time."""
        happenings: list[Callable[[], object]] = [
            *[lambda: self.run(self.random.choice([0, 0, 1, 20, 20, 100, 600, 3_000, 9_000, 11_000]))] * 7,
            self.join_one, self.join_one, self.join_one, self.tell_topic, self.tell_topic,
            self.stock_changes, self.stock_changes, self.restart, self.take_over,
            self.disturb, self.disturb, self.disturb, self.doubt,
            lambda: self.remove(self.random.choice([*self.consumers, "nobody"])),
        ]  # fmt: skip
        if self.consumers:
            happenings += [self.change_one] * 10
        self.random.choice(happenings)()

    def stock_changes(self) -> None:
        """Let a stock member join or leave; members may then be slow to report their queues."""
        self.stock(*self.random.choice([(), (), ("java",)]))
        for consumer in self.consumers.values():
            consumer.is_silent = self.random.random() < 0.5
        self.run(self.random.choice([0, 490, PARTING_MS]))

    def doubt(self) -> None:
        """Restart the process, or make a topic's queues unknown, so that the holders are in doubt."""
        if self.random.random() < 0.5:
            self.restart()
        else:
            self.do(self.coordinator.queues_changed("T", None, now_ms=self.now_ms))
        for consumer in self.consumers.values():
            consumer.is_silent = self.random.random() < 0.6
        self.run(self.random.choice([0, 0, 5_000]))
        self.do_fences_answer = self.random.random() < 0.8
        self.happen(ev.FencesInDoubt())

    def join_one(self) -> None:
        if len(self.consumers) < 4:
            self.started += 1
            name = f"c{self.started}"
            self.add(name, topics=self.random.choice([("T",), ("U",), ("T", "U"), ("V",)]))

    def tell_topic(self) -> None:
        self.tell("T", queues_of("T", self.random.randrange(6)))

    def disturb(self) -> None:
        """Let a fence refuse, forget or answer late, or the process stall."""
        coordinator, now_ms, random = self.coordinator, self.now_ms, self.random
        self.do_fences_answer = random.random() < 0.7
        epoch = self.view.epoch if GROUP in coordinator.names() else 0
        reports = [fence.report(GROUP) for fence in self.all_fences.values()]
        calls: list[Callable[[], None]] = [
            lambda: coordinator.happened(
                ev.GrantRefused(random.choice([-1, -1, epoch]), epoch + 1), GROUP, now_ms=now_ms
            ),
            lambda: self.happen(ev.FencesInDoubt()),
            lambda: self.happen(ev.FencesReported(reports)),
            lambda: self.happen(ev.QueuesRemoved("T", "b", Reason.OPERATOR)),
            lambda: coordinator.happened(
                ev.QueuesRemoved("T", "c", Reason.QUEUE_COUNT_CHANGED), GROUP, now_ms=now_ms
            ),
            lambda: self.happen(ev.Stalled(random.choice([10, 1_000]))),
            lambda: self.do(coordinator.removed(GROUP, may_return=random.random() < 0.5, now_ms=now_ms)),
        ]
        random.choice(calls)()

    def change_one(self) -> None:
        """Let one member act or be affected by an event."""
        random = self.random
        consumer = random.choice(list(self.consumers.values()))
        consumer.drains, consumer.is_silent = random.random() < 0.6, random.random() < 0.2
        match random.randrange(8):
            case 0:
                self.leave(consumer)
            case 1:
                self.kill(consumer)
            case 2 if consumer.member is not None:
                self.depart(consumer, *list(consumer.held)[: random.randrange(3)])
            case 3:
                consumer.polls.clear()
                consumer.is_leaving = False
                if random.random() < 0.3 and GROUP in self.coordinator.names():
                    consumer.held = dict.fromkeys(queues_of("T", 2), self.view.epoch + 1)
                self.join(consumer, claims=random.random() < 0.6)
            case 4 if consumer.member is not None:
                self.do(self.coordinator.closed(consumer.peer, now_ms=self.now_ms))
                consumer.polls.clear()
            case 5 if consumer.member is not None and GROUP in self.coordinator.names():
                consumer.held = dict.fromkeys(queues_of("T", 2), self.view.epoch + 1)
                self.poll(consumer)
            case 6 if consumer.member is not None and consumer.held:
                self.give_up(consumer, *list(consumer.held)[: random.randrange(3)])
            case 7:
                consumer.topics = random.choice([("T",), ("T", "U")])
                consumer.polls.clear()
                self.join(consumer, claims=True)


def inquired(state: State, *, with_bob: bool, is_late: bool, is_uneven: bool) -> Surroundings:
    """Return a group that awaits only alice. is_late: a topic is not known yet. is_uneven: bob has all
    queues, carol none.
    """
    group = Surroundings()
    alice = group.add("alice")
    bob = group.add("bob") if with_bob else None
    group.run(100)
    if state is State.AWAITING:
        group.restart()
        group.happen(ev.FencesInDoubt())
        group.happen(ev.FencesReported(()))
    else:
        group.stock("java")
        group.run(100)
        alice.is_silent = True
        if bob is not None:
            bob.is_silent = True
        group.stock()
        group.now_ms += PARTING_MS
        group.do(group.coordinator.tick(group.now_ms))
    if is_uneven:
        group.add("carol")
    if bob is not None:
        if is_uneven:
            alice.held, bob.held = {}, dict.fromkeys(queues_of("T", 8), 1)
        group.poll(bob)
    if is_late:
        group.add("vera", topics=("V",))
    assert core(group).state is state
    return group


def end_inquiries() -> None:
    """End an inquiry in each way, through alice's actions or her fate."""
    ends: list[Callable[[Surroundings, Consumer], object]] = [
        lambda group, alice: group.poll(alice),
        lambda group, alice: group.join(alice, claims=True),
        lambda group, alice: group.leave(alice),
        lambda group, alice: group.remove("alice"),
        lambda group, alice: happen(group, ev.SessionEnded),
        lambda group, alice: happen(group, ev.InquiryTimedOut),
    ]
    for state in (State.AWAITING, State.RETURNING):
        for with_bob, is_late, is_uneven in product((False, True), repeat=3):
            for end in ends:
                group = inquired(state, with_bob=with_bob, is_late=is_late, is_uneven=is_uneven)
                end(group, group.consumers["alice"])


def gather_in_vain(*, is_late: bool) -> None:
    """Let no fence answer while members are connected or have been silent since a restart."""
    for restarts in (False, True):
        group = stable()
        if restarts:
            group.restart()
        group.happen(ev.FencesInDoubt())
        if is_late:
            group.add("vera", topics=("V",))
        happen(group, ev.InquiryTimedOut)


def change_while_reconciling() -> None:
    """Change a group in which alice has to release half of her queues to carol."""

    def group() -> tuple[Surroundings, Consumer]:
        group = Surroundings()
        alice = group.add("alice", drains=False)
        group.run(100)
        group.add("carol")
        group.run(100)
        assert core(group).state is State.RECONCILING
        return group, alice

    for claims in (False, True):
        changed, alice = group()
        changed.join(alice, claims=claims)
    changed, alice = group()
    alice.held = {queue: epoch for queue, epoch in alice.held.items() if queue not in alice.revoked}
    changed.poll(alice)
    for end in (Surroundings.poll, Surroundings.release):
        changed, alice = group()
        alice.is_leaving = True
        changed.depart(alice) if end is Surroundings.release else end(changed, alice)
    changed, alice = group()
    alice.held = dict.fromkeys(alice.held, 9)
    changed.join(alice, claims=True)
    changed, alice = group()
    changed.do(changed.coordinator.happened(ev.GrantRefused(-1, 0), GROUP, now_ms=changed.now_ms))
    changed.remove("nobody")


def come_with_a_later_epoch() -> None:
    """Let a client join an empty group that it knows from another coordinator."""
    group = empty()
    dave = Consumer("dave", peer="p", held=dict.fromkeys(queues_of("T", 2), 9))
    group.consumers["dave"] = dave
    group.join(dave, claims=True)


def give_up_in_a_large_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release queues that belong to the holder: they are granted to it again, but not at once."""
    with monkeypatch.context() as patch:
        patch.setattr(group_balance, "GRANTED_SINGLY_MAX", 1)
        group = stable()
        alice = group.consumers["alice"]
        for queue in sorted(alice.held)[:2]:
            group.give_up(alice, queue)
        assert core(group).state is State.RECONCILING
        group.run(100)


#: Each one has about thirty events and takes 15 ms.
WALKS = 100
WALK_STEPS = 60


def test_every_transition_of_the_table_happens(monkeypatch: pytest.MonkeyPatch):
    """No other transition happens. One named here must leave the table or be made to happen here."""
    with watched(monkeypatch) as seen:
        for kind, row in TABLE.items():
            for state in row:
                happen(WAYS[state](), kind)
        end_inquiries()
        gather_in_vain(is_late=False)
        gather_in_vain(is_late=True)
        change_while_reconciling()
        come_with_a_later_epoch()
        give_up_in_a_large_group(monkeypatch)
        for seed in range(WALKS):
            Walk(seed)
        Surroundings().add("alice", waits=True, is_alone=True)
        monkeypatch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
        for seed in range(WALKS):
            Walk(seed)
    cells = [(kind, state, cell) for kind, row in TABLE.items() for state, cell in row.items()]
    assert {(kind, state, then) for kind, state, cell in cells for then in cell.then} - set(seen) == set()


def test_a_large_group_with_all_queues_granted_is_not_checked_endlessly(monkeypatch: pytest.MonkeyPatch):
    """Queues waited for their turn until a new target gave them away; the turn then stayed due for ever."""
    monkeypatch.setattr(group_balance, "GRANTED_SINGLY_MAX", 1)
    group = reconciling()
    group.add("dave")
    group.now_ms += COLLECT_MS // 2
    for consumer in (group.consumers["alice"], group.consumers["bob"]):
        group.give_up(consumer, next(iter(consumer.revoked)))
    for _ in range(20):
        group.now_ms = max(group.now_ms, group.coordinator.next_due_ms)
        group.do(group.coordinator.tick(group.now_ms))
        group.work()
    assert group.coordinator.next_due_ms > group.now_ms
