"""The catch-up pace: how fast a queue that was taken over may deliver its backlog.

A queue whose last owner is gone has a backlog, and its next owner would get all of it at once. The pace holds
until the queue has been read to its end once.
"""

from typing import Final

from libramq.clock import MonotonicMs

#: Ours: pulls of a queue that catches up bring a tenth of a second's messages, so that the pace is even.
PULLS_A_SECOND: Final = 10


class CatchUpPace:
    """The pace of one queue, in messages a second."""

    def __init__(self, rate: int, now_ms: MonotonicMs) -> None:
        self.rate = rate
        self._due_us = int(now_ms) * 1000

    @property
    def portion(self) -> int:
        """Return how many messages one pull may bring."""
        return max(1, self.rate // PULLS_A_SECOND)

    def brought(self, count: int, now_ms: MonotonicMs) -> int:
        """Count pulled messages; return how long to wait before the next pull."""
        now_us = int(now_ms) * 1000
        self._due_us = max(self._due_us, now_us) + count * 1_000_000 // self.rate
        return max(0, (self._due_us - now_us) // 1000)
