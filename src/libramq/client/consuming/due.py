"""The timed events of a push consumer, each with its own deadline."""

import heapq
import itertools
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue


class Phase(Enum):
    """The phases of a consumer's life."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


T = TypeVar("T")

#: Ours: how soon what was due is done again, if an exception ended it.
FAILED_AGAIN_MS: Final = 1_000


class DueItems(Generic[T]):
    """Items by due time; those due at the same time are in the order they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[MonotonicMs, int, T]] = []
        self._order = itertools.count()
        #: When the next item is due.
        self.next_ms: MonotonicMs | None = None

    def at(self, due_ms: MonotonicMs, item: T) -> None:
        """Set an item's due time."""
        heapq.heappush(self._heap, (due_ms, next(self._order), item))
        self.next_ms = self._heap[0][0]

    def again(self, due_ms: MonotonicMs, item: T) -> None:
        """Set an item again whose work failed, unless that has set it."""
        if not any(each == item for _, _, each in self._heap):
            self.at(due_ms, item)

    def take_due(self, now_ms: MonotonicMs) -> T | None:
        """Remove and return the next item that is due; None when none is."""
        if self.next_ms is None or self.next_ms > now_ms:
            return None
        item = heapq.heappop(self._heap)[2]
        self.next_ms = self._heap[0][0] if self._heap else None
        return item

    def clear(self) -> None:
        """Cancel all timers."""
        self._heap.clear()
        self.next_ms = None


@dataclass(frozen=True, slots=True)
class RoutesDue:
    """Fetch the routes again."""


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Send a heartbeat to every broker."""


@dataclass(frozen=True, slots=True)
class ReconnectDue:
    """Try a silent broker again."""

    address: str


@dataclass(frozen=True, slots=True)
class PersistDue:
    """Commit changed offsets."""


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """Check for handlers that exceed their time."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """Fetch the member list again."""


@dataclass(frozen=True, slots=True)
class OffsetQueryDue:
    """Query the committed offset: the last owner has had time to commit, or a pause is over."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class PullDue:
    """Try to pull again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class DrainOver:
    """Stop waiting for running handlers of a queue that is no longer ours."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RedeliverDue:
    """Pass messages to a handler again after their send-back failed."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class LocksDue:
    """Renew the locks of our queues."""


@dataclass(frozen=True, slots=True)
class LockDue:
    """Try to lock a queue again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class SuspendOver:
    """Continue a queue that was suspended after a failure."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RevokeOver:
    """Stop waiting for the listener's hook for a revoked queue."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class MembershipDue:
    """Send the next request to the coordinator, or look it up again."""


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """Look whether our lease has ended."""


@dataclass(frozen=True, slots=True)
class ReleaseDue:
    """Release queues that have waited to be released with others."""


@dataclass(frozen=True, slots=True)
class ProcessingDue:
    """Check for handlers that run too long."""


@dataclass(frozen=True, slots=True)
class StopDue:
    """Stop now: the stop timeout is over."""


Due = (
    RoutesDue
    | HeartbeatDue
    | ReconnectDue
    | PersistDue
    | DeadlineDue
    | RebalanceDue
    | OffsetQueryDue
    | PullDue
    | DrainOver
    | RedeliverDue
    | LocksDue
    | LockDue
    | SuspendOver
    | RevokeOver
    | MembershipDue
    | LeaseDue
    | ReleaseDue
    | ProcessingDue
    | StopDue
)
