"""Timers: who is to be looked at when. Each key has one; it may fire early, never late.

A deadline that moves away is left where it is: who is woken too early says anew when to wake it.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from libramq.clock import MonotonicMs

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """The timers of all keys. Times are monotonic."""

    def __init__(self) -> None:
        self._due: dict[K, MonotonicMs] = {}
        self._heap: list[tuple[MonotonicMs, int, K]] = []
        self._sequence = 0

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """When somebody is to be looked at next; at the earliest."""
        return self._heap[0][0] if self._heap else None

    def wake_by(self, key: K, due_ms: MonotonicMs | None) -> None:
        """Fire at that time at the latest; None: no need."""
        if due_ms is None or self._due.get(key, due_ms + 1) <= due_ms:
            return
        self._due[key] = due_ms
        self._sequence += 1
        heapq.heappush(self._heap, (due_ms, self._sequence, key))

    def take_due(self, now_ms: MonotonicMs) -> list[K]:
        """Whom to look at now, by their times; their timers are off."""
        keys = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_ms:
                del self._due[key]
                keys.append(key)
        return keys
