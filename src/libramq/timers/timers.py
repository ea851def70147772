"""The timer messages: how one is accepted, collected, kept until its time, recalled, rolled on and delivered;
how many at once.

    accept    a message that asks for a time (TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS: the first
              that is found counts) goes to the timers' topic instead of its own
    collect   the topic's messages get units in the timer log, chained by the wheel's slots
    prepare   the messages of the next slot are read shortly before it is due
    deliver   the messages of a slot that is due are stored again, and the slot is forgotten

Topic, log and wheel are Apache's: either broker delivers what waits at the other. A time is a date, so
timers follow the wall clock: if it is set forward, what should have been delivered meanwhile is delivered.

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
#: The properties that ask for a time, in the order in which they count.
#: Long.parseLong, but for other alphabets' digits.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerOptions:
    """The options of timers; MessageStoreConfig.timerWheelEnable and its kin.

    precision_ms: messages are delivered at its multiples. roll_window_slots: messages that are further away
    are collected again, so that the timer log's old files can go.
    """

    enabled: bool = True
    precision_ms: int = 1000
    max_delay_ms: int = 3 * 24 * 3600 * 1000
    roll_window_slots: int = 2 * 24 * 3600
    messages_per_slot_max: int = 2**31 - 1

    @property
    def roll_window_ms(self) -> int:
        """Return the time within which a message is collected once."""
        return self.roll_window_slots * self.precision_ms


def requested_ms(properties: dict[str, str], wall_ms: WallMs) -> int | None:
    """Return the time at which a message is to be delivered; None if it asks for none.

    A message that waited already has TIMER_OUT_MS, and asks for no second time. BrokerError if the time is
    not a whole number.
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

    A slot is delivered when its time and the precision have passed. BrokerError if it waits too long.
    """
    wait_ms = deliver_ms - int(wall_ms)
    if wait_ms <= 0:
        if p.TIMER_DEL_UNIQKEY in properties:
            raise _illegal("what it deletes is delivered already")
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
    """The number of waiting messages of a topic, and the time of its last change."""

    count: int = 0
    time_stamp: int = 0


class TimerMetricsFile(Document, frozen=True, kw_only=True):
    """The file; GET_TIMER_METRICS answers with the same."""

    timing_count: dict[str, TimerCount] = {}
    data_version: DataVersion = DataVersion()


class TimerMetrics:
    """Waiting messages by topic."""

    def __init__(self, loaded: TimerMetricsFile | None) -> None:
        self._counts = dict(loaded.timing_count) if loaded is not None else {}
        self._version = loaded.data_version if loaded is not None else DataVersion()

    def add(self, topic: str | None, number: int, wall_ms: WallMs) -> None:
        """Count messages of a topic that begin to wait, or (negative) that wait no more."""
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
    topic when they are due. Ours writes the same, so that either continues with what is in flight at the
    other; but it acts on a table of its own, so its timers leave them out.
    """

    @property
    def place(self) -> int:
        """Return the position in the timers' topic at which the next start begins to read the journal."""

    @property
    def oldest_place(self) -> int | None:
        """Return the offset of the oldest check point in flight; None if there is none."""

    def skip(self, offset: int) -> int:
        """Return the offset after the entries that this process wrote at an offset."""

    def owns(self, real_topic: str | None) -> bool:
        """Return whether timer messages for a topic are entries, which no timer delivers."""


#: Ours: messages that one append delivers, in 1 ms. One that was not prepared counts as
#: `slot_reader.READ_COST`.
APPENDED_MAX: Final = 128
#: Ours: messages that one read collects, or prepares, in 1 ms.
READ_MAX: Final = 32
#: Ours: how much of a slot a clean stop still delivers, in a second.
FINISHED_MAX: Final = 100_000
#: Ours: how long before its time a slot is read; 10,000 messages take half of it.
AHEAD_MS: Final = 1_000


class Again(NamedTuple):
    """Messages to be collected again, as the timer log has lost them: those before a queue offset.

    Of these, the ones for a time before `from_ms` were delivered.
    """

    until: int = 0
    from_ms: int = 0

    def renewed(self, collected: int, read_ms: int) -> "Again":
        """Return what is known if the messages before `collected` were, and slots before `read_ms` delivered.

        Of messages that were to be collected again, and were not yet, no more is known than before.
        """
        if collected >= self.until:
            return Again(collected, read_ms)
        return Again(self.until, min(self.from_ms, read_ms))


class Collected(NamedTuple):
    """The messages that were collected: all of the topic before `queue_offset`, counted in `metrics`."""

    queue_offset: int
    metrics: TimerMetrics
    again: Again = Again()


class TimerMessages:
    """The timer messages of a broker.

    queue_offset: the next message of the topic to be collected. copies: finds what an earlier process has
    delivered of the last slots although the timers' files do not show it, as these are written once a second,
    and only when the commit log is on the disk. Apache's broker delivers again.
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
        #: Messages before it are in the metrics.
        self._counted_until = self.again.until
        #: Units before this position of the log, if any is missing, were collected again since the start.
        self._collected_again_end = 0
        #: Counts the changes of what the files keep.
        self.version = 0
        #: How many messages were collected, and delivered, since the start.
        self.collected = self.delivered = 0
        #: Whether the last messages were not accepted by the store.
        self.is_refused = False
        self._slot: SlotReader | None = None
        #: The next slot, and whether its messages are read; it is looked at again only when it is due.
        self._ahead: SlotReader | None = None
        self._is_prepared = False
        #: Where the topic ended when the next slot was found due.
        self._collect_until: int | None = None

    # Accepting.

    def accept(self, message: StoreMessage, text: str, wall_ms: WallMs) -> str | None:
        """Redirect a message that asks for a later time; return its handle's time, or None if it asks none.

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
        return str(waits_until + 1)  # SendMessageProcessor.attachRecallHandle: it is rounded down again.

    def slot_of(self, text: str, wall_ms: WallMs) -> int | None:
        """Return the time of the slot that properties ask for; None: none. BrokerError if it is invalid."""
        properties = p.properties_from_text(text)
        deliver_ms = requested_ms(properties, wall_ms)
        return None if deliver_ms is None else slot_ms(deliver_ms, properties, self._options, wall_ms)

    # Time.

    @property
    def pending(self) -> int:
        """Return how many messages wait in slots."""
        return self._wheel.pending

    @property
    def uncollected(self) -> int:
        """Return how many messages of the topic have not been collected yet."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self.queue_offset)

    def read_ms(self, wall_ms: WallMs) -> int:
        """Return the time before which every slot has been delivered."""
        tick, first = self._tick(wall_ms), self._wheel.first_tick()
        return min(tick, tick if first is None else first) * self._options.precision_ms

    def next_due_ms(self) -> WallMs | None:
        """Return when the next slot is prepared, or else delivered; None if no message waits."""
        tick = self._wheel.first_tick()
        if tick is None:
            return None
        is_prepared = self._is_prepared and self._ahead is not None and self._ahead.tick == tick
        return WallMs((tick + 1) * self._options.precision_ms - (0 if is_prepared else AHEAD_MS))

    def copy(self, again: Again) -> None:
        """Take over, at a slave, what its master has delivered."""
        if again != self.again:
            self.again = again
            self.version += 1

    def take_over(self, again: Again) -> None:
        """Take over, at a master that returns, what its slave has delivered meanwhile.

        If much is being collected again, of which the slave knows less, that counts alone. A second slave
        that knows no more than the first one changes nothing.
        """
        is_less = again.until <= self.again.until and again.from_ms <= self.again.from_ms
        is_more = again.until >= self.again.until and again.from_ms >= self.again.from_ms
        if not is_less and (is_more or self.queue_offset >= self.again.until):
            self.copy(again)
            self._ahead = None  # What was read before has not been compared with that.
            if self._slot is not None:
                self._slot.forget_prepared()

    def copy_metrics(self, content: TimerMetricsFile) -> None:
        """Take over, at a slave, how many messages wait at its master."""
        if content != self.metrics.content():
            self.metrics = TimerMetrics(content)
            self.version += 1

    def advance(self, wall_ms: WallMs) -> bool:
        """Deliver, collect and prepare some messages; return whether there are no more. Raises ColdRead."""
        is_delivered = self._deliver(wall_ms)
        is_collected = self._collect(wall_ms)
        if is_delivered and is_collected:
            self._copies.passed(WallMs(self.read_ms(wall_ms)))
        return is_delivered and is_collected and self._prepare(wall_ms)

    def finish_slot(self, wall_ms: WallMs) -> None:
        """Deliver the rest of a slot that was begun, waiting for the disk: a start would deliver it whole."""
        for _ in range(FINISHED_MAX // APPENDED_MAX):
            if self._slot is None or self.is_refused:
                return
            self._deliver(wall_ms)

    # Preparing.

    def _prepare(self, wall_ms: WallMs) -> bool:
        """Read messages of the next slot if it is due soon; return whether there is no more to read."""
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
        # What was rolled on is found by its key, in the slot that has it twice (`rolled_key`).
        return False if unit.rolls else self._copies.has(message, (tick + 1) * self._options.precision_ms)

    # Delivering.

    def _deliver(self, wall_ms: WallMs) -> bool:
        """Store messages of a due slot again, by one append; return whether no slot is due."""
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
        """Collect again what is not delivered: a slot leads to a unit that the log does not have."""
        first = self._store.min_offset(TIMER_TOPIC, 0)
        log.error(
            "the timer log is damaged; what waits is collected again from the topic",
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
        """Return the slot that is being delivered; None if none is due."""
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
        """Return whether everything was collected that was stored before a slot was found due.

        A deletion may be among it. After a week without a broker, the file of the wheel has no place for new
        slots before the old ones are delivered.
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
                # It will never be accepted; those behind it must not wait for it.
                log.error("due message dropped", topic=messages[position].topic, reason=result.status.name)
            else:
                if not was_refused:  # It is tried again every 100 ms.
                    log.warning("timer messages wait: the store accepts none", why=result.status.name)
                self.is_refused = True
                return position
        return len(messages)

    # Collecting.

    def skip_entries(self) -> int:
        """Pass over entries of POP that come next; return the offset of the next message to be collected."""
        self._reached(self._pop.skip(self.queue_offset))
        return self.queue_offset

    def _collect(self, wall_ms: WallMs) -> bool:
        """Append units for messages of the topic; return whether all messages have one."""
        offset = self.skip_entries()
        result = self._store.read(TIMER_TOPIC, 0, offset, READ_MAX)
        if result.status is not ReadStatus.FOUND:
            # Removed by retention, or unreadable: those behind it must not wait for it.
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
        """Return whether a message that is collected again was delivered before, or by a slave meanwhile."""
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
        # One that is late waits in its own slot all the same: a deletion may be there.
        written_ms = min(self._tick(wall_ms) * options.precision_ms, out_ms)
        waits_ms, window_ms = out_ms - written_ms, options.roll_window_ms
        rolls = waits_ms >= window_ms
        if rolls:  # The rest, after the roll, is at least a third of the window.
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
