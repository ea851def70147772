"""The longest turn: how long one event kept the loop from all others, since each reader last looked."""

from typing import Final

#: The readers: BROKER_RUNTIME_INFO and the metrics. One takes nothing from the other.
RUNTIME_INFO: Final = 0
METRICS: Final = 1


class LongestTurn:
    """The longest turn of the loop, in microseconds."""

    __slots__ = ("_longest_us",)

    def __init__(self) -> None:
        self._longest_us = [0, 0]

    def record(self, turn_us: int) -> None:
        """Take note of a turn."""
        for reader, longest_us in enumerate(self._longest_us):
            if turn_us > longest_us:
                self._longest_us[reader] = turn_us

    def take_us(self, reader: int) -> int:
        """Return the longest turn since this reader last looked, and begin anew for it."""
        longest_us, self._longest_us[reader] = self._longest_us[reader], 0
        return longest_us
