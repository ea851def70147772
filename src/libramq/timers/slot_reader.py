"""The slot reader: reads the messages of one slot in order, without deleted ones, some time before the slot
is due.

    walk      the chain of units, from the last to the first
    delete    the keys named by deletions among them
    read      the messages, some at a time

All of it can be done before the slot is due (`prepare`), so that the messages only have to be stored then.

Every step may meet data that is not in memory (ColdRead); it continues there once a thread has read it.
Upstream: TimerMessageStore.dequeue and TimerDequeueGetMessageService.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.kernel.work import PORTION
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.names import TIMER_TOPIC
from libramq.message.record import decode_record
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore
from libramq.timers.due_message import DueMessage, prepare, rolled_key
from libramq.timers.timer_log import NO_UNIT, TimerLog, TimerUnit
from libramq.timers.timer_wheel import TimerWheel

log = get_logger(__name__)

#: Ours: the cost of a message that still has to be read, in prepared messages (25 and 6 µs).
READ_COST: Final = 4
#: Ours: at most this many messages are prepared before their slot is due.
PREPARED_MAX: Final = 10_000
#: Ours: the bytes of their records. A message may have 32 KiB of properties besides its body.
PREPARED_BYTES_MAX: Final = 8 << 20


class _StillLooking(Exception):
    """Raised while it is unknown whether a message was delivered before: call again."""


class TimerData(NamedTuple):
    """The store with the waiting messages, their units in the log, and the units' slots."""

    store: MessageStore
    log: TimerLog
    wheel: TimerWheel


class SlotReader:
    """Reads one slot. tick: its time / precision. is_left_out: whether a topic's messages are not delivered.

    was_delivered: whether a slave or an earlier process delivered a message; None: call again. `taken_over`:
    the topics of such messages, by place. deleted_end: see `Destinations`; `dropped`: the topics of messages
    to deleted topics, by place.
    """

    def __init__(
        self,
        data: TimerData,
        tick: int,
        is_left_out: Callable[[str | None], bool],
        was_delivered: Callable[[MessageExt, TimerUnit], bool | None],
        deleted_end: Callable[[str], int],
        *,
        roll_window_ms: int,
    ) -> None:
        self._deleted_end = deleted_end
        self._roll_window_ms = roll_window_ms
        #: Messages prepared before the slot was due, by physical offset; their bytes, and the number of
        #: units.
        self._prepared: dict[int, DueMessage] = {}
        self._prepared_bytes = self._prepared_units = 0
        self._is_left_out = is_left_out
        self._was_delivered = was_delivered
        self.taken_over: dict[int, str] = {}
        self.dropped: dict[int, str] = {}
        self._store, self._log, self._wheel = data
        self.tick = tick
        slot = self._wheel.get(tick)
        self._last = self._next = slot.last if slot is not None else NO_UNIT
        #: Units from here on were already walked: a slot may get more while it is read.
        self._known = NO_UNIT
        self._units: list[TimerUnit] = []
        self._deletions: list[TimerUnit] = []
        self._deleted: set[str] = set()
        self._is_walked = False
        #: The position at which the chain is broken.
        self.broken_at: int | None = None
        #: The messages of walked units: a message that was collected again has two units.
        self._walked: set[int] = set()
        #: The keys of messages that the topic may hold twice because they were rolled (`rolled_key`).
        self._rolled: set[str] = set()
        self._read_count = 0
        #: The offsets of messages that the log does not have.
        self._missing: set[int] = set()

    def is_finished(self) -> bool:
        """Return whether every message was read and taken; if the slot has grown, walk it again."""
        if not self._is_walked or self._units:
            return False
        slot = self._wheel.get(self.tick)
        if slot is None or slot.last == self._last:
            return True
        self._known, self._last, self._next = self._last, slot.last, slot.last
        self._is_walked = False
        return False

    def prepare(self, count_max: int) -> bool:
        """Read some messages before the slot is due; return whether all are read for which there is memory.

        Raises ColdRead only if the first of them is not in memory.
        """
        if not self._walk() or not self._read_deletions():
            return False
        first = len(self._units) - self._prepared_units  # Delivery goes from the last unit to the first.
        for position in range(first - 1, max(first - 1 - count_max, -1), -1):
            if len(self._prepared) >= PREPARED_MAX or self._prepared_bytes >= PREPARED_BYTES_MAX:
                return True
            unit = self._units[position]
            try:
                message = self._message(unit)
            except ColdRead:
                if position < first - 1:
                    break
                raise
            except _StillLooking:
                return False
            self._prepared_units += 1
            if message is not None:
                self._prepared[unit.physical_offset] = prepare(message, unit, self._roll_window_ms)
                self._prepared_bytes += message.store_size
        return self._prepared_units == len(self._units)

    def begin(self) -> None:
        """Walk the chain again if it has grown since the slot was prepared: it may have new deletions."""
        slot = self._wheel.get(self.tick)
        if slot is not None and slot.last != self._last:
            self._last = self._next = slot.last
            self._units, self._deletions, self._walked = [], [], set()
            self._is_walked, self.broken_at = False, None

    def forget_prepared(self) -> None:
        """Discard the prepared messages: more of them may have been delivered than was known."""
        self._prepared.clear()
        self._prepared_bytes = self._prepared_units = 0

    def next_messages(self, cost_max: int) -> list[DueMessage]:
        """Return the next messages; none if more units have to be walked. They count as read after `taken`.

        cost_max: a prepared message costs 1, another READ_COST, and a large body more. Raises ColdRead only
        if the first message is not in memory.
        """
        self._read_count = 0
        if not self._walk() or not self._read_deletions():
            return []
        due: list[DueMessage] = []
        rolled: set[str] = set()
        left_out: dict[str | None, bool] = {}
        cost = kept = 0  # Leading units without a message, or with a deleted one, are skipped.
        prepared, deleted = self._prepared, self._deleted
        for unit in reversed(self._units[-cost_max:]):
            if cost >= cost_max:
                break
            each = prepared.get(unit.physical_offset)
            if each is None:
                try:
                    message = self._message(unit)
                except ColdRead:
                    if kept:
                        break
                    raise
                except _StillLooking:
                    break
                if message is not None:
                    each = prepare(message, unit, self._roll_window_ms)
                cost += READ_COST - 1
            kept += 1
            if each is None:
                cost += 1
                continue
            topic = each.real_topic
            if topic not in left_out:
                left_out[topic] = self._is_left_out(topic)
            if topic is not None and each.physical_offset < self._deleted_end(topic):
                self.dropped[each.physical_offset] = topic
                cost += 1
                continue
            if left_out[topic] or (deleted and each.deletion_key in deleted):
                cost += 1
                continue
            cost += each.cost
            key = each.rolled_key
            if key is not None:
                if key in self._rolled or key in rolled:
                    continue
                rolled.add(key)
            due.append(each)
        self._read_count = kept
        return due

    def taken(self, count: int, due: list[DueMessage]) -> None:
        """Note that the first messages of the last read were stored; the rest will be read again."""
        forget, rolled = self._prepared.pop, self._rolled
        for each in due[:count]:
            forget(each.physical_offset, None)
            if each.rolled_key is not None:
                rolled.add(each.rolled_key)
        if count == len(due):
            del self._units[len(self._units) - self._read_count :]
            return
        position = due[count].physical_offset
        while self._units[-1].physical_offset != position:
            self._units.pop()

    def report(self) -> None:
        """Log the number of units without a message, at the end."""
        if self._missing:
            log.error(
                "timer messages cannot be read; they are not delivered",
                count=len(self._missing),
                slot=self.tick,
            )

    def _walk(self) -> bool:
        """Follow the chain; return whether its beginning was reached."""
        budget = PORTION
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
        for _ in range(PORTION):
            if not self._deletions:
                return True
            message = self._message(self._deletions[-1])
            if message is not None and p.TIMER_DEL_UNIQKEY in message.properties:
                self._deleted.add(message.properties[p.TIMER_DEL_UNIQKEY])
            self._deletions.pop()
        return False

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
        message = decoded[0]
        was_delivered = not unit.deletes and self._was_delivered(message, unit)
        if was_delivered is None:
            raise _StillLooking
        if was_delivered:
            self.taken_over[unit.physical_offset] = message.properties.get(p.REAL_TOPIC, "")
            key = rolled_key(message, self._roll_window_ms)
            if key is not None:  # One copy stands for both.
                self._rolled.add(key)
            return None
        return message
