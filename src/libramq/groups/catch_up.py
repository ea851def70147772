"""The catch-up: how fast members read what waited in queues that they were given.

A backlog that is read at once loads whatever handlers write to; the busiest second says how much.
"""

from typing import Final

from libramq.clock import MonotonicMs

#: The design's window: a peak over one second.
WINDOW_MS: Final = 1_000


class CatchUp:
    """The messages of the current second, and those of the busiest one."""

    def __init__(self) -> None:
        self._window = 0
        self._count = 0
        self._peak = 0

    @property
    def peak_rate(self) -> int:
        """Messages a second at the most so far."""
        return self._peak

    def read(self, count: int, *, now_ms: MonotonicMs) -> None:
        """Count messages delivered to an owner that had not caught up."""
        window = int(now_ms) // WINDOW_MS
        if window != self._window:
            self._window, self._count = window, 0
        self._count += max(0, count)
        self._peak = max(self._peak, self._count)
