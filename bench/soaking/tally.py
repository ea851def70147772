"""The tally: which numbered messages of a stream were acknowledged, and how often each was handled.

Programs print numbers as they handle messages, before they commit; messages of a killed member may be handled
again.
"""

from collections.abc import Iterable

#: The block of messages by which `handled` grows.
_BLOCK = 65_536


class Tally:
    """One stream of messages, numbered from 0."""

    def __init__(self) -> None:
        self.acknowledged_count = 0
        self.handled_count = 0
        self.twice_count = 0
        self._handled = bytearray()
        #: Acknowledged but unhandled messages, with the time of the acknowledgement.
        self._waiting: dict[int, float] = {}

    def acknowledged(self, numbers: Iterable[int], now_s: float) -> None:
        """Record that the broker acknowledged these messages."""
        for number in numbers:
            self.acknowledged_count += 1
            if not (number < len(self._handled) and self._handled[number]):
                self._waiting[number] = now_s

    def handled(self, numbers: Iterable[int]) -> None:
        """Record that a consumer handled these messages, acknowledged or not."""
        for number in numbers:
            while number >= len(self._handled):
                self._handled.extend(bytes(_BLOCK))
            if self._handled[number]:
                self.twice_count += 1
            else:
                self._handled[number] = 1
                self.handled_count += 1
                self._waiting.pop(number, None)

    @property
    def waiting_count(self) -> int:
        """Return the number of acknowledged, unhandled messages."""
        return len(self._waiting)

    def overdue(self, before_s: float) -> list[int]:
        """Return the unhandled messages that were acknowledged before a time."""
        return sorted(number for number, since_s in self._waiting.items() if since_s < before_s)
