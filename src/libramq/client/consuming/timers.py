"""Due items, without a clock: timers as a plain queue."""

import heapq
import itertools
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs

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
