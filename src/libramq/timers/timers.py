"""The timer messages: how one is accepted, collected, kept until its time, recalled, rolled and delivered;
how many at once.

    accept    a message that requests a time (TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS: the first
              one found counts) goes to the timers' topic instead of its own
    collect   the topic's messages get units in the timer log, chained by the wheel's slots
    prepare   the messages of the next slot are read shortly before it is due
    deliver   the messages of a due slot are stored again, and the slot is removed

Topic, log and wheel are Apache's: either broker delivers messages accepted by the other. Timers follow the
wall clock: if it is set forward, messages due meanwhile are delivered.

Upstream: store/timer/TimerMessageStore.java, TimerMetrics.java, broker/util/HookUtils.transformTimerMessage.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from libramq.catalog.destinations import Destinations
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import RemoteProtocolError, broker_error
from libramq.formats.document import Document
from libramq.formats.tables import DataVersion
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.names import TIMER_TOPIC
from libramq.message.record import decode_records
from libramq.message.tags import java_hash
from libramq.store.log.append import AppendStatus, StoreMessage
from libramq.store.reading.read import ReadStatus
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.due_message import delivered_at, stored_at
from libramq.timers.slot_reader import SlotReader, TimerData
from libramq.timers.timer_log import TimerUnit
from libramq.timers.timer_wheel import SLOTS

log = get_logger(__name__)
#: Long.parseLong, without the digits of other alphabets.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerOptions:
    """The options of timers; MessageStoreConfig.timerWheelEnable and related ones.

    precision_ms: messages are delivered at its multiples. roll_window_slots: messages further away are
    collected again, so that the timer log's old files can be removed.
    """

    enabled: bool = True
    precision_ms: int = 1000
    max_delay_ms: int = 3 * 24 * 3600 * 1000
    roll_window_slots: int = 2 * 24 * 3600
    messages_per_slot_max: int = 2**31 - 1

    @property
    def roll_window_ms(self) -> int:
        """Return the longest wait for which a message is collected only once."""
        return self.roll_window_slots * self.precision_ms


def requested_ms(properties: dict[str, str], wall_ms: WallMs) -> int | None:
    """Return the requested time of delivery, or None.

    A message that has already waited has TIMER_OUT_MS, and counts as requesting none. BrokerError if the time
    is not a whole number.
    """
    if p.TIMER_OUT_MS in properties:
        return None
    for name in p.TIMER_REQUESTS:
        text = properties.get(name)
        if text is None:
            continue
        if not _WHOLE_NUMBER.match(text):
            raise _illegal(f"{name} is {text[:40]!r}, not a whole number of up to 18 digits")
        number = int(text)
        if name == p.TIMER_DELAY_SEC:
            return int(wall_ms) + number * 1000
        return number if name == p.TIMER_DELIVER_MS else int(wall_ms) + number
    return None


def slot_ms(
    deliver_ms: int, properties: dict[str, str], options: TimerOptions, wall_ms: WallMs
) -> int | None:
    """Return the time of the slot in which a message waits; None if it is stored at once.

    A slot is delivered when its time and the precision have passed. BrokerError if the wait is too long.
    """
    wait_ms = deliver_ms - int(wall_ms)
    if wait_ms <= 0:
        if p.TIMER_DEL_UNIQKEY in properties:
            raise _illegal("the message it deletes was already delivered")
        return None
    if not options.enabled:
        raise broker_error(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled; set timerWheelEnable=true"
        )
    if wait_ms > options.max_delay_ms:
        raise _illegal(
            f"it would be delivered in {wait_ms // 1000} s; timerMaxDelaySec is"
            f" {options.max_delay_ms // 1000}"
        )
    precision_ms = options.precision_ms
    if deliver_ms % precision_ms == 0:
        return deliver_ms - precision_ms
    return deliver_ms // precision_ms * precision_ms


def _illegal(reason: str) -> Exception:
    return broker_error(ResponseCode.MESSAGE_ILLEGAL, f"timer message refused: {reason}")


class TimerCount(Document, frozen=True, kw_only=True):
    """The number of a topic's waiting messages, and the time of its last change."""

    count: int = 0
    time_stamp: int = 0


class TimerMetricsFile(Document, frozen=True, kw_only=True):
    """The file's content, which is also the answer to GET_TIMER_METRICS."""

    timing_count: dict[str, TimerCount] = {}
    data_version: DataVersion = DataVersion()


class TimerMetrics:
    """Waiting messages by topic."""

    def __init__(self, loaded: TimerMetricsFile | None) -> None:
        self._counts = dict(loaded.timing_count) if loaded is not None else {}
        self._version = loaded.data_version if loaded is not None else DataVersion()

    def add(self, topic: str | None, number: int, wall_ms: WallMs) -> None:
        """Add to the number of a topic's waiting messages (negative: subtract)."""
        if topic is None:
            return
        count = self._counts[topic].count if topic in self._counts else 0
        self._counts[topic] = TimerCount(count=max(0, count + number), time_stamp=int(wall_ms))
        self._version = self._version.next(wall_ms)

    def content(self) -> TimerMetricsFile:
        """Return the content of the file."""
        return TimerMetricsFile(timing_count=dict(self._counts), data_version=self._version)


class PopEntries(Protocol):
    """The part of POP that the timers use: its entries in their topic, which only Apache's broker delivers.

    Apache's broker writes check points and acknowledgements as timer messages, and moves them to its revive
    topic when they are due. Ours writes the same, so that either can continue with the other's messages in
    flight; but it keeps a table of its own, so its timers skip the entries.
    """

    @property
    def place(self) -> int:
        """Return the position in the timers' topic from which the next start reads the journal."""

    @property
    def oldest_place(self) -> int | None:
        """Return the offset of the oldest check point in flight, or None."""

    def skip(self, offset: int) -> int:
        """Return the offset after the entries that this process wrote at an offset."""

    def owns(self, real_topic: str | None) -> bool:
        """Return whether a topic's timer messages are entries, which no timer delivers."""


#: Ours: the messages delivered by one append, in 1 ms. An unprepared one counts as `slot_reader.READ_COST`.
APPENDED_MAX: Final = 128
#: Ours: the messages collected, or prepared, by one read, in 1 ms.
READ_MAX: Final = 32
#: Ours: the messages of a slot that a clean stop still delivers, in a second.
FINISHED_MAX: Final = 100_000
#: Ours: how early a slot is read; 10,000 messages take half of that time.
AHEAD_MS: Final = 1_000


class Again(NamedTuple):
    """Messages to collect again, as the timer log has lost them: those before a queue offset.

    Of these, the ones for a time before `from_ms` were delivered.
    """

    until: int = 0
    from_ms: int = 0

    def renewed(self, collected: int, read_ms: int) -> "Again":
        """Return the range after messages before `collected` were collected, and slots before `read_ms`
        delivered.

        For messages that still had to be collected again, no more is known than before.
        """
        if collected >= self.until:
            return Again(collected, read_ms)
        return Again(self.until, min(self.from_ms, read_ms))


class Collected(NamedTuple):
    """The collected messages: all of the topic before `queue_offset`, counted in `metrics`."""

    queue_offset: int
    metrics: TimerMetrics
    again: Again = Again()


class TimerMessages:
    """The timer messages of a broker.

    queue_offset: the topic's next message to collect. copies: finds what an earlier process delivered of the
    last slots without a trace in the timers' files, which are written once a second, and only when the commit
    log is on disk. Apache's broker delivers again.
    """

    def __init__(
        self,
        data: TimerData,
        collected: Collected,
        options: TimerOptions,
        *,
        pop: PopEntries,
        destinations: Destinations,
        copies: DeliveredCopies,
    ) -> None:
        self._data = data
        self._store, self._log, self._wheel = data
        self.queue_offset, self.metrics, self.again = collected
        self._options = options
        self._pop = pop
        self._destinations = destinations
        self._copies = copies
        #: Messages before this offset are in the metrics.
        self._counted_until = self.again.until
        #: Units before this position of the log, even missing ones, were collected again since the start.
        self._collected_again_end = 0
        #: Counts changes of the files' content.
        self.version = 0
        #: The numbers of messages collected and delivered since the start.
        self.collected = self.delivered = 0
        #: Whether the store refused the last messages.
        self.is_refused = False
        self._slot: SlotReader | None = None
        #: The next slot, and whether its messages are read; it is checked again only when due.
        self._ahead: SlotReader | None = None
        self._is_prepared = False
        #: The end of the topic when the next slot was found due.
        self._collect_until: int | None = None

    # Accepting.

    def accept(self, message: StoreMessage, text: str, wall_ms: WallMs) -> str | None:
        """Redirect a message that requests a later time; return the time for its handle, or None.

        text: its properties. BrokerError if its time is invalid or its slot is full.
        """
        waits_until = self.slot_of(text, wall_ms)
        if waits_until is None:
            return None
        slot = self._wheel.get(waits_until // self._options.precision_ms)
        if slot is not None and slot.messages >= self._options.messages_per_slot_max:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                "timer message is under flow control: timerCongestNumEachSlot messages wait for that moment",
            )
        message.properties_text += p.properties_to_text({
            p.TIMER_OUT_MS: str(waits_until),
            p.REAL_TOPIC: message.topic,
            p.REAL_QUEUE_ID: str(message.queue_id),
        }).encode()  # fmt: skip
        message.topic, message.queue_id = TIMER_TOPIC, 0
        return str(waits_until + 1)  # SendMessageProcessor.attachRecallHandle rounds it down again.

    def slot_of(self, text: str, wall_ms: WallMs) -> int | None:
        """Return the time of the requested slot, or None. BrokerError if it is invalid."""
        properties = p.properties_from_text(text)
        deliver_ms = requested_ms(properties, wall_ms)
        return None if deliver_ms is None else slot_ms(deliver_ms, properties, self._options, wall_ms)

    # Time.

    @property
    def pending(self) -> int:
        """Return the number of messages waiting in slots."""
        return self._wheel.pending

    @property
    def uncollected(self) -> int:
        """Return the number of the topic's messages not yet collected."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self.queue_offset)

    def read_ms(self, wall_ms: WallMs) -> int:
        """Return the time before which every slot has been delivered."""
        tick, first = self._tick(wall_ms), self._wheel.first_tick()
        return min(tick, tick if first is None else first) * self._options.precision_ms

    def next_due_ms(self) -> WallMs | None:
        """Return when the next slot is due to be prepared or delivered; None if no message waits."""
        tick = self._wheel.first_tick()
        if tick is None:
            return None
        is_prepared = self._is_prepared and self._ahead is not None and self._ahead.tick == tick
        return WallMs((tick + 1) * self._options.precision_ms - (0 if is_prepared else AHEAD_MS))

    def copy(self, again: Again) -> None:
        """Adopt, at a slave, the progress of its master."""
        if again != self.again:
            self.again = again
            self.version += 1

    def take_over(self, again: Again) -> None:
        """Adopt, at a returning master, the progress of its slave.

        If a larger range is being collected again than the slave knows of, only that range counts. A second
        slave that knows no more than the first one changes nothing.
        """
        is_less = again.until <= self.again.until and again.from_ms <= self.again.from_ms
        is_more = again.until >= self.again.until and again.from_ms >= self.again.from_ms
        if not is_less and (is_more or self.queue_offset >= self.again.until):
            self.copy(again)
            self._ahead = None  # The prepared messages have not been compared with it.
            if self._slot is not None:
                self._slot.forget_prepared()

    def copy_metrics(self, content: TimerMetricsFile) -> None:
        """Adopt, at a slave, the numbers of messages waiting at its master."""
        if content != self.metrics.content():
            self.metrics = TimerMetrics(content)
            self.version += 1

    def advance(self, wall_ms: WallMs) -> bool:
        """Deliver, collect and prepare some messages; return whether none are left. Raises ColdRead."""
        is_delivered = self._deliver(wall_ms)
        is_collected = self._collect(wall_ms)
        if is_delivered and is_collected:
            self._copies.passed(WallMs(self.read_ms(wall_ms)))
        return is_delivered and is_collected and self._prepare(wall_ms)

    def finish_slot(self, wall_ms: WallMs) -> None:
        """Deliver the rest of an unfinished slot, waiting for the disk; a restart would deliver all of it."""
        for _ in range(FINISHED_MAX // APPENDED_MAX):
            if self._slot is None or self.is_refused:
                return
            self._deliver(wall_ms)

    # Preparing.

    def _prepare(self, wall_ms: WallMs) -> bool:
        """Read messages of the next slot if it is due soon; return whether there is nothing left to read."""
        tick = self._wheel.first_tick()
        if tick is None or (tick + 1) * self._options.precision_ms - int(wall_ms) > AHEAD_MS:
            return True
        if self._ahead is None or self._ahead.tick != tick:
            self._ahead, self._is_prepared = self._reader(tick), False
        if not self._is_prepared:
            self._is_prepared = self._ahead.prepare(READ_MAX)
        return self._is_prepared

    def _reader(self, tick: int) -> SlotReader:
        window_ms = self._options.roll_window_ms
        return SlotReader(
            self._data, tick, self._pop.owns, partial(self._is_delivered, tick),
            self._destinations.deleted_end, roll_window_ms=window_ms,
        )  # fmt: skip

    def _is_delivered(self, tick: int, message: MessageExt, unit: TimerUnit) -> bool | None:
        if self.was_delivered(message):
            return True
        # A rolled message is recognised by its key, in the slot that has it twice (`rolled_key`).
        return False if unit.rolls else self._copies.has(message, (tick + 1) * self._options.precision_ms)

    # Delivering.

    def _deliver(self, wall_ms: WallMs) -> bool:
        """Store messages of a due slot again, with one append; return whether no slot is due."""
        slot = self._due_slot(wall_ms)
        if slot is None:
            return self._due_tick(wall_ms) is None
        due = slot.next_messages(APPENDED_MAX)
        if slot.broken_at is not None and slot.broken_at >= self._collected_again_end:
            self._collect_again(slot)
            return False
        stored = self._store_again(stored_at(due, delivered_at(wall_ms), self._destinations))
        for topic, number in Counter(each.real_topic for each in due[:stored]).items():
            self.metrics.add(topic, -number, wall_ms)
        slot.taken(stored, due)
        self.delivered += stored
        if slot.is_finished():
            slot.report()
            dropped = Counter(slot.dropped.values())
            self._destinations.drop(dropped)
            for topic, number in (Counter(slot.taken_over.values()) + dropped).items():
                self.metrics.add(topic, -number, wall_ms)
            self._wheel.remove(slot.tick)
            self._slot = None
            self.version += 1
        return False

    def _collect_again(self, slot: SlotReader) -> None:
        """Collect undelivered messages again: a slot refers to a unit missing in the log."""
        first = self._store.min_offset(TIMER_TOPIC, 0)
        log.error(
            "the timer log is damaged; waiting messages are collected again from the topic",
            slot=slot.tick,
            position=slot.broken_at,
            messages=self.queue_offset - first,
        )
        self.again = self.again.renewed(self.queue_offset, slot.tick * self._options.precision_ms)
        self._collected_again_end = self._log.end
        self._counted_until = self.again.until
        self._slot = self._ahead = None
        self._reached(first)

    def _due_slot(self, wall_ms: WallMs) -> SlotReader | None:
        """Return the slot being delivered, or None if none is due."""
        tick = self._due_tick(wall_ms)
        if self._slot is None and tick is not None and self._has_collected(wall_ms, tick):
            ahead, self._ahead = self._ahead, None
            self._slot = ahead if ahead is not None and ahead.tick == tick else self._reader(tick)
            self._slot.begin()
        return self._slot

    def _due_tick(self, wall_ms: WallMs) -> int | None:
        tick = self._wheel.first_tick()
        return tick if tick is not None and tick < self._tick(wall_ms) else None

    def _has_collected(self, wall_ms: WallMs, tick: int) -> bool:
        """Return whether everything stored before a slot was found due has been collected.

        Otherwise a deletion could be missed. A broker that was down for more than a week delivers first,
        because the wheel's file has no room for new slots until then.
        """
        if self._collect_until is None:
            self._collect_until = self._store.max_offset(TIMER_TOPIC, 0)
        is_done = self.queue_offset >= self._collect_until or self._tick(wall_ms) - tick > SLOTS // 2
        if is_done:
            self._collect_until = None
        return is_done

    def _store_again(self, messages: Sequence[StoreMessage]) -> int:
        """Store messages; return how many are done."""
        was_refused, self.is_refused = self.is_refused, False
        if not messages:
            return 0
        for position, result in enumerate(self._store.append_batch(messages)):
            if result.status is AppendStatus.PUT_OK:
                continue
            if result.status in (AppendStatus.MESSAGE_ILLEGAL, AppendStatus.PROPERTIES_SIZE_EXCEEDED):
                # It will never be accepted, and must not hold up the messages behind it.
                log.error("due message dropped", topic=messages[position].topic, reason=result.status.name)
            else:
                if not was_refused:  # It is retried every 100 ms.
                    log.warning("timer messages wait: the store accepts none", why=result.status.name)
                self.is_refused = True
                return position
        return len(messages)

    # Collecting.

    def skip_entries(self) -> int:
        """Skip POP's entries; return the offset of the next message to collect."""
        self._reached(self._pop.skip(self.queue_offset))
        return self.queue_offset

    def _collect(self, wall_ms: WallMs) -> bool:
        """Append units for messages of the topic; return whether every message has one."""
        offset = self.skip_entries()
        result = self._store.read(TIMER_TOPIC, 0, offset, READ_MAX)
        if result.status is not ReadStatus.FOUND:
            # Removed by retention, or unreadable; it must not hold up the messages behind it.
            self._reached(max(offset, result.next_offset) if offset < result.max_offset else offset)
            return self.queue_offset == offset
        for message in _decoded(result.data):
            if not self._pop.owns(message.properties.get(p.REAL_TOPIC)) and not self.was_delivered(message):
                self._add(message, wall_ms)
        self.collected += result.next_offset - offset
        self._reached(result.next_offset)
        return False

    def _reached(self, offset: int) -> None:
        if offset != self.queue_offset:
            self.queue_offset = offset
            self.version += 1

    def was_delivered(self, message: MessageExt) -> bool:
        """Return whether a message being collected again was already delivered, here or by a slave."""
        if message.queue_offset >= self.again.until:
            return False
        out_ms = _out_ms(message)
        return out_ms is not None and out_ms < self.again.from_ms

    def _add(self, message: MessageExt, wall_ms: WallMs) -> None:
        out_ms, topic = _out_ms(message), message.properties.get(p.REAL_TOPIC)
        if out_ms is None or topic is None:
            log.error("a message of the timers' topic has no time or no topic; skipped", id=message.offset_id)
            return
        options = self._options
        # A late message still waits in its own slot, which may have a deletion.
        written_ms = min(self._tick(wall_ms) * options.precision_ms, out_ms)
        waits_ms, window_ms = out_ms - written_ms, options.roll_window_ms
        rolls = waits_ms >= window_ms
        if rolls:  # What remains after the roll is at least a third of the window.
            is_short = waits_ms - window_ms < options.roll_window_slots // 3 * options.precision_ms
            waits_ms = options.roll_window_slots // 2 * options.precision_ms if is_short else window_ms
        tick = (written_ms + waits_ms) // options.precision_ms
        deletes = p.TIMER_DEL_UNIQKEY in message.properties
        unit = TimerUnit(
            self._wheel.last_unit(tick), written_ms, waits_ms, message.physical_offset, message.store_size,
            java_hash(topic), rolls, deletes,
        )  # fmt: skip
        self._wheel.add(tick, self._log.append(unit), deletes=deletes)
        if message.queue_offset >= self._counted_until:
            self.metrics.add(topic, -1 if deletes else 1, wall_ms)

    def _tick(self, wall_ms: WallMs) -> int:
        return int(wall_ms) // self._options.precision_ms


def _decoded(data: Sequence[bytes | memoryview]) -> list[MessageExt]:
    try:
        return decode_records(b"".join(data), decompress=False)
    except RemoteProtocolError:
        log.exception("records of the timers' topic cannot be decoded; they are skipped")
        return []


def _out_ms(message: MessageExt) -> int | None:
    return p.whole_number(message.properties.get(p.TIMER_OUT_MS, ""))
