"""Virtual time: a clock that jumps from one event to the next.

Events that are due at the same millisecond happen in the order in which they were set.
"""

import heapq
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs, WallMs

#: 2023-11-14: any moment will do, as long as it is the same in every run.
WALL_START_MS: Final = WallMs(1_700_000_000_000)
#: Not zero: a time of nought means "never" in places.
MONOTONIC_START_MS: Final = MonotonicMs(1_000_000)

#: More at one moment is a circle; a hundred members that join at once make some thousands.
EVENTS_PER_MS_MAX: Final = 100_000

Action = Callable[[], None]


class Livelock(Exception):
    """Events make events, and time does not go on."""


class VirtualTime:
    """A `Clock`, and what is to happen when."""

    def __init__(self) -> None:
        self.now_ms = MONOTONIC_START_MS
        self._events: list[tuple[MonotonicMs, int, Action]] = []
        self._sequence = 0

    def monotonic_ms(self) -> MonotonicMs:
        """Milliseconds since a fixed moment."""
        return self.now_ms

    def wall_ms(self) -> WallMs:
        """Milliseconds since 1970."""
        return WALL_START_MS + (self.now_ms - MONOTONIC_START_MS)

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the simulation began."""
        return self.now_ms - MONOTONIC_START_MS

    def at(self, due_ms: MonotonicMs, action: Action) -> None:
        """Have something happen at a (monotonic) time; now, when that is over."""
        self._sequence += 1
        due_ms = due_ms if due_ms > self.now_ms else self.now_ms
        heapq.heappush(self._events, (due_ms, self._sequence, action))

    def run_until(self, end_ms: MonotonicMs) -> None:
        """Let everything happen up to a time; raises Livelock."""
        events, count, pop = self._events, 0, heapq.heappop
        while events and events[0][0] <= end_ms:
            due_ms, _, action = pop(events)
            if due_ms != self.now_ms:
                self.now_ms, count = due_ms, 0
            action()
            count += 1
            if count > EVENTS_PER_MS_MAX:
                raise Livelock(f"{count} events at {self.elapsed_ms} ms")
        self.now_ms = max(self.now_ms, end_ms)
