"""The publication: what a coordinated group records before anything else, then grants to fences and answers
to members; what waits while the disk refuses.

Nothing is published of who holds what that is not recorded. While the disk refuses (`cannot_persist`), nobody
is granted anything, and members that join or poll hear SYSTEM_BUSY. While it is unknown who holds what,
nothing is recorded, so nobody waits for the disk.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT, Attempts, Claim, Claims, FenceGrant
from libramq.groups.coordinator.effect import Answer, Effect, Grant
from libramq.groups.coordinator.member import GroupMember, Sent
from libramq.groups.coordinator.queue_handover import Assignment, QueueHandover
from libramq.groups.coordinator.request import busy, refusal
from libramq.groups.coordinator.state import GroupState, Record
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: Ours: how soon a failed record is tried again.
RECORD_AGAIN_MS: Final = 1_000


class WaitingJoin(NamedTuple, Generic[T]):
    """A member's join, to be answered at that time at the latest."""

    ticket: T
    member: GroupMember[Any, T]
    until_ms: MonotonicMs


class GroupPublication(Generic[T]):
    """The outgoing effects of one group. effects: those published since the last `take`.

    is_changed: there is something to record. to_all: the fences need everything, not only what is new.
    joins, acknowledged: requests to be answered once their change is recorded: joins and removals. While it
    is unknown who holds what, joins do not wait for that, as their members continue with what they have.
    """

    def __init__(self, group: str, record: Record) -> None:
        self.effects: list[Effect[T]] = []
        self.is_changed = False
        self.to_all = True
        self.cannot_persist = False
        self.again_at_ms: MonotonicMs | None = None
        self.joins: list[WaitingJoin[T]] = []
        self.acknowledged: list[T] = []
        self._group = group
        self._record = record

    def record(self, state: GroupState, *, now_ms: MonotonicMs) -> None:
        """Write the state, unless the disk has just refused it."""
        if self.again_at_ms is not None and now_ms < self.again_at_ms:
            return
        try:
            self._record(self._group, state)
        except OSError as error:
            if not self.cannot_persist:  # Once: the broker's log may be on the same disk.
                log.error(
                    "group state not written; no queue is granted until it is",
                    group=self._group,
                    reason=str(error),
                )
            self.cannot_persist, self.again_at_ms = True, now_ms + RECORD_AGAIN_MS
            return
        self.cannot_persist, self.again_at_ms, self.is_changed = False, None, False

    def postpone_record(self) -> None:
        """Leave what the disk has refused to the next record: nothing is to be recorded now."""
        if self.cannot_persist:
            self.cannot_persist, self.again_at_ms, self.is_changed = False, None, True

    def grant(
        self, mode: str, queues: QueueHandover, existing: Callable[[QueueHandover], Iterable[MessageQueue]]
    ) -> None:
        """Send the fences the new grants, or everything to all fences if that is due."""
        if self.to_all and (queues.granted or mode == MODE_CLIENT):
            names = sorted({queue.broker_name for queue in (*existing(queues), *queues.granted)})
            self.effects += [Grant(name, complete_grant(self._group, mode, queues, name)) for name in names]
            self.to_all = not names
        elif queues.granted:
            self.effects += latest_grants(self._group, mode, queues)
        queues.granted.clear()

    def answer(self, member: GroupMember[P, T], assignment: Assignment, *, now_ms: MonotonicMs) -> None:
        """Answer the held poll."""
        assert member.poll is not None
        if self.cannot_persist:
            self.refuse(member, ResponseCode.SYSTEM_BUSY, "the group's state cannot be written; poll again")
            return
        member.last_sent = Sent(assignment, now_ms, member.peer)
        self.effects.append(Answer(member.poll.ticket, assignment=assignment))
        member.poll = None

    def refuse(self, member: GroupMember[P, T], code: ResponseCode, remark: str) -> None:
        """Answer the held poll, and joins that wait, with an error."""
        if member.poll is not None:
            self.effects.append(Answer(member.poll.ticket, code, remark))
            member.poll = None
        self.effects += [Answer(join.ticket, code, remark) for join in self.joins if join.member is member]
        self.joins = [join for join in self.joins if join.member is not member]

    def answer_joins(
        self,
        assignment: Callable[[GroupMember[Any, T]], Assignment],
        count_max: int,
        *,
        is_soon_assigned: bool,
        now_ms: MonotonicMs,
    ) -> None:
        """Answer the members that have joined, at most so many; the others are due at once.

        is_soon_assigned: changes are collected, or the fences asked; joins that wait do so for that.
        """
        joins, self.joins = self.joins, []
        count = 0
        for join in joins:
            if self.cannot_persist:
                self.effects.append(refusal(join.ticket, busy(self._group)))
            elif is_soon_assigned and now_ms < join.until_ms:
                self.joins.append(join)
            elif count == count_max:
                self.joins.append(join._replace(until_ms=now_ms))
            else:
                count += 1
                assigned = assignment(join.member)
                join.member.last_sent = Sent(assigned, now_ms, join.member.peer)
                self.effects.append(Answer(join.ticket, member=join.member.id, assignment=assigned))

    @property
    def due_ms(self) -> MonotonicMs | None:
        """Return when a record is to be tried again, or a join has waited long enough."""
        times = [join.until_ms for join in self.joins]
        if self.again_at_ms is not None:
            times.append(self.again_at_ms)
        return min(times, default=None)

    def acknowledge(self) -> None:
        """Answer the removals, which are recorded now."""
        for ticket in self.acknowledged:
            refused = self.cannot_persist
            self.effects.append(refusal(ticket, busy(self._group)) if refused else Answer(ticket))
        self.acknowledged.clear()

    def redirect(self, address: str) -> None:
        """Refuse the removals that are not recorded: another broker coordinates the group now."""
        self.effects += [
            Answer(ticket, ResponseCode.NOT_COORDINATOR, address) for ticket in self.acknowledged
        ]
        self.acknowledged.clear()

    def take(self) -> list[Effect[T]]:
        """Return and clear the published effects."""
        effects, self.effects = self.effects, []
        return effects


def complete_grant(group: str, mode: str, queues: QueueHandover, broker_name: str) -> FenceGrant:
    """Return the full state for one fence."""
    claims = {
        queue: Claim(holding.member, holding.epoch)
        for queue, holding in queues.holdings.items()
        if queue.broker_name == broker_name
    }
    return FenceGrant(
        group=group,
        epoch=queues.epoch,
        mode=mode,
        claims=claims,
        complete=True,
        attempts=_attempts(queues, claims),
    )


def latest_grants(group: str, mode: str, queues: QueueHandover) -> list[Grant]:
    """Return the grants since the last call, one per broker."""
    by_broker: dict[str, dict[MessageQueue, Claim]] = {}
    for queue in queues.granted:
        holding = queues.holdings.get(queue)
        if holding is not None:
            by_broker.setdefault(queue.broker_name, {})[queue] = Claim(holding.member, holding.epoch)
    return [
        Grant(
            name,
            FenceGrant(
                group=group, epoch=queues.epoch, mode=mode, claims=claims, attempts=_attempts(queues, claims)
            ),
        )
        for name, claims in by_broker.items()
    ]


def _attempts(queues: QueueHandover, claims: Claims) -> dict[MessageQueue, Attempts]:
    return {queue: queues.attempts[queue] for queue in claims if queue in queues.attempts}
