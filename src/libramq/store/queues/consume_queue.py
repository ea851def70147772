"""The consume queue: the position in the commit log of each message of a queue, as units of 20 bytes with the
tag code or delivery time; loads, cuts and searches them.

    physical offset (8) | record size (4) | tag code (8)          = 20 bytes, one unit per message

Unit n belongs to message n. New units wait in memory until `write_out`; after a crash, unwritten units are
rebuilt from the commit log. If a queue does not begin with number 0, blank units precede its first.

    `max_offset`   the next number          `visible_max`  the end of the readable messages
    `min_offset`   the first message that is still in the commit log

A unit follows from its record alone, so queues can be rebuilt from the commit log. The tag code is the hash
of the tag; for delayed messages it is the delivery time.

The search by time returns the last message stored at the time or earlier (UPPER), or the first stored at the
time or later (LOWER; the end of the queue if all are older). It is a binary search, because store times rise
along a queue. After a clock was set back they do not, and the result is one of the places where they cross
the time. An unreadable message takes the time of the next readable one; if there is none, or the message lies
below the log's beginning, it counts as older. If all messages are newer, the result is 0 as upstream, unless
the queue begins later.

Upstream: store/ConsumeQueue.java, CQ_STORE_UNIT_SIZE, getOffsetInQueueByTime; common/BoundaryType.java;
CommitLog.checkMessageAndReturnSize.
"""

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from libramq.message.delay_level import delay_ms
from libramq.message.inner_batch import message_count
from libramq.message.names import SCHEDULE_TOPIC
from libramq.message.properties import DELAY, TAGS, find_property
from libramq.message.record import RECORD_BYTES_MIN, RecordHead
from libramq.message.tags import tag_code
from libramq.store.config import PAGE_BYTES, UNIT_BYTES
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import FileRange, Segments
from libramq.store.queues.queue_extension import QueueExtension

_DELAY = DELAY.encode()
_TAGS = TAGS.encode()
UNIT: Final = struct.Struct(">qiq")
BLANK_SIZE: Final = 0x7FFF_FFFF
PENDING_BYTES_MAX: Final = 64 * 1024  # Three thousand units; more are written at once.
_LOAD_FILES = 3  # ConsumeQueue.recover looks at the last three.
#: Ours: at least this many of the last units are checked. Units are flushed at most a second after two pages
#: of them are dirty; if files are small, the unflushed units may span more than three files.
_LOAD_UNITS_MIN: Final = 50_000
_LOAD_UNITS = 3_200
#: Ours: the units in a page. Of ten thousand queues, most end in the first page of their last file.
_SEARCHED_UNITS: Final = PAGE_BYTES // UNIT_BYTES
#: Ours: a search skips at most this many consecutive unreadable messages.
PROBES_MAX: Final = 64


def may_lack_end(end_bytes: int, file_size: int, *, was_short: bool, is_empty_batch: bool = False) -> bool:
    """Return whether a queue's end may be lost: its units fill a file, it has none, or a file was cut.

    is_empty_batch: a batch queue without units, which has lost nothing: Apache's broker leaves empty
    directories when it deletes a topic.
    """
    return not is_empty_batch and (was_short or not end_bytes or not end_bytes % file_size)


class ConsumeQueue:
    """The units of one queue, by queue offset.

    A unit's place is its index in the files, counted from 0; in this class it equals the queue offset.
    """

    #: Whether a unit may stand for several messages (`batch_consume_queue`).
    is_batch: ClassVar[bool] = False
    unit_bytes: ClassVar[int] = UNIT_BYTES
    #: The minimum size of a message in the log.
    message_bytes_min: ClassVar[int] = RECORD_BYTES_MIN

    __slots__ = (
        "_first_physical", "_pending", "extension", "holes", "last_physical_end", "max_offset",
        "min_offset", "queue_id", "segments", "synced", "topic", "visible_max", "written",
    )  # fmt: skip

    def __init__(self, topic: str, queue_id: int, segments: Segments) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = segments
        #: Holds the tag codes that units lack; None if every unit has its own.
        self.extension: QueueExtension | None = None
        self.max_offset = 0
        self.visible_max = 0
        self.min_offset = 0
        self.last_physical_end = 0
        self.synced = 0
        #: Ranges [first, end) of places that have no units because their files were lost.
        self.holes: list[tuple[int, int]] = []
        self._pending = bytearray()
        #: The place after the last unit in the files.
        self.written = 0
        #: The physical offset of message 0, cached because finding it may read the disk.
        self._first_physical: int | None = None

    @property
    def first_offset(self) -> int:
        """Return the number of the first unit, blank or not."""
        return self.segments.min_offset // UNIT_BYTES if self.segments.starts else self.written

    @property
    def unsynced_bytes(self) -> int:
        """Return the number of bytes written but not yet flushed."""
        return (self.written - self.synced) * self.unit_bytes

    @property
    def pending_bytes(self) -> int:
        """Return the number of bytes not yet written."""
        return len(self._pending)

    @property
    def may_lack_end(self) -> bool:
        """Return whether the queue's end may be lost."""
        return may_lack_end(
            self.written * self.unit_bytes,
            self.segments.file_size,
            was_short=self.segments.was_short,
            is_empty_batch=self.is_batch and not self.last_physical_end,
        )

    @property
    def needs_file(self) -> bool:
        """Return whether `write_out` must create a file."""
        return self.written * self.unit_bytes + len(self._pending) > self.segments.end

    def append(self, units: bytes, max_offset: int, physical_end: int) -> int:
        """Append units; `max_offset` is the number after them. Return the number of bytes not yet written."""
        self._pending += units
        self.max_offset = max_offset
        self.last_physical_end = physical_end
        return len(self._pending)

    def rebuild(self, head: RecordHead, queue_offset: int, unit: bytes) -> bool:
        """Store the unit of a record found by recovery, after blank units if its number leaves a gap.

        Returns False and changes nothing if the number is impossible; no checksum covers it.
        """
        count, end = message_count(head), head.physical_offset + head.size
        missing_max = (head.physical_offset - self.last_physical_end) // self.message_bytes_min
        if (count > 1 and not self.is_batch) or not 0 <= queue_offset <= self.max_offset + missing_max:
            return False
        if queue_offset < self.max_offset:
            if queue_offset:
                return False
            self.truncate(0)  # The topic was deleted and recreated: the later record is right.
        self._leave_gap(queue_offset)
        self.append(
            self.with_tail(unit, queue_offset, count, head.store_timestamp_ms), queue_offset + count, end
        )
        if len(self._pending) >= PENDING_BYTES_MAX:
            with contextlib.suppress(OSError):  # On a full disk units stay in memory, still readable.
                self.write_out()
        return True

    def _leave_gap(self, end: int) -> None:
        """Write blanks for the numbers up to an end.

        Within a queue they hold the preceding position, so that positions rise and can be searched.
        """
        if not self.max_offset and end:
            position = self.segments.start_of(end * UNIT_BYTES)
            if self.segments.starts:
                self.segments.remove_all()
            self.written = self.synced = self.max_offset = position // UNIT_BYTES
        blank = UNIT.pack(self.last_physical_end, BLANK_SIZE, 0)
        while self.max_offset < end:
            count = min(end - self.max_offset, PENDING_BYTES_MAX // UNIT_BYTES)
            self.append(blank * count, self.max_offset + count, self.last_physical_end)
            self.write_out()

    def write_out(self) -> None:
        """Write the pending units to the files; on failure they stay pending."""
        pending = bytes(self._pending)
        position = self.written * self.unit_bytes
        count = len(pending) // self.unit_bytes
        while pending:
            self.segments.ensure(position)
            room = self.segments.start_of(position) + self.segments.file_size - position
            part = pending[:room]
            self.segments.write(position, part)
            position += len(part)
            pending = pending[len(part) :]
        self.written += count
        self._pending.clear()

    def units_at(self, first: int, end: int, *, may_wait: bool) -> bytes | FileRange:
        """Return the units at the places [first, end) from one file, and unwritten ones.

        If the caller may not wait, returns the range that a thread must warm first.
        """
        assert first >= 0
        size, written, data = self.unit_bytes, self.written, b""
        if first < min(end, written):
            position = first * size
            file_end = self.segments.start_of(position) + self.segments.file_size
            read = self.segments.read if may_wait else self.segments.read_nowait
            found = read(position, min(min(end, written) * size, file_end) - position)
            if isinstance(found, FileRange):
                return found
            data = found
            first += len(data) // size
        if written <= first < end:
            data += self._pending[(first - written) * size : (end - written) * size]
        return data

    def units(self, offset: int, count: int, *, may_wait: bool) -> bytes | FileRange:
        """Return up to `count` units of 20 bytes from a number, or the range to warm first."""
        return self.units_at(offset, offset + count, may_wait=may_wait)

    def read_units(self, offset: int, count: int, *, may_wait: bool, with_codes: bool) -> bytes | FileRange:
        """Return units, or the range that a thread must warm first.

        with_codes: look up tag codes that are in the extension.
        """
        units = self.units(offset, count, may_wait=may_wait)
        if not with_codes or self.extension is None or isinstance(units, FileRange):
            return units
        return self.extension.with_codes(units, may_wait=may_wait)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return one unit: physical offset, size, tag code; None if there is none."""
        if not self.first_offset <= offset < self.max_offset:
            return None
        unit = self.units(offset, 1, may_wait=True)
        assert isinstance(unit, bytes)
        physical_offset, size, code = UNIT.unpack(unit)
        return physical_offset, size, code

    def load(self, *, clean: bool, physical_min: int = 0) -> None:
        """Load the units in the files up to the first invalid one.

        physical_min: the start of the log; files with only earlier messages may have been removed in any
        order.
        """

        def is_gone(position: int) -> bool:
            last = self.unit_at(position // self.unit_bytes - 1)
            return self._is_unit(last) and last[0] < physical_min

        self.segments.load(clean=clean, is_gone=is_gone, unit_bytes=self.unit_bytes)
        if not self.segments.starts:
            return
        lost = self._find_holes(self.segments.starts[-1] if clean else self._unsure_from())
        end = self._end_after_clean_stop() if clean else self._end_after_kill()
        if lost and end * self.unit_bytes == self.segments.min_offset:  # No unit is left.
            self.segments.remove_all()
            return
        while self.holes and self.holes[-1][1] >= end:  # No unit follows these holes.
            lost, end = True, min(end, self.holes.pop()[0])
        self.written = end
        self.synced = end if clean else min(end, self.segments.min_offset // self.unit_bytes)
        if lost or not clean:
            self.segments.zero_after(end * self.unit_bytes)
        self.max_offset = self.visible_max = self._loaded(end)
        self._read_last()

    def _find_holes(self, until: int) -> bool:
        """Find lost or empty files before a position; return whether leading ones were removed."""
        goes = False
        count = self.segments.file_size // self.unit_bytes
        for start in [each for each in self.segments.starts if each < until]:
            first = start // self.unit_bytes
            if self._is_unit(self.unit_at(first)) and self._is_unit(self.unit_at(first + count - 1)):
                continue
            if start == self.segments.min_offset:
                self.segments.remove_first()
                goes = True
            elif self.holes and self.holes[-1][1] == first:
                self.holes[-1] = self.holes[-1][0], first + count
            else:
                self.holes.append((first, first + count))
        return goes

    def unit_at(self, place: int) -> tuple[Any, ...]:
        """Return the unit at a place in the files, valid or not; waits for the disk."""
        return next(self._units_in(self.segments.read(place * self.unit_bytes, self.unit_bytes)))

    def number_at(self, place: int) -> int:
        """Return the number of the first message of the unit at a place; waits for the disk."""
        return place

    def with_tail(self, unit: bytes, number: int, count: int, stored_ms: int) -> bytes:
        """Return a unit of 20 bytes in the format of the files."""
        return unit

    def restore(self, low: int, end: int, units: bytes, *, before: int) -> None:
        """Write units to the end of the lost places [low, end), and blank units before them.

        low: 0 if no unit precedes the lost ones. before: the physical offset that blank units hold.
        """
        size = self.unit_bytes
        first = end - len(units) // size
        if not units and not low:
            return
        number = next(self._units_in(units[:size]))[4] if units and self.is_batch else self.number_at(end)
        low = low or self.segments.start_of(first * size) // size
        blank = UNIT.pack(before, BLANK_SIZE, 0)
        numbers = range(number - (first - low), number)
        blanks = b"".join([self.with_tail(blank, max(0, each), 1, 0) for each in numbers])
        self.segments.begin_at(min(self.segments.min_offset, low * size))
        self.segments.write_whole(low * size, blanks + units, size)

    def restored(self) -> None:
        """Refresh the state that depends on the units, after lost ones were restored."""
        self.holes.clear()
        self.max_offset = self.visible_max = self._loaded(self.written)
        self._first_physical = None

    def _loaded(self, end: int) -> int:
        """Return the number after the last message, given the place where the files' units end."""
        return end

    def truncate(self, max_offset: int) -> None:
        """Keep the units before a number; a unit that stands for several messages is kept whole."""
        if max_offset >= self.max_offset:
            return
        place, size = self.place_after(max_offset), self.unit_bytes
        if place >= self.written:
            del self._pending[(place - self.written) * size :]
        else:
            self._pending.clear()
            self.segments.zero_after(place * size)
            self.written = place
            self.synced = min(self.synced, place)
        self.max_offset = self._cut_at(place)
        self.visible_max = min(self.visible_max, self.max_offset)
        self._first_physical = None
        self._read_last()

    def place_after(self, offset: int) -> int:
        """Return the place after the units of all messages before a number."""
        return offset

    def _cut_at(self, place: int) -> int:
        """Return the number after the last message, after a cut at a place."""
        return place

    def truncate_physical(self, physical_end: int) -> None:
        """Keep the units of records before a physical offset."""
        if self.last_physical_end > physical_end:
            self.truncate(self.first_at_or_after(physical_end))

    def correct_min_offset(self, physical_min: int, low: int = 0) -> None:
        """Set `min_offset` to the first message that is still in the commit log, searching from `low`."""
        self.min_offset = self.first_at_or_after(max(physical_min, 0), blank_is_older=True, low=low)

    def is_young(self, physical_offset: int) -> bool:
        """Return whether the queue is empty, or its first message lies at or after a physical offset."""
        if not self.visible_max:
            return True
        if self.min_offset:
            return False
        if self._first_physical is None:
            unit = self.unit(0)
            if unit is None:
                return False
            self._first_physical = unit[0]
        return self._first_physical >= physical_offset

    def unsynced_paths(self) -> list[Path]:
        """Return the files with written but unflushed units."""
        return self.segments.paths_between(self.synced * self.unit_bytes, self.written * self.unit_bytes)

    def place_of(self, offset: int) -> int:
        """Return the place of a message's unit."""
        return offset

    def offset_at(self, place: int) -> int:
        """Return the number of the first message of the unit at a place; the queue's end if there is none."""
        return place

    def drop_files(self) -> list[Path]:
        """Forget the files entirely before `min_offset`, but never the last; return them for removal."""
        dropped = self.segments.drop_before(self.place_of(self.min_offset) * self.unit_bytes)
        if self.extension is not None and self.min_offset < self.written:
            first = self.units(self.min_offset, 1, may_wait=False)
            if not isinstance(first, FileRange):  # Otherwise the next cleaning does it.
                dropped += self.extension.drop_before(first)
        return dropped

    def forget_files(self) -> None:
        """Close the files; the caller removes them."""
        self.segments.forget_all()
        if self.extension is not None:
            self.extension.segments.forget_all()

    def _end_after_clean_stop(self) -> int:
        """Search for the end; after a clean stop there are no holes. Usually takes one read."""
        size = self.unit_bytes
        low, high = self.segments.starts[-1] // size, self.segments.end // size
        data = self.segments.read(low * size, min(_SEARCHED_UNITS, high - low) * size)
        units = list(self._units_in(data))
        count = bisect_left(range(len(units)), True, key=lambda place: not self._is_unit(units[place]))
        if count < len(units):
            return low + count
        return bisect_left(range(high), True, low + count, key=lambda at: not self._is_unit(self.unit_at(at)))

    def _unsure_from(self) -> int:
        """Return the start of the files that may have lost pages in a power cut."""
        unsynced_from = self.segments.end - _LOAD_UNITS_MIN * self.unit_bytes
        return min(
            self.segments.starts[-_LOAD_FILES:][0],
            next(start for start in self.segments.starts if start + self.segments.file_size > unsynced_from),
        )

    def _end_after_kill(self) -> int:
        """Find the end after a power cut, which may have lost pages anywhere in the last files."""
        position = self._unsure_from()
        while position < self.segments.end:
            file_end = self.segments.start_of(position) + self.segments.file_size
            data = self.segments.read(position, min(_LOAD_UNITS * self.unit_bytes, file_end - position))
            for unit in self._units_in(data):
                if not self._is_unit(unit):
                    return position // self.unit_bytes
                position += self.unit_bytes
        return position // self.unit_bytes

    def _units_in(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        return UNIT.iter_unpack(data)

    def _is_unit(self, unit: tuple[Any, ...]) -> bool:
        return bool(unit[0] >= 0 and unit[1] > 0)

    def _read_last(self) -> None:
        last = self.unit(self.max_offset - 1)
        self.last_physical_end = 0 if last is None else end_of_unit(*last[:2])

    def first_at_or_after(self, physical_offset: int, *, blank_is_older: bool = False, low: int = 0) -> int:
        """Return the first number, not below `low`, whose record lies at or after an offset."""

        def is_there(number: int) -> bool:
            found = self.unit(number)
            assert found is not None
            is_before_all = blank_is_older and found[1] == BLANK_SIZE and not found[0]
            return found[0] >= physical_offset and not is_before_all

        return bisect_left(range(self.max_offset), True, max(low, self.first_offset), key=is_there)


def end_of_unit(physical_offset: int, size: int) -> int:
    """Return the end of a unit's record in the log; a blank unit has no record."""
    return physical_offset + (0 if size == BLANK_SIZE else size)


def unit_of(head: RecordHead) -> bytes:
    """Return the unit of a record."""
    return UNIT.pack(head.physical_offset, head.size, unit_tag_code(head))


def unit_tag_code(head: RecordHead) -> int:
    """Return the tag code of a record's consume queue unit."""
    level = _delay_level(head)
    if level:
        return head.store_timestamp_ms + delay_ms(level)
    tags = find_property(head.properties, _TAGS)
    return tag_code(tags.decode("utf-8", "replace")) if tags else 0


def is_unit_tag_code(code: int, head: RecordHead) -> bool:
    """Return whether a unit of this record may have this tag code; the broker's delays are not known here."""
    return code >= head.store_timestamp_ms if _delay_level(head) else code == unit_tag_code(head)


def _delay_level(head: RecordHead) -> int:
    """Return the delay level of a delayed message; 0 for any other."""
    if head.topic != SCHEDULE_TOPIC:
        return 0
    level = find_property(head.properties, _DELAY)
    return int(level) if level and level.isdigit() and len(level) < 10 else 0


class Boundary(StrEnum):
    """The side of the boundary; the values are those on the wire."""

    LOWER = "lower"
    UPPER = "upper"


def search_timestamp(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the queue offset for a store time."""
    low, high = queue.min_offset, queue.visible_max
    first = low
    while low < high:
        middle = (low + high) // 2
        stored_ms = _stored_ms(log, queue, middle, high)
        is_before = stored_ms < timestamp_ms if boundary is Boundary.LOWER else stored_ms <= timestamp_ms
        if is_before:
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return low
    return max(low - 1, first)


def _stored_ms(log: CommitLog, queue: ConsumeQueue, offset: int, end: int) -> int:
    for number in range(offset, min(offset + PROBES_MAX, end)):
        unit = queue.unit(number)
        if unit is None or unit[0] < log.min_offset:
            return 0
        if unit[1] != BLANK_SIZE and log.may_hold(unit[0], unit[1]):
            return log.store_timestamp_ms(unit[0])
    return 0
