"""The cost of a move: how long a queue goes unread, and how many of its messages are delivered twice.

        the queue's former owner           cause
        is alive and continues             handover
        stopped in this step               left
        process was killed                 crashed
        fell silent                        lost

The costs are medians of measured rebalances: by default those of docs/performance.md, at 62.5 messages/s per
queue, or those of a cluster's own recorded events. Queues without a former owner and queues that stay cost
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from libramq.groups.consumer_group import ANSWER_MS_MAX, SILENCE_MS_MAX
from libramq.groups.rebalance_event import Reason
from libramq.groups.rebalance_history import Rebalance
from libramq.lab.entrant import Allocator
from libramq.lab.histories import Departure

HANDOVER: Final = "handover"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one queue. repeated: messages delivered twice."""

    pause_ms: float
    repeated: float


Costs = Mapping[tuple[Allocator, str], Cost]

_KILLED_JAVA_MS: Final = 530
COSTS: Final[Costs] = MappingProxyType(
    {
        # docs/performance.md, "Rebalances", one broker: B joins; B stops; C, with 8 queues, is killed; D,
        # with 8, is frozen.
        (Allocator.COORDINATOR, HANDOVER): Cost(6, 0),
        (Allocator.COORDINATOR, Departure.LEFT.value): Cost(26, 0),
        (Allocator.COORDINATOR, Departure.CRASHED.value): Cost(177, 14 / 8),
        (Allocator.COORDINATOR, Departure.LOST.value): Cost(9_834, 22 / 8),
        # docs/performance.md, "Rebalances of Java consumers", concurrent, on our broker. No frozen client was
        # measured: the broker probes a silent client after SILENCE_MS_MAX, then reassigns its queues like
        # those of a killed one.
        (Allocator.CLIENTS, HANDOVER): Cost(1_153, 0),
        (Allocator.CLIENTS, Departure.LEFT.value): Cost(522, 0),
        (Allocator.CLIENTS, Departure.CRASHED.value): Cost(_KILLED_JAVA_MS, 4 / 8),
        (Allocator.CLIENTS, Departure.LOST.value): Cost(
            SILENCE_MS_MAX + ANSWER_MS_MAX + _KILLED_JAVA_MS, 4 / 8
        ),
    }
)
"""Default costs by allocator and cause."""

DEPARTURES: Final[Mapping[str, Departure]] = MappingProxyType(
    {
        Reason.MEMBER_LEFT.value: Departure.LEFT,
        Reason.CONNECTION_CLOSED.value: Departure.CRASHED,
        Reason.SESSION_EXPIRED.value: Departure.LOST,
        Reason.PROCESSING_TIMEOUT.value: Departure.LOST,
    }
)
"""The kind of departure, by the reason in brokers' records."""


class RecordedMove(NamedTuple):
    """A queue that changed hands in a recorded rebalance. redelivered: None if unknown."""

    cause: str
    pause_ms: int
    redelivered: int | None


def recorded_moves(rebalances: Iterable[Rebalance]) -> list[RecordedMove]:
    """Return the moves of queues that had a former owner."""
    found = []
    for rebalance in rebalances:
        gone = {
            cause.who: DEPARTURES[cause.reason] for cause in rebalance.causes if cause.reason in DEPARTURES
        }
        found += [
            RecordedMove(
                gone[move.from_].value if move.from_ in gone else HANDOVER,
                move.pause_ms,
                move.redelivered_bound,
            )
            for move in rebalance.moves
            if move.from_ is not None
        ]
    return found


def measured_costs(pauses_ms: Mapping[str, float], repeated: Mapping[str, float]) -> Costs:
    """Return measured costs by cause, for every allocator; causes without a move keep their defaults."""
    return {
        (allocator, cause): Cost(pauses_ms.get(cause, cost.pause_ms), repeated.get(cause, cost.repeated))
        for (allocator, cause), cost in COSTS.items()
    }
