"""The earlier process: which messages of a slot it had delivered, though no file of the timers knows it.

The files are written once a second, and only when the commit log is on the disk; the delivered copies are in
the log at once. After a kill they say what of the last slots is not delivered again.

Ours; Apache's broker delivers again.
"""

from typing import Protocol

from libramq.catalog.destinations import Destinations
from libramq.clock import WallMs
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.timers.timer_log import TimerUnit


class Copies(Protocol):
    """The copies of delivered messages in the log, as it was found at the start."""

    @property
    def is_looking(self) -> bool:
        """Return whether there may be any."""
        ...

    def has(self, message: MessageExt, topic: str, queue_id: int, due_ms: int) -> bool | None:
        """Return whether the log has a message's copy in a queue; None: call again."""
        ...

    def passed_in_ms(self, wall_ms: WallMs) -> int:
        """Return after what time all that may have a copy was due before."""
        ...

    def end(self) -> None:
        """Look for none any more."""
        ...


class EarlierProcess:
    """Finds what was delivered before the start. destinations: where messages went then, as now."""

    def __init__(self, copies: Copies, destinations: Destinations, precision_ms: int) -> None:
        self._copies = copies
        self._destinations = destinations
        self._precision_ms = precision_ms

    def has_delivered(self, message: MessageExt, unit: TimerUnit, tick: int) -> bool | None:
        """Return whether a message of a slot was delivered; None: ask again. May raise ColdRead."""
        topic = message.properties.get(p.REAL_TOPIC)
        # What was rolled on is found by its key, in the slot that has it twice (`rolled_key`).
        if not self._copies.is_looking or topic is None or unit.rolls:
            return False
        sent_to = p.whole_number(message.properties.get(p.REAL_QUEUE_ID, ""), digits_max=9) or 0
        queue_id = self._destinations.queue_for(topic, sent_to)
        return self._copies.has(message, topic, queue_id, (tick + 1) * self._precision_ms)

    def passed(self, read_ms: int) -> None:
        """Note that all slots before a time are delivered: nothing is looked for once those of then are."""
        if self._copies.is_looking and self._copies.passed_in_ms(WallMs(read_ms)) <= 0:
            self._copies.end()
