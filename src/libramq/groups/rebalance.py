"""The rebalance as a broker sees it: from a change in a group's membership until its queues lie still again.

Stock clients allocate queues themselves, so the truth is who pulls what: the last member to pull a queue owns
it. A rebalance has settled when every queue has an owner that is a member, no member stands idle that need
not, and nothing has moved for a while. Everything is measured by the monotonic clock; events have wall times.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs, Now
from libramq.groups.catch_up import CatchUp
from libramq.groups.rebalance_event import (
    VERSION,
    QueueMove,
    Reason,
    RebalanceEvent,
    bounded_loads,
    bounded_members,
    split_moves,
)
from libramq.message.queue import MessageQueue

#: Ours: the Java client starts pulling a new queue 500 ms after it got it; twice that is quiet.
QUIET_MS: Final = 1_000
#: Ours: one of the Java client's 20 s rounds and some. Members that have no queue here by then have theirs at
#: other brokers, or nobody gives them any.
IDLE_MS_MAX: Final = 25_000
#: Ours: two of the Java client's long polls (brokerSuspendMaxTimeMillis) and some: who reads a queue has
#: asked for more by then.
READING_MS_MAX: Final = 40_000
#: Ours: three of the Java client's 20 s rounds; what has not settled by then is reported as it is.
SETTLE_MS_MAX: Final = 60_000


@dataclass(slots=True)
class Owner:
    """Who pulls a queue: its last read, whether that still waits, and up to where it was given messages."""

    client_id: str
    read_at_ms: MonotonicMs
    next_offset: int
    is_waiting: bool = True
    is_catching_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A queue that changed hands: when the old owner read it last, and the new one first."""

    from_: str | None
    to: str
    stopped_ms: MonotonicMs | None
    resumed_ms: MonotonicMs
    redelivered: int

    def record(self, queue: MessageQueue, returned_ms: MonotonicMs | None, now: Now) -> QueueMove:
        """Return the move as events have it; returned_ms: when the old owner read on, if it did."""
        return QueueMove(
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            from_=self.from_,
            to=self.to,
            stopped_ms=int(now.wall_of(self.stopped_ms)) if self.stopped_ms is not None else None,
            resumed_ms=int(now.wall_of(self.resumed_ms)),
            redelivered=self.redelivered,
            double_owner_ms=max(0, returned_ms - self.resumed_ms) if returned_ms is not None else 0,
        )


@dataclass(slots=True)
class Unsettled:
    """A rebalance under way.

    first_reads_ms: when each member first read a queue that was not its own. returned_ms: when the owner
    before read it again, once another had begun. minimum: as a coordinator knows it over all brokers.
    """

    started_at_ms: MonotonicMs
    changed_at_ms: MonotonicMs
    owners_before: dict[MessageQueue, str]
    moves: dict[MessageQueue, Move] = field(default_factory=dict)
    first_reads_ms: dict[tuple[MessageQueue, str], MonotonicMs] = field(default_factory=dict)
    returned_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    catch_up: CatchUp = field(default_factory=CatchUp)
    duplicates: int = 0
    is_coordinated: bool = False
    is_part: bool = False
    minimum: int | None = None

    def least(self, before: Mapping[MessageQueue, str], loads: Mapping[str, int]) -> int | None:
        """How many queues had to move: who sees but a part of it does not know."""
        if self.is_part:
            return None
        return self.minimum if self.minimum is not None else minimum_moves(before, loads)


class GroupRebalance:
    """One group's owners and rebalances."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._epoch = 0
        self._sequence = 0
        self._members: list[str] = []
        self._owners: dict[MessageQueue, Owner] = {}
        self._unsettled: Unsettled | None = None
        self._taken_at_ms: dict[MessageQueue, deque[MonotonicMs]] = {}

    @property
    def is_settled(self) -> bool:
        """Whether no rebalance is under way."""
        return self._unsettled is None

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is left to observe."""
        return self._unsettled is None and not self._members

    @property
    def owners(self) -> Mapping[MessageQueue, str]:
        """The member that read each queue last."""
        return {queue: owner.client_id for queue, owner in self._owners.items()}

    def changed(
        self,
        reason: Reason,
        who: str | None,
        members: Iterable[str],
        *,
        epoch: int | None = None,
        is_part: bool = False,
        now: Now,
    ) -> RebalanceEvent:
        """The group changed: a rebalance begins, or the one under way goes on with new members.

        epoch: the group's, where it has a coordinator; else changes are counted. is_part: that is at another
        broker, which tells of the whole.
        """
        self._members = sorted(set(members))
        self._taken_at_ms.clear()
        self._epoch = epoch if epoch is not None else self._epoch + 1
        if self._unsettled is None:
            self._unsettled = Unsettled(now.monotonic_ms, now.monotonic_ms, dict(self.owners))
        self._unsettled.changed_at_ms = now.monotonic_ms
        self._unsettled.is_coordinated = epoch is not None
        self._unsettled.is_part = is_part
        return self._event(
            now,
            kind="started",
            reason=reason,
            who=who,
            members=bounded_members(self._members),
            member_count=len(self._members),
        )

    def reported(self, duplicates: int, minimum: int | None = None) -> None:
        """Members saw so many messages again while queues moved, and so many had to, over all brokers."""
        if self._unsettled is not None:
            self._unsettled.duplicates += duplicates
            if minimum is not None:
                self._unsettled.minimum = (self._unsettled.minimum or 0) + minimum

    def pulled(self, queue: MessageQueue, client_id: str, offset: int, *, now_ms: MonotonicMs) -> None:
        """A member asks for a queue's messages from `offset` on."""
        owner = self._owners.get(queue)
        if owner is not None and owner.client_id == client_id:
            owner.read_at_ms = now_ms
            owner.is_waiting = True
            return
        self._taken_at_ms.setdefault(queue, deque(maxlen=2)).append(now_ms)
        if self._unsettled is not None:
            self._unsettled.changed_at_ms = now_ms
            self._unsettled.moves[queue] = self._move(queue, owner, client_id, offset, now_ms)
        is_unsettled = self._unsettled is not None
        self._owners[queue] = Owner(client_id, now_ms, offset, is_catching_up=is_unsettled)

    def answered(
        self, queue: MessageQueue, client_id: str, next_offset: int | None, *, now_ms: MonotonicMs
    ) -> None:
        """A member's pull was answered: with the messages before `next_offset`, or with none."""
        owner = self._owners.get(queue)
        if owner is None or owner.client_id != client_id:
            return
        was_held = now_ms > owner.read_at_ms  # There was nothing to read: the owner has caught up.
        owner.read_at_ms = now_ms
        owner.is_waiting = False
        owner.is_catching_up = owner.is_catching_up and next_offset is not None and not was_held
        if next_offset is not None:
            if owner.is_catching_up and self._unsettled is not None:
                self._unsettled.catch_up.read(next_offset - owner.next_offset, now_ms=now_ms)
            owner.next_offset = max(owner.next_offset, next_offset)

    def settle(self, queues: Iterable[MessageQueue], *, now: Now) -> list[RebalanceEvent]:
        """Look whether the rebalance has settled, given the queues the group should own; its last events."""
        unsettled = self._unsettled
        if unsettled is None or now.monotonic_ms - unsettled.changed_at_ms < QUIET_MS:
            return []
        wanted = list(queues)
        owners = {queue: self._owners[queue].client_id for queue in wanted if queue in self._owners}
        loads = Counter(dict.fromkeys(self._members, 0))
        loads.update(owner for owner in owners.values() if owner in loads)
        unowned = len(wanted) - loads.total()
        idle_needlessly = (
            not unsettled.is_coordinated and len(wanted) >= len(self._members) and 0 in loads.values()
        )
        waited_ms = now.monotonic_ms - unsettled.started_at_ms
        if self._members and (
            (unowned and waited_ms < SETTLE_MS_MAX) or (idle_needlessly and waited_ms < IDLE_MS_MAX)
        ):
            return []
        self._owners = {queue: self._owners[queue] for queue in owners}
        return self._settled(unsettled, loads, unowned, now)

    def read_by_two(self, *, since_ms: MonotonicMs, now_ms: MonotonicMs) -> list[MessageQueue]:
        """Queues that members take from each other, again and again after a moment."""
        return sorted(
            queue
            for queue, taken_at_ms in self._taken_at_ms.items()
            if len(taken_at_ms) == 2
            and taken_at_ms[0] > since_ms
            and taken_at_ms[1] > now_ms - READING_MS_MAX
        )

    def read_by_none(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Which of these queues no member reads; none while a rebalance is under way."""
        if self._unsettled is not None:
            return []
        owned = {queue for queue, owner in self._owners.items() if owner.client_id in self._members}
        return [queue for queue in queues if queue not in owned]

    def _settled(
        self, unsettled: Unsettled, loads: Counter[str], unowned: int, now: Now
    ) -> list[RebalanceEvent]:
        self._unsettled = None
        if not self._members:
            self._owners.clear()
        moved = {queue: move for queue, move in unsettled.moves.items() if move.from_ != move.to}
        returned_ms = unsettled.returned_ms
        moves = [move.record(queue, returned_ms.get(queue), now) for queue, move in moved.items()]
        events = [self._event(now, kind="moved", moves=part) for part in split_moves(moves)]
        before = {queue: owner for queue, owner in unsettled.owners_before.items() if queue in self._owners}
        last_move_ms = max(
            (max(move.resumed_ms, returned_ms.get(queue, move.resumed_ms)) for queue, move in moved.items()),
            default=unsettled.changed_at_ms,
        )
        settled = self._event(
            now,
            kind="settled",
            members=bounded_members(self._members),
            member_count=len(self._members),
            moved=len(moves),
            minimum=unsettled.least(before, loads),
            time_to_stable_ms=max(0, last_move_ms - unsettled.started_at_ms),
            worst_pause_ms=max((move.pause_ms for move in moves), default=0),
            redelivered_upper_bound=sum(move.redelivered for move in unsettled.moves.values()),
            duplicates_reported=unsettled.duplicates,
            peak_catch_up_rate=unsettled.catch_up.peak_rate,
            unowned=unowned,
            loads=bounded_loads(loads),
        )
        return [*events, settled]

    def _move(
        self, queue: MessageQueue, owner: Owner | None, client_id: str, offset: int, now_ms: MonotonicMs
    ) -> Move:
        unsettled = self._unsettled
        assert unsettled is not None
        earlier = unsettled.moves.get(queue)
        if earlier is not None and earlier.from_ == client_id:
            unsettled.returned_ms[queue] = now_ms
        redelivered = max(0, owner.next_offset - offset) if owner is not None else 0
        return Move(
            from_=earlier.from_ if earlier is not None else (owner.client_id if owner else None),
            to=client_id,
            stopped_ms=earlier.stopped_ms if earlier is not None else self._stopped_ms(owner),
            resumed_ms=unsettled.first_reads_ms.setdefault((queue, client_id), now_ms),
            redelivered=redelivered + (earlier.redelivered if earlier is not None else 0),
        )

    def _stopped_ms(self, owner: Owner | None) -> MonotonicMs | None:
        """When the old owner ceased to read: one whose pull was held read on until the rebalance began."""
        assert self._unsettled is not None
        if owner is None:
            return None
        return max(owner.read_at_ms, self._unsettled.started_at_ms) if owner.is_waiting else owner.read_at_ms

    def _event(self, now: Now, *, kind: str, **fields: object) -> RebalanceEvent:
        self._sequence += 1
        return RebalanceEvent(
            v=VERSION,
            group=self._group,
            epoch=self._epoch,
            seq=self._sequence,
            at_ms=int(now.wall_ms),
            kind=kind,
            **fields,  # type: ignore[arg-type]
        )


def minimum_moves(owners_before: Mapping[MessageQueue, str], loads: Mapping[str, int]) -> int:
    """The fewest queues that must change hands so that members have such loads, whoever has which.

    A broker sees its own queues only: where a group's queues lie at several brokers, even loads over all are
    uneven ones here, and the loads that the members came to are the only fair measure.
    """
    before = Counter(owners_before.values())
    kept = sorted((before[member] for member in loads), reverse=True)
    wanted = sorted(loads.values(), reverse=True)
    return sum(wanted) - sum(map(min, kept, wanted))
