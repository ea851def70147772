"""The slot reader: the messages of one slot, in the order in which they were collected, without the deleted.

    walk      the chain of units, from the last to the first
    delete    the keys that deletions among them name
    read      the messages, some at a time

Every step may meet data that is not in memory (ColdRead); it continues there once a thread has read it.
Upstream: TimerMessageStore.dequeue and TimerDequeueGetMessageService.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.names import TIMER_TOPIC
from libramq.message.record import decode_record
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore
from libramq.timers.timer_log import TimerLog
from libramq.timers.timer_wheel import TimerWheel
from libramq.timers.unit import NO_UNIT, TimerUnit

log = get_logger(__name__)

#: Ours: units that are looked at before others are served; one takes 3 µs.
WALKED_PER_ROUND: Final = 1_000


class DueMessage(NamedTuple):
    """A message whose slot is due.

    written_ms: when it was collected. rolls: it waits in a later slot again.
    """

    message: MessageExt
    written_ms: int
    rolls: bool


def rolled_key(message: MessageExt, roll_window_ms: int) -> str | None:
    """Return what a message has in common with itself rolled on; None if it waits too short a time for that.

    A promoted slave collects both again, with no knowledge of the slots that they were in. Recalls have none:
    two of them do no harm. Nor have messages without a unique key.
    """
    properties = message.properties
    unique_key = properties.get(p.UNIQ_KEY)
    if unique_key is None or p.TIMER_DEL_UNIQKEY in properties:
        return None
    if p.TIMER_ROLL_TIMES not in properties:
        out_ms = p.whole_number(properties.get(p.TIMER_OUT_MS, ""))
        if out_ms is None or out_ms - message.store_timestamp_ms < roll_window_ms:
            return None
    return f"{properties.get(p.REAL_TOPIC)}+{properties.get(p.TIMER_OUT_MS)}+{unique_key}"


class SlotReader:
    """Reads one slot. tick: its time / precision. is_left_out: whether nobody is to get a message."""

    def __init__(
        self,
        store: MessageStore,
        timer_log: TimerLog,
        wheel: TimerWheel,
        tick: int,
        is_left_out: Callable[[MessageExt], bool],
        *,
        roll_window_ms: int,
    ) -> None:
        self._roll_window_ms = roll_window_ms
        self._is_left_out = is_left_out
        self._store = store
        self._log = timer_log
        self._wheel = wheel
        self.tick = tick
        slot = wheel.get(tick)
        self._last = self._next = slot.last if slot is not None else NO_UNIT
        #: Units from here on have been walked before: a slot may get more while it is read.
        self._known = NO_UNIT
        self._units: list[TimerUnit] = []
        self._deletions: list[TimerUnit] = []
        self._deleted: set[str] = set()
        self._is_walked = False
        #: Where the chain led to no unit.
        self.broken_at: int | None = None
        #: The messages of units that were walked: a message that was collected again has two.
        self._walked: set[int] = set()
        #: The keys of messages that the topic may have again, as they were rolled on (`rolled_key`).
        self._rolled: set[str] = set()
        self._read_count = 0
        #: Where messages should be that the log does not have.
        self._missing: set[int] = set()

    def is_finished(self) -> bool:
        """Return whether every message was read and taken; a slot that has grown is walked again."""
        if not self._is_walked or self._units:
            return False
        slot = self._wheel.get(self.tick)
        if slot is None or slot.last == self._last:
            return True
        self._known, self._last, self._next = self._last, slot.last, slot.last
        self._is_walked = False
        return False

    def next_messages(self, count_max: int) -> list[DueMessage]:
        """Return the next messages; none if more units have to be walked. They count as read with `taken`.

        Raises ColdRead only if the first of them is not in memory.
        """
        self._read_count = 0
        if not self._walk() or not self._read_deletions():
            return []
        due: list[DueMessage] = []
        rolled: set[str] = set()
        kept = 0  # Units in front that lead to no message, or to a deleted one, are skipped.
        for unit in reversed(self._units[-count_max:]):
            try:
                message = self._message(unit)
            except ColdRead:
                if kept:
                    break
                raise
            kept += 1
            if message is None or self._is_deleted(message) or self._is_left_out(message):
                continue
            key = rolled_key(message, self._roll_window_ms)
            if key is None or not (key in self._rolled or key in rolled):
                due.append(DueMessage(message, unit.written_ms, unit.rolls))
            if key is not None:
                rolled.add(key)
        self._read_count = kept
        return due

    def taken(self, count: int, due: list[DueMessage]) -> None:
        """Note that the first messages of the last read were stored; the others will be read again."""
        for each in due[:count]:
            key = rolled_key(each.message, self._roll_window_ms)
            if key is not None:
                self._rolled.add(key)
        if count == len(due):
            del self._units[len(self._units) - self._read_count :]
            return
        position = due[count].message.physical_offset
        while self._units[-1].physical_offset != position:
            self._units.pop()

    def report(self) -> None:
        """Log how many units led to no message, at the end."""
        if self._missing:
            log.error(
                "timer messages cannot be read; they are not delivered",
                count=len(self._missing),
                slot=self.tick,
            )

    def _walk(self) -> bool:
        """Follow the chain; return whether its begin was reached."""
        budget = WALKED_PER_ROUND
        while not self._is_walked:
            if self._next in (NO_UNIT, self._known):
                self._is_walked = True
                break
            if not budget:
                return False
            budget -= 1
            unit = self._log.unit_at(self._next)
            if unit is None or unit.previous >= self._next:
                self.broken_at = self._next
                self._is_walked = True
                break
            if unit.deletes and not unit.rolls:
                self._deletions.append(unit)
            elif unit.physical_offset not in self._walked:
                self._walked.add(unit.physical_offset)
                self._units.append(unit)
            self._next = unit.previous
        return True

    def _read_deletions(self) -> bool:
        for _ in range(WALKED_PER_ROUND):
            if not self._deletions:
                return True
            message = self._message(self._deletions[-1])
            if message is not None and p.TIMER_DEL_UNIQKEY in message.properties:
                self._deleted.add(message.properties[p.TIMER_DEL_UNIQKEY])
            self._deletions.pop()
        return False

    def _is_deleted(self, message: MessageExt) -> bool:
        if not self._deleted:
            return False
        properties = message.properties
        return f"{properties.get(p.REAL_TOPIC)}+{properties.get(p.UNIQ_KEY)}" in self._deleted

    def _message(self, unit: TimerUnit) -> MessageExt | None:
        """Return the message of a unit; None if the log no longer has it."""
        data = self._store.record_at(unit.physical_offset)
        try:
            decoded = decode_record(data, decompress=False) if data is not None else None
        except RemoteProtocolError:
            decoded = None
        if decoded is None or decoded[0].topic != TIMER_TOPIC:
            self._missing.add(unit.physical_offset)
            return None
        return decoded[0]
