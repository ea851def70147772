"""The balance of a coordinated group: collects changes (COLLECT_MS, JOINS_MS_MAX), computes a new target (a
large one in a thread), and detects when the rebalance has settled.

touched → COLLECT_MS → a target by the strategy → handovers → settled
                       for a large group in a thread (`Assigning`)
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from libramq.clock import MonotonicMs
from libramq.groups.coordinator.effect import Assign, Settled, Started
from libramq.groups.coordinator.membership import GroupMembership
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.coordinator.target_assignment import Assigning, Made, StrategyChoice, Target
from libramq.groups.coordinator.topics import GroupTopics
from libramq.groups.queue_holdings import Holding
from libramq.groups.rebalance_event import Reason
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: From the design: changes come in bursts.
COLLECT_MS: Final = 20
#: Ours: joins that follow each other within COLLECT_MS are collected for at most this long. A thousand
#: consumers that start together then cause a few assignments instead of fifty, and fewer queues move twice.
JOINS_MS_MAX: Final = 500
#: Ours: in a group with more queues, the state is not rewritten for every single released queue.
GRANTED_SINGLY_MAX: Final = 500


def holders_of(holdings: Mapping[MessageQueue, Holding]) -> dict[MessageQueue, str]:
    """Return the members by queue."""
    return {queue: holding.member for queue, holding in holdings.items()}


@dataclass(slots=True)
class CoordinatedRebalance:
    """A rebalance under way, from the first change until every queue is at its target.

    It has the facts that brokers cannot observe; at each broker `groups.rebalance` records what moved and
    when. before: holders by queue. names: client ids by member, past and present.

    causes: unrecorded reasons, and the clients behind them. minimum: the fewest moves, if counted with the
    last assignment. is_started: an event has been recorded.
    """

    before: dict[MessageQueue, str]
    names: dict[str, str]
    causes: dict[Reason, dict[str, None]] = field(default_factory=dict)
    duplicates: int = 0
    minimum: int | None = None
    is_started: bool = False

    def add(self, reason: Reason, who: str) -> None:
        """Add a cause."""
        self.causes.setdefault(reason, {})[who] = None

    def take_started(self, group: str, epoch: int, members: Sequence[str]) -> list[Started]:
        """Return and clear the unrecorded starts, one event per reason."""
        events = [
            Started(group=group, epoch=epoch, reason=reason, who=tuple(who), members=tuple(members))
            for reason, who in self.causes.items()
        ]
        self.causes.clear()
        self.is_started = self.is_started or bool(events)
        return events

    def rename(self, old: str, new: str) -> None:
        """Replace a member by its successor, which holds the same queues."""
        for queue, member in self.before.items():
            if member == old:
                self.before[queue] = new


class GroupBalance:
    """The queues of one group, their target, and the rebalance under way."""

    def __init__(
        self, group: str, members: GroupMembership[Any, Any], topics: GroupTopics, queues: QueueHandover
    ) -> None:
        self.queues = queues
        self.strategy = StrategyChoice(group, members.profiles)
        self._group = group
        self._members = members
        self._topics = topics
        self._rebalance: CoordinatedRebalance | None = None
        #: The assignment that a thread is computing.
        self._work: Assigning | None = None
        self._is_outdated = False
        #: When the collected changes take effect; None if there are none.
        self.flush_at_ms: MonotonicMs | None = None
        self._joins_until_ms = MonotonicMs(0)
        #: Whether changes wait for a topic's queues, which may take long.
        self.awaits_topics = False
        self._grant_at_ms: MonotonicMs | None = None
        self._granted_at_ms: MonotonicMs | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether every queue is at its target, and no change is pending."""
        return not self.is_assigning and self.queues.is_complete

    @property
    def is_assigning(self) -> bool:
        """Return whether changes are being collected or a target assignment is being computed."""
        return self.flush_at_ms is not None or self._work is not None

    @property
    def due_ms(self) -> MonotonicMs | None:
        """Return the next due time."""
        grant_at_ms = self._grant_at_ms if self.queues.unheld else None
        times = (self.flush_at_ms, grant_at_ms, self.queues.overdue_at_ms)
        return min((time for time in times if time is not None), default=None)

    def touch(self, reason: Reason | None, who: str, *, now_ms: MonotonicMs) -> CoordinatedRebalance:
        """Note a change that may need a new target assignment, which is computed soon."""
        if self._rebalance is None:
            # The final report also names members that leave meanwhile.
            names = {profile.member: profile.client_id for profile in self._members.profiles}
            self._rebalance = CoordinatedRebalance(holders_of(self.queues.holdings), names)
        if reason is not None:
            self._rebalance.add(reason, who)
        collected_ms = now_ms + COLLECT_MS
        if self.flush_at_ms is None:
            self.flush_at_ms, self._joins_until_ms = collected_ms, now_ms + JOINS_MS_MAX
        elif reason is Reason.MEMBER_JOINED:  # More may follow.
            self.flush_at_ms = min(collected_ms, self._joins_until_ms)
        else:  # This change may be the topic's queues that were awaited.
            self.flush_at_ms = min(self.flush_at_ms, collected_ms)
        return self._rebalance

    def resume(self, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Continue with these queues. before: earlier holders, unknown until now."""
        queues.to_notify |= self.queues.to_notify
        self.queues = queues
        self._work, self._is_outdated = None, False
        if self._rebalance is not None and not self._rebalance.before:
            self._rebalance.before = holders_of(before)

    def forget_changes(self) -> None:
        """Drop the collected changes, because the coordinator does not assign the queues."""
        self._rebalance = self.flush_at_ms = self._work = None
        self.awaits_topics = False
        self._is_outdated = False

    def rename(self, old: str, new: str) -> None:
        """Replace a member by its successor; no queue moves."""
        self.queues.rename(old, new)
        self._is_outdated = self._work is not None
        if self._rebalance is not None:
            self._rebalance.rename(old, new)

    def depart(self, profile: MemberProfile, *, now_ms: MonotonicMs) -> None:
        """Handle a stopping member: it gets no more queues, and releases its own as they are drained.

        Its queues are not revoked by force, because it has its own deadline and its session.
        """
        if profile.member not in self._members.leaving:
            self.touch(Reason.MEMBER_LEFT, profile.client_id, now_ms=now_ms)
            self._members.leaving.add(profile.member)
            self.queues.depart(profile.member)

    def add_duplicates(self, count: int) -> None:
        """Count messages that a member saw twice while queues changed hands."""
        if self._rebalance is not None:
            self._rebalance.duplicates += max(0, count)

    def flush(self, *, now_ms: MonotonicMs) -> list[Assign | Started]:
        """Apply the collected changes, unless a topic's queues are awaited; return the events of the
        rebalance.

        For a large group, returns the work for a thread instead; `assigned` takes its result.
        """
        if self._work is not None:
            self.flush_at_ms, self._is_outdated = None, True
            return []
        self.flush_at_ms = self._topics.wait_until_ms(now_ms) if self._rebalance is not None else None
        self.awaits_topics = self.flush_at_ms is not None
        if self._rebalance is None or self.awaits_topics:
            return []
        profiles = self._members.staying
        strategy, is_another = self.strategy.choose(profiles)
        if is_another:
            self._rebalance.add(Reason.STRATEGY_CHANGED, self.strategy.name or "")
        queues, absent = self._topics.queues(self.queues), self._topics.watched.absent
        existing = set(queues)
        if not existing.issuperset(self.queues.holdings):
            self.queues.vanish([queue for queue in self.queues.holdings if queue not in existing])
        work = Assigning(
            self._group,
            strategy,
            profiles,
            [queue for queue in queues if queue.broker_name not in absent] if absent else queues,
            dict(self.queues.holdings),
            queues,
            dict(self._rebalance.before),
        )
        if work.is_large:
            self._work = work
            return [Assign(self._group, work)]
        made = work.made()
        return [*self._aim({**self._kept(existing), **made.target}, made.minimum, now_ms=now_ms)]

    def awaits(self, work: Assigning) -> bool:
        """Return whether the result of this work is awaited."""
        return work is self._work

    def assigned(self, made: Made | Exception, *, now_ms: MonotonicMs) -> list[Started]:
        """Take the awaited assignment; return the events of the rebalance. Later changes are applied next.

        If the computation failed, no queue moves.
        """
        if isinstance(made, Exception):
            assert self._work is not None
            log.error("queues could not be assigned", group=self._group, exc_info=made)
            made = Made(holders_of(self._work.holdings))
        self._work = None
        if self._is_outdated:
            self._is_outdated, self.flush_at_ms = False, now_ms
        return self._aim(self._current(made.target), made.minimum, now_ms=now_ms)

    def _aim(self, target: Target, minimum: int | None, *, now_ms: MonotonicMs) -> list[Started]:
        """Begin to move the queues to a new target. minimum: the fewest moves, if counted."""
        assert self._rebalance is not None
        self._rebalance.minimum = minimum
        if (
            self.queues.retarget(target, self._members.revoke_timeout_ms, now_ms=now_ms)
            and not self._rebalance.causes
        ):
            self._rebalance.add(Reason.QUEUE_COUNT_CHANGED, self._group)
        started = self._rebalance.take_started(self._group, self.queues.epoch, self._members.client_ids)
        if not self._rebalance.is_started and self.flush_at_ms is None:
            self._rebalance = None
        return started

    def _current(self, made: Target) -> Target:
        """Return a computed target adapted to later changes: affected queues stay with their holders."""
        profiles, existing = self._members.staying, set(self._topics.queues(self.queues))
        topics = {profile.member: profile.subscriptions for profile in profiles}
        target = self._kept(existing)
        for queue, member in made.items():
            if queue in existing and queue.broker_name not in self._topics.watched.absent:
                for each in (member, self.queues.holder(queue)):
                    if each is not None and queue.topic in topics.get(each, ()):
                        target[queue] = each
                        break
        return target

    def _kept(self, existing: Container[MessageQueue]) -> dict[MessageQueue, str]:
        """Return the holders of queues that must not move.

        These are queues whose master is gone, and queues of slow members unless another member is assigned
        them. Without the master, a holder reads on from a slave but could not commit before a release, and
        another member could not open the queue. A queue without a holder is assigned when its master returns.
        """
        absent, members = self._topics.watched.absent, self._members
        if not absent and not members.slow:
            return {}
        topics = {each.member: each.subscriptions for each in members.profiles}
        return {
            queue: holding.member
            for queue, holding in self.queues.holdings.items()
            if (queue.broker_name in absent or holding.member in members.slow)
            and holding.member not in members.leaving
            and queue in existing
            and queue.topic in topics.get(holding.member, ())
        }

    def hand_over(self, *, now_ms: MonotonicMs) -> None:
        """Take overdue queues and grant free ones; in a large group, grant at most once per COLLECT_MS."""
        for queue, holding in self.queues.take_overdue(self._members.leaving, now_ms=now_ms):
            log.warning(
                "queue revoked by force: its member does not release it",
                group=self._group, queue=str(queue), member=holding.member,
            )  # fmt: skip
        if not self.queues.unheld:
            return
        soonest_ms = now_ms if self._granted_at_ms is None else self._granted_at_ms + COLLECT_MS
        if len(self.queues.holdings) > GRANTED_SINGLY_MAX and now_ms < soonest_ms:
            self._grant_at_ms = soonest_ms
            return
        self._grant_at_ms, self._granted_at_ms = None, now_ms
        self.queues.grant_free(now_ms=now_ms)

    def settle(self) -> Settled | None:
        """Return the end of the rebalance, if it has come."""
        rebalance = self._rebalance
        if rebalance is None or not rebalance.is_started or not self.is_settled:
            return None
        self._rebalance = None
        profiles = self._members.staying
        return Settled(
            group=self._group,
            epoch=self.queues.epoch,
            profiles=profiles,
            names=rebalance.names | {profile.member: profile.client_id for profile in profiles},
            before=rebalance.before,
            after=holders_of(self.queues.holdings),
            existing=self._topics.queues(self.queues),
            committed=self.queues.take_committed(),
            counted=rebalance.minimum,
            duplicates=rebalance.duplicates,
        )
