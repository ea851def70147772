"""Brief work: what the event loop does by itself while it takes little time, instead of by a thread.

    it took little ─► the loop does it again
    it took long   ─► a thread does it, for a hundred times as long as the loop was held

A flush of a fast disk takes 0.1 ms. To wake a thread for it and then the loop again, both of which need the
interpreter, took as long, and the answer waits for all of it. But a disk may stall at any time, and then the
loop stands still with all of its clients. So flushes that take long hold it for some hundredths of the time
at most, and usual ones for less than a turn of a connection.

The time for which the loop was ready to run and others ran instead does not count: on a busy machine a thread
would have waited so, too, and the loop after it.
"""

from typing import Final

#: Ours: the mean up to which the loop does it by itself; from there on others gain more from a free loop.
USUAL_US_MAX: Final = 400
#: Ours: what ends it at once: five turns, or a slice of the queues' flush.
LONG_US: Final = 10_000
#: Ours: how many times as long as it took a thread does it then.
REST: Final = 100
#: Ours: the weight of a new time in the mean: one of 4 ms among many of 0.1 changes nothing.
_WEIGHT: Final = 1 / 64


class BriefWork:
    """Decides who does the next brief work, by how long it has taken. Times are in microseconds."""

    def __init__(self) -> None:
        self._mean_us = USUAL_US_MAX / 2
        self._rests_until_us = 0

    def may_begin(self, now_us: int) -> bool:
        """Return whether the loop may do it."""
        return now_us >= self._rests_until_us

    @property
    def is_doubtful(self) -> bool:
        """Return whether it is worth the effort to find out how long the next one waits for a processor."""
        return self._mean_us >= USUAL_US_MAX / 2

    def ended(self, began_us: int, ended_us: int, waited_us: int = 0) -> None:
        """Take note of work that the loop has done. waited_us: for a processor, of that time."""
        took_us = max(
            0, ended_us - began_us - max(0, waited_us)
        )  # The kernel's count may not be readable once.
        self._mean_us += (took_us - self._mean_us) * _WEIGHT
        if took_us >= LONG_US or self._mean_us > USUAL_US_MAX:
            self._rests_until_us = ended_us + REST * max(took_us, USUAL_US_MAX)
            self._mean_us = USUAL_US_MAX  # A disk is not fast until it shows: the next slow one ends it.
