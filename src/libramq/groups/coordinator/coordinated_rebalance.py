"""The rebalance of a coordinated group: from the first change until every queue is at its target.

A coordinator knows the holders before, so it can count the moves and the fewest that were possible.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libramq.balance.group import counts
from libramq.clock import MonotonicMs
from libramq.groups.coordinator.effect import HandedOver, Settled, Started
from libramq.groups.coordinator.group_state import MemberProfile
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.groups.coordinator.target_assignment import fewest_moves
from libramq.groups.handover_ledger import Holding
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue


def holders_of(holdings: Mapping[MessageQueue, Holding]) -> dict[MessageQueue, str]:
    """Return the members by queue."""
    return {queue: holding.member for queue, holding in holdings.items()}


@dataclass(slots=True)
class CoordinatedRebalance:
    """A rebalance under way. before: holders by queue; names: client ids by member, past and present.

    causes: reasons that are not recorded yet, and the clients behind them. is_started: an event has been
    recorded. Retry topics carry no load and are left out of all figures.
    """

    started_at_ms: MonotonicMs
    before: dict[MessageQueue, str]
    names: dict[str, str] = field(default_factory=dict)
    causes: dict[Reason, dict[str, None]] = field(default_factory=dict)
    duplicates: int = 0
    is_started: bool = False

    def add(self, reason: Reason, who: str) -> None:
        """Add a cause."""
        self.causes.setdefault(reason, {})[who] = None

    def take_started(self, group: str, epoch: int, members: Sequence[str]) -> list[Started]:
        """Return and clear the starts that are still to be recorded, one event per reason."""
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

    def settled(
        self,
        group: str,
        profiles: Sequence[MemberProfile],
        queues: Sequence[MessageQueue],
        handover: QueueHandover,
        *,
        now_ms: MonotonicMs,
    ) -> Settled:
        """Return the outcome of the rebalance."""
        self.know(profiles)
        loads = Counter({profile.client_id: 0 for profile in profiles})
        holders = {
            queue: self._name(held.member) for queue, held in handover.holdings.items() if counts(queue.topic)
        }
        loads.update(holders.values())
        moves = tuple(self._moves(handover))
        committed = handover.take_committed()
        return Settled(
            group=group,
            epoch=handover.epoch,
            moves=moves,
            minimum=fewest_moves(group, profiles, [q for q in queues if counts(q.topic)], self.before),
            time_to_stable_ms=now_ms - self.started_at_ms,
            uncommitted=tuple(move.queue for move in moves if move.queue not in committed),
            unheld=sum(queue not in handover.holdings for queue in queues if counts(queue.topic)),
            duplicates=self.duplicates,
            loads=loads,
            holders=holders,
        )

    def know(self, profiles: Sequence[MemberProfile]) -> None:
        """Remember client ids, so that members that leave can still be named at the end."""
        self.names.update({profile.member: profile.client_id for profile in profiles})

    def _moves(self, handover: QueueHandover) -> list[HandedOver]:
        return [
            HandedOver(
                queue=queue,
                from_=self._name(self.before[queue]) if queue in self.before else None,
                to=self._name(holding.member),
                freed_at_ms=handover.freed.get(queue),
                granted_at_ms=holding.granted_at_ms,
                epoch=holding.epoch,
            )
            for queue, holding in sorted(handover.holdings.items())
            if counts(queue.topic) and self.before.get(queue) != holding.member
        ]

    def _name(self, member: str) -> str:
        return self.names.get(member, member)
