"""The longest turn: how long one event blocked the loop, since each reader's last look."""

from typing import Final

#: The readers: BROKER_RUNTIME_INFO and the metrics. They do not affect each other.
RUNTIME_INFO: Final = 0
METRICS: Final = 1


class LongestTurn:
    """The longest turn of the loop, in microseconds."""

    __slots__ = ("_longest_us", "noted_us")

    def __init__(self) -> None:
        self._longest_us = [0, 0]
        #: Shorter turns change nothing, as nearly all: `record` need not be called for them.
        self.noted_us = 0

    def record(self, turn_us: int) -> None:
        """Record a turn."""
        self._longest_us = [max(turn_us, longest_us) for longest_us in self._longest_us]
        self.noted_us = min(self._longest_us)

    def take_us(self, reader: int) -> int:
        """Return the longest turn since this reader's last call, and start over for it."""
        longest_us, self._longest_us[reader] = self._longest_us[reader], 0
        self.noted_us = 0
        return longest_us
