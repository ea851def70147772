"""The tally: which numbered messages of a stream were acknowledged, and how often each was handled.

Programs print numbers as they handle messages, before they commit; a message that a killed member has
handled is handled again.
"""

from collections.abc import Iterable

#: What `handled` grows by: a block of messages.
_BLOCK = 65_536


class Tally:
    """One stream of messages with numbers from 0 on."""

    def __init__(self) -> None:
        self.acknowledged_count = 0
        self.handled_count = 0
        self.twice_count = 0
        self._handled = bytearray()
        #: Acknowledged and not handled yet, with the time of the acknowledgement.
        self._waiting: dict[int, float] = {}

    def acknowledged(self, numbers: Iterable[int], now_s: float) -> None:
        """Note that the broker has these messages."""
        for number in numbers:
            self.acknowledged_count += 1
            if not (number < len(self._handled) and self._handled[number]):
                self._waiting[number] = now_s

    def handled(self, numbers: Iterable[int]) -> None:
        """Note that a consumer has handled these messages, acknowledged or not."""
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
        """Return how many acknowledged messages nobody has handled."""
        return len(self._waiting)

    def overdue(self, before_s: float) -> list[int]:
        """Return the messages that were acknowledged before a time and that nobody has handled."""
        return sorted(number for number, since_s in self._waiting.items() if since_s < before_s)
