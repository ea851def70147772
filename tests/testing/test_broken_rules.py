"""Every invariant has a rule that is broken here on purpose: the simulator must notice within some seeds.

The scenarios are narrow, so that few seeds are enough; `pytest -s` prints the seeds used.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import msgspec
import pytest

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.files import delay_schedule as schedule
from libramq.broker.files.delay_schedule import DelaySchedule, StoredMoments
from libramq.broker.files.progress import ProgressFile
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import Committing, OffsetCommits
from libramq.broker.messages.durability import Durability
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.ownership.claims import Claims
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.pop import pop_consumer_core
from libramq.client.consuming.pulling.pulling import Delivering
from libramq.client.consuming.queues.owned_queue import FOREVER, HeldMessages, Lease
from libramq.client.routing.routes import RouteTable
from libramq.errors import RemoteError
from libramq.fencing import OpenedQueue
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.groups.pending_notifications import PendingNotifications
from libramq.groups.rebalance import GroupRebalance
from libramq.message.queue import MessageQueue
from libramq.offsets.consumer_offset import ConsumerOffset
from libramq.offsets.fence import Fences
from libramq.offsets.journal import OffsetJournal
from libramq.offsets.ledger import OffsetLedger
from libramq.replication.copies import Copies
from libramq.replication.ha_client import HAClient
from libramq.replication.ha_service import HAService
from libramq.store.message_store import MessageStore
from libramq.testing.cluster import GroupPlan, PopPlan
from libramq.testing.happening import Happening
from libramq.testing.invariants import INVARIANTS, Invariant
from libramq.testing.invariants.clocks import ClocksChangeNothing
from libramq.testing.invariants.consumption import (
    BroadcastReachesEverybody,
    ConsumedAtLeastOnce,
    DuplicatesAreExplained,
    OneAtATimeInOrder,
    OrderWithinOwner,
)
from libramq.testing.invariants.messages import (
    AcknowledgedMessageSurvives,
    OneMessageAnOffset,
    RetriesAreExact,
)
from libramq.testing.invariants.offsets import CommitIsKept, CommitWithinDurable, DoneWhenDurable
from libramq.testing.invariants.ownership import (
    EveryQueueOwned,
    HandoversAreShort,
    NoHandlerAfterTheSession,
    OneReaderAQueue,
    OwnersGoForward,
    ReadersKeepTheirQueues,
)
from libramq.testing.invariants.pops import DeadLettersWereSeen, ResetsReplay
from libramq.testing.invariants.rebalances import HistoryAgreesWithFences
from libramq.testing.invariants.slaves import PromotionsLoseNothing, SlavesHaveTheLog, SlavesOnlyRead
from libramq.testing.machine.virtual_time import NodeClock
from libramq.testing.nodes.consumer_node import Handling
from libramq.testing.scenarios.scenario import Scenario
from libramq.testing.simulation import RAISED, Simulation
from tests.testing import test_acting_slaves

#: These tests check the simulator itself, so they run after changes to it.
pytestmark = pytest.mark.thorough
SEEDS_MAX = 30

OURS = GroupPlan(name="G", topics=(("T",),))
STOCK = replace(OURS, stock_chance=1.0)


def scenario(
    *actions: str, group: GroupPlan = STOCK, is_sync: bool = True, members: int = 2, **other: object
) -> Scenario:
    """One broker, one topic, one group; an action every 1.5 s."""
    times = range(2_000, 2_000 + 1_500 * len(actions), 1_500)
    return replace(
        Scenario(
            broker_count=1,
            is_sync=is_sync,
            topics={"T": 3},
            groups=(group,),
            members=(members,),
            producer_interval_ms=30,
            body_bytes=30,
            duration_ms=times[-1] + 2_000,
            actions=tuple(zip(times, actions, strict=True)),
        ),
        **other,  # type: ignore[arg-type]
    )


def caught(rule: type[Invariant] | str, what: Scenario) -> None:
    """Check that some seed breaks this rule, and that no earlier seed breaks another one."""
    name = rule if isinstance(rule, str) else rule.name
    for seed in range(SEEDS_MAX):
        report = Simulation(seed, scenario=what).run()
        if report.violation is not None:
            assert report.violation.invariant == name, f"seed {seed}: {report.violation}"
            print(f"caught with seed {seed}: {report.violation.what[:200]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not break the rule that {name}")


def test_every_invariant_has_a_test():
    names = {*globals(), *vars(test_acting_slaves)}
    assert {invariant.__name__ for invariant in INVARIANTS} <= names


def test_answers_before_durability_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Durability, "wait", lambda self, parked, physical_offset=0: parked.succeed())
    caught(AcknowledgedMessageSurvives, scenario(*["cut_power"] * 4))


def test_reads_before_durability_are_caught(monkeypatch: pytest.MonkeyPatch):
    append_batch = MessageStore.append_batch

    def append_and_show(self: MessageStore, messages: Sequence[object]) -> object:
        results = append_batch(self, messages)  # type: ignore[arg-type]
        self._show(self._log.end)
        return results

    monkeypatch.setattr(MessageStore, "append_batch", append_and_show)
    monkeypatch.setattr(ConsumedAtLeastOnce, "unmet", lambda self: iter(()))
    slow = replace(STOCK, handling=Handling(duration_ms_max=100, concurrency=1))
    caught(OneMessageAnOffset, scenario(*["cut_power", "kill", "join"] * 3, group=slow, members=2))


def test_a_ledger_that_ignores_its_journal_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OffsetJournal, "replay", lambda self: iter(()))
    caught(CommitIsKept, scenario("kill_broker", "kill_broker"))


def let_files_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files that record progress be written without waiting for the log to be flushed."""
    begin = ProgressFile._begin

    def anyhow(self: ProgressFile) -> None:
        begin(self)
        self._log_end = 0

    monkeypatch.setattr(ProgressFile, "_begin", anyhow)
    monkeypatch.setattr(MessageStore, "want_flush", lambda *_: None)


def test_a_broker_that_accepts_any_offset_is_caught(monkeypatch: pytest.MonkeyPatch):
    """Files that wait for the log would also keep offsets within it, so here they do not wait."""
    let_files_lead(monkeypatch)
    monkeypatch.setattr(DoneWhenDurable, "_judge", lambda *_: None)
    commit = ConsumerOffset.commit
    monkeypatch.setattr(
        ConsumerOffset,
        "commit",
        lambda self, group, topic, queue, offset, _: commit(self, group, topic, queue, offset, 1 << 40),
    )
    caught(CommitWithinDurable, scenario("cut_power", "cut_power", is_sync=False))


def test_offsets_left_ahead_of_a_shortened_queue_are_caught(monkeypatch: pytest.MonkeyPatch):
    let_files_lead(monkeypatch)
    monkeypatch.setattr(DoneWhenDurable, "_judge", lambda *_: None)
    opened = OffsetLedger.open
    monkeypatch.setattr(
        OffsetLedger, "open", lambda self, now_ms, _, *rest: opened(self, now_ms, lambda *_: None, *rest)
    )
    monkeypatch.setattr(ConsumedAtLeastOnce, "unmet", lambda self: iter(()))
    caught(CommitWithinDurable, scenario("cut_power", "cut_power", is_sync=False))


def test_progress_files_ahead_of_the_log_are_caught(monkeypatch: pytest.MonkeyPatch):
    let_files_lead(monkeypatch)
    caught(DoneWhenDurable, scenario("join", "join", "join", "join", is_sync=False, producer_interval_ms=100))


def test_a_fence_that_accepts_everything_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The members do not know when their session has ended, either."""
    monkeypatch.setattr(Fences, "check", lambda *_: None)
    monkeypatch.setattr(Lease, "until_ms", property(lambda _: FOREVER, lambda *_: None), raising=False)
    monkeypatch.setattr(NoHandlerAfterTheSession, "handling_began", lambda *_: None)
    caught(OneReaderAQueue, scenario(*["partition"] * 6, group=OURS, members=3))


def test_members_without_a_lease_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Lease, "until_ms", property(lambda _: FOREVER, lambda *_: None), raising=False)
    group = replace(OURS, handling=Handling(duration_ms_max=200, concurrency=1))
    caught(NoHandlerAfterTheSession, scenario("pause", "pause", group=group, members=3, duration_ms=20_000))


def test_a_member_that_ignores_committed_offsets_is_caught(monkeypatch: pytest.MonkeyPatch):
    opened, granted, from_zero = Claims._opened, Claims.granted, OpenedQueue(0)
    monkeypatch.setattr(
        Claims,
        "_opened",
        lambda self, owned, claim, _, now_ms: opened(self, owned, claim, from_zero, now_ms),
    )
    monkeypatch.setattr(
        Claims,
        "granted",
        lambda self, queue, claim, answer, now_ms: granted(self, queue, claim, answer and from_zero, now_ms),
    )
    monkeypatch.setattr(DuplicatesAreExplained, "handled", lambda *_: None)
    group = replace(OURS, handling=Handling(duration_ms_max=40, concurrency=1))
    caught(OwnersGoForward, scenario("join", "join", group=group, producer_interval_ms=60))


def test_a_member_that_skips_messages_is_caught(monkeypatch: pytest.MonkeyPatch):
    pulled = Ownership.pulled

    def leave_out(self, queue, generation, outcome, messages, now_ms, **claim):  # type: ignore[no-untyped-def]
        kept = messages[:-1] if len(messages) > 1 else messages
        return pulled(self, queue, generation, outcome, kept, now_ms, **claim)

    monkeypatch.setattr(Ownership, "pulled", leave_out)
    caught(OrderWithinOwner, scenario("join", "stop"))


def test_an_orderly_member_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch):
    def arrived(self, owned, messages):  # type: ignore[no-untyped-def]
        self._orderly = False
        return concurrent(self, owned, messages)

    concurrent = Delivering.arrived
    monkeypatch.setattr(Delivering, "arrived", arrived)
    group = replace(STOCK, orderly=True, handling=Handling(duration_ms_max=100))
    caught(OneAtATimeInOrder, scenario("join", group=group))


def test_releases_without_a_commit_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Commits, "commit_last", lambda self, owned: False)
    commit = Commits.commit
    monkeypatch.setattr(
        Commits,
        "commit",
        lambda self, queues, **options: commit(self, [q for q in queues if q.is_ours], **options),
    )
    caught(DuplicatesAreExplained, scenario("join", "join", "stop", group=OURS))


def test_unreported_releases_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The coordinator reclaims the queue only after a timeout."""

    monkeypatch.setattr(MemberCoordination, "_release", lambda self, _: self._released.clear())
    caught(HandoversAreShort, scenario("join", "join", "join", group=OURS))


@pytest.mark.parametrize("forgotten", ["replaced", "opened"])
def test_unrecorded_openings_are_caught(monkeypatch: pytest.MonkeyPatch, forgotten: str):
    """The history lacks a member's new client id, or the opening of a queue that is not read yet."""
    monkeypatch.setattr(GroupRebalance, forgotten, lambda *_, **options: None)
    if forgotten == "opened":
        monkeypatch.setattr(GroupRebalance, "pulled", lambda *_, **options: None)
    group = replace(OURS, is_static=forgotten == "replaced")
    caught(HistoryAgreesWithFences, scenario(*["bounce", "join", "stop"] * 2, group=group, members=3))


def test_a_removed_static_member_returns_as_another_member():
    """An operator removes it.

    Its queues go to others and return with its name; the history records both as moves.
    """
    what = scenario("bounce", "remove", group=replace(OURS, is_static=True), members=3)
    for seed in (6, 7, 11):
        report = Simulation(seed, scenario=what).run()
        assert report.is_ok, f"seed {seed}: {report.violation}"
        assert report.happenings[Happening.REMOVED]
        assert report.happenings[Happening.CAME_BACK]


def test_notifications_sent_only_once_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The only notification is lost."""
    monkeypatch.setattr(PendingNotifications, "due", lambda self, *, now_ms: [])
    caught(EveryQueueOwned, scenario("deafen", "join", "stop", "join"))


def test_commits_of_unhandled_messages_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        HeldMessages,
        "commit_offset",
        property(lambda self: self._highest + 1 if self._highest >= 0 else None),
    )
    group = replace(STOCK, handling=Handling(duration_ms_max=400, concurrency=1), persist_ms=200)
    caught(ConsumedAtLeastOnce, scenario("kill", "kill", group=group, members=3))


def test_offsets_beyond_the_read_position_are_caught(monkeypatch: pytest.MonkeyPatch):
    """A broadcasting member that returns reads an excessive offset from its file."""
    read = LocalOffsetStore.read

    def beyond(self: LocalOffsetStore, queue: MessageQueue) -> int | None:
        offset = read(self, queue)
        return None if offset is None else offset + 3

    monkeypatch.setattr(LocalOffsetStore, "read", beyond)
    group = replace(OURS, is_broadcasting=True)
    caught(BroadcastReachesEverybody, scenario("bounce", "bounce", group=group))


def test_endless_redelivery_is_caught(monkeypatch: pytest.MonkeyPatch):
    target = Redelivery.target

    def again(self, group, **known):  # type: ignore[no-untyped-def]
        return target(self, group, **(known | {"reconsume_times_max": 1 << 20}))

    monkeypatch.setattr(Redelivery, "target", again)
    group = replace(OURS, handling=Handling(failure_chance=0.3), max_reconsume_times=1)
    caught(RetriesAreExact, scenario("join", "join", "join", group=group))


def test_delays_by_the_wall_clock_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The wall clock at storing time, and the current one."""
    monkeypatch.setattr(StoredMoments, "moment_of", lambda self, _, store_timestamp_ms: store_timestamp_ms)
    deliver = DelaySchedule.deliver
    monkeypatch.setattr(DelaySchedule, "deliver", lambda self, _: deliver(self, self._store._clock.wall_ms()))
    group = replace(OURS, handling=Handling(failure_chance=0.3))
    caught(ClocksChangeNothing, scenario("set_clock", "set_clock", group=group))


def test_delays_that_trust_a_clock_to_the_millisecond_are_caught(monkeypatch: pytest.MonkeyPatch):
    """Messages that clock synchronization shifts a few milliseconds into the future are delivered at once."""
    unnoticed_ms = schedule.UNNOTICED_MS
    monkeypatch.setattr(schedule, "UNNOTICED_MS", 0)
    monkeypatch.setattr(
        StoredMoments, "is_set", lambda self, now: abs(now.wall_ahead_ms - self._ahead_ms[-1]) > unnoticed_ms
    )
    group = replace(OURS, handling=Handling(failure_chance=0.3))
    caught(ClocksChangeNothing, scenario("set_clock", "set_clock", group=group))


def test_sessions_by_the_wall_clock_are_caught(monkeypatch: pytest.MonkeyPatch):
    tick = Coordination._tick
    set_by_ms: Counter[int] = Counter()
    set_wall = NodeClock.set_wall

    def counted(self: NodeClock, by_ms: int) -> None:
        set_by_ms[id(self)] += by_ms
        set_wall(self, by_ms)

    monkeypatch.setattr(NodeClock, "set_wall", counted)
    ended = GroupMember.ended
    ahead_ms = 0

    def judged(self: Coordination, now_ms: int) -> None:
        nonlocal ahead_ms
        ahead_ms = set_by_ms[id(self._now_ms.__self__)]
        tick(self, now_ms)

    monkeypatch.setattr(Coordination, "_tick", judged)
    monkeypatch.setattr(GroupMember, "ended", lambda self, *, now_ms: ended(self, now_ms=now_ms + ahead_ms))
    group = replace(OURS, session_ms=1_000)
    caught(ClocksChangeNothing, scenario("set_clock", "set_clock", group=group))


def test_held_pulls_by_the_wall_clock_are_caught(monkeypatch: pytest.MonkeyPatch):
    handle = PullMessage.handle

    @functools.wraps(handle)  # Keeps the mark of a request handler.
    def by_wall_clock(self: PullMessage, request: Any) -> Any:
        return handle(self, msgspec.structs.replace(request, monotonic_ms=request.wall_ms))

    monkeypatch.setattr(PullMessage, "handle", by_wall_clock)
    caught(ClocksChangeNothing, scenario("set_clock", group=OURS))


def test_a_service_that_stays_due_is_caught(monkeypatch: pytest.MonkeyPatch):
    """The broker's clocks would stand still, or it would spin."""
    monkeypatch.setattr(Cluster, "_tick", lambda self, now_ms: self._deadline.at(now_ms - 1))
    caught(RAISED, scenario("join"))


def test_a_processor_that_raises_is_caught(monkeypatch: pytest.MonkeyPatch):
    @functools.wraps(PullMessage.handle)
    def fails(self: PullMessage, request: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PullMessage, "handle", fails)
    caught(RAISED, scenario("join"))


def test_grants_before_a_release_are_caught(monkeypatch: pytest.MonkeyPatch):
    retarget = QueueHandover.retarget

    def take(self, target, revoke_timeout_ms, *, now_ms):  # type: ignore[no-untyped-def]
        for queue, holding in list(self.holdings.items()):
            if target.get(queue, holding.member) != holding.member:
                self._free_queue(queue)
        return retarget(self, target, revoke_timeout_ms, now_ms=now_ms)

    monkeypatch.setattr(QueueHandover, "retarget", take)
    nothing_to_read_twice = scenario("join", "stop", "join", group=OURS, producer_interval_ms=60_000)
    caught(ReadersKeepTheirQueues, nothing_to_read_twice)


def replicated(*actions: str, **other: object) -> Scenario:
    """A scenario with a master and a slave, another broker, and members that soon discover the slave."""
    group = replace(OURS, route_refresh_ms=500)
    return scenario(*actions, group=group, broker_count=2, slave_count=1, **other)


def test_commits_at_slaves_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The master would not learn of them. Members commit at masters, and slaves refuse members."""
    commit = Committing.commit

    def take(self: Committing, *where: object, **claim: object) -> None:
        self._is_slave, is_slave = False, self._is_slave
        commit(self, *where, **({} if is_slave else claim))  # type: ignore[arg-type]
        self._is_slave = is_slave

    monkeypatch.setattr(Committing, "commit", take)
    monkeypatch.setattr(RouteTable, "master", RouteTable.reader)
    caught(SlavesOnlyRead, replicated("end_master", "end_master"))


def test_a_slave_that_does_not_return_to_its_master_is_caught(monkeypatch: pytest.MonkeyPatch):
    give_up = HAClient._give_up

    def for_good(self: HAClient, reason: str) -> None:
        give_up(self, reason)
        self._due.cancel()

    monkeypatch.setattr(HAClient, "_give_up", for_good)
    caught(SlavesHaveTheLog, replicated("end_master", "end_master"))


def test_answers_before_a_slave_has_the_message_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Copies, "wait", lambda self, parked, physical_offset=0: parked.succeed())
    caught(PromotionsLoseNothing, replicated("part_slave", "end_master", waits_for_slaves=True))


def test_slaves_that_are_ahead_of_the_masters_disk_are_caught(monkeypatch: pytest.MonkeyPatch):
    """Members read messages at the slave that the master loses in a power cut, and skip replacements."""
    monkeypatch.setattr(HAService, "_end", property(lambda self: self._store.end))
    # A member may read both messages of an offset: the same fault, which some seeds show first.
    monkeypatch.setattr(OneMessageAnOffset, "delivered", lambda *_: None)
    ends = ((2_000, "end_master"), (11_000, "end_master"))
    caught(
        ConsumedAtLeastOnce,
        replace(
            replicated("end_master", topics={"T": 2}, producer_interval_ms=1),
            actions=ends,
            duration_ms=14_000,
        ),
    )


POPS = PopPlan(members=1, invisible_ms=1_000, retries_max=1, handling=Handling(duration_ms_max=5))


def test_groups_that_pop_follow_resets():
    report = Simulation(1, scenario=scenario("reset_pops", "kill_broker", "reset_pops", pops=POPS)).run()
    assert report.is_ok, report.violation
    assert report.happenings[Happening.POPS_SET_BACK]
    assert report.happenings[Happening.POPPED_IN_ORDER]


def test_a_reset_that_groups_that_pop_do_not_see_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OffsetCommits, "reset", lambda self, *which: None)
    caught(ResetsReplay, scenario("reset_pops", pops=POPS))


def test_dead_letters_that_no_handler_saw_are_caught(monkeypatch: pytest.MonkeyPatch):
    def lose(*_: object) -> NoReturn:
        raise RemoteError("lost")

    monkeypatch.setattr(pop_consumer_core, "messages_of", lose)
    caught(DeadLettersWereSeen, scenario("join", pops=POPS))
