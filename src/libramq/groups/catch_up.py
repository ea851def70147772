"""The catch-up: how fast members read the backlog of queues that they were assigned.

A backlog that is read at once loads whatever the handlers write to; the busiest second shows how much.
"""

from typing import Final

from libramq.clock import MonotonicMs

#: The design's window: a peak over one second.
WINDOW_MS: Final = 1_000


class CatchUpPeak:
    """Counts the messages of the current second, and of the busiest one."""

    def __init__(self) -> None:
        self._window = 0
        self._count = 0
        self._peak = 0

    @property
    def peak_rate(self) -> int:
        """Return the highest rate so far, in messages a second."""
        return self._peak

    def read(self, count: int, *, now_ms: MonotonicMs) -> None:
        """Count messages delivered to an owner that had not caught up."""
        window = int(now_ms) // WINDOW_MS
        if window != self._window:
            self._window, self._count = window, 0
        self._count += max(0, count)
        self._peak = max(self._peak, self._count)
