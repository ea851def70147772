"""The pace of a program that receives: whether it will soon want the next messages.

    each `receive` came back full, soon after the one before, and no other is under way     pop ahead
    anything else                                                                           wait for the next

The invisible time of messages that were popped ahead runs already, and no other member gets them meanwhile.
So this is done at a small fraction of that time only; what the program does not fetch soon is given back.
"""

from typing import Final

from libramq.clock import MonotonicMs

#: Ours: the part of the invisible time, and the time, that a program may take between two receives.
GAP_PART: Final = 100
GAP_MS_MAX: Final = 1_000
#: Ours: the part of the invisible time, and the time, for which messages are kept that were popped ahead.
KEPT_PART: Final = 10
KEPT_MS_MAX: Final = 5_000
#: Ours: full receives, one soon after another, before the next messages are popped ahead.
FULL_MIN: Final = 2


def kept_ms(invisible_ms: int) -> int:
    """Return how long messages may be kept that were popped ahead, from the moment of their request on."""
    return min(invisible_ms // KEPT_PART, KEPT_MS_MAX)


class Pace:
    """The receives of one consumer, by when they were called and what they returned."""

    def __init__(self) -> None:
        self._under_way = 0
        self._full = 0
        self._returned_ms: MonotonicMs | None = None

    def called(self, invisible_ms: int, now_ms: MonotonicMs) -> None:
        """Note the call of a receive."""
        self._under_way += 1
        gap_ms_max = min(invisible_ms // GAP_PART, GAP_MS_MAX)
        if self._returned_ms is None or now_ms - self._returned_ms > gap_ms_max:
            self._full = 0

    def returned(self, count: int, count_max: int, now_ms: MonotonicMs) -> bool:
        """Note that a receive returned so many messages; return whether to pop the next ones now."""
        self._under_way -= 1
        self._returned_ms = now_ms
        self._full = self._full + 1 if count == count_max else 0
        return self._full >= FULL_MIN and not self._under_way

    def failed(self) -> None:
        """Note that a receive failed, or was cancelled."""
        self._under_way -= 1
        self._full = 0
