"""Timers by key: when each key is due. A key has one timer, which may fire early but never late.

A deadline that moves later is left alone: a key that fires too early is given its new time then.
"""

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from libramq.clock import MonotonicMs

K = TypeVar("K", bound=Hashable)


class KeyTimers(Generic[K]):
    """The timers of all keys, by monotonic times. next_due_ms: the earliest one at which one may fire.

    due_by: called with that time whenever a timer is set.
    """

    def __init__(self) -> None:
        self.due_by: Callable[[MonotonicMs], None] = lambda _: None
        self._due: dict[K, MonotonicMs] = {}
        self._heap: list[tuple[MonotonicMs, int, K]] = []
        self._sequence = 0
        self.next_due_ms: MonotonicMs | None = None

    def wake_by(self, key: K, due_ms: MonotonicMs | None) -> None:
        """Fire at that time at the latest; None: no timer needed."""
        if due_ms is None or self._due.get(key, due_ms + 1) <= due_ms:
            return
        self._due[key] = due_ms
        self._sequence += 1
        heapq.heappush(self._heap, (due_ms, self._sequence, key))
        self.next_due_ms = self._heap[0][0]
        self.due_by(self.next_due_ms)

    def take_due(self, now_ms: MonotonicMs) -> list[K]:
        """Return the keys that are due, by their times, and clear their timers."""
        keys = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_ms:
                del self._due[key]
                keys.append(key)
        self.next_due_ms = self._heap[0][0] if self._heap else None
        return keys
