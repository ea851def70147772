"""The rebalance of a coordinated group: from the first change until every queue is at its target.

It has what brokers cannot observe: the causes, the fewest moves that were possible, and which queues were
given up without a commit. What moved, and when, `groups.rebalance` records at each broker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libramq.groups.coordinator.effect import Started
from libramq.groups.handover_ledger import Holding
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue


def holders_of(holdings: Mapping[MessageQueue, Holding]) -> dict[MessageQueue, str]:
    """Return the members by queue."""
    return {queue: holding.member for queue, holding in holdings.items()}


@dataclass(slots=True)
class CoordinatedRebalance:
    """A rebalance under way. before: holders by queue; names: client ids by member, past and present.

    causes: reasons that are not recorded yet, and the clients behind them. minimum: the fewest moves, if they
    were counted with the last assignment. is_started: an event has been recorded.
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
