"""The batch consume queue of a topic with queue.type=BatchCQ, in which a unit stands for several messages:
its format and its numbers.

    physical offset (8) | record size (4) | tag code (8) | store time (8) | number of its first message (8)
    number of messages (2) | compacted offset (4), unused | reserved (4)      = 46 bytes, one per record

Readers see the same as in any consume queue, a unit of 20 bytes for each message: the units of one batch
point to the same record. Only files, recovery and whole-batch readers see the difference. The number of each
unit's first message is kept in memory, 8 bytes a unit, so finding a message's unit takes no read.

Numbers whose unit was lost appear to readers as blank units; the files have nothing in their place.

Upstream: store/queue/BatchConsumeQueue.java; its files are in batchconsumequeue/<topic>/<queue id>.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from libramq.clock import WallMs
from libramq.message.record import RecordHead
from libramq.store.config import BATCH_UNIT_BYTES
from libramq.store.log.segments import FileRange, Segments
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue, end_of_unit

BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
_TAIL: Final = struct.Struct(">qqhii")
#: BatchConsumeQueue.INVALID_POS.
_NOT_COMPACTED: Final = -1
_BASE_AT: Final = 28
#: A Java long. A unit with a greater number is not valid.
_NUMBER_MAX: Final = 2**63 - 1
#: Ours: the default number of units that are read at once.
UNITS_MAX: Final = 65_536


class BatchUnit(NamedTuple):
    """A record's position and size, and the numbers [base, end) of its messages."""

    physical_offset: int
    size: int
    code: int
    stored_ms: int
    base: int
    message_count: int

    @property
    def end(self) -> int:
        """Return the number after its last message."""
        return self.base + self.message_count

    def is_of(self, head: RecordHead) -> bool:
        """Return whether it is the unit of the record with this head."""
        wanted = head.physical_offset, head.size, head.store_timestamp_ms, head.queue_offset
        return wanted == (self.physical_offset, self.size, self.stored_ms, self.base)


def batch_tail(stored_ms: int | WallMs, base: int, count: int) -> bytes:
    """Return the part of a unit after the 20 bytes of a plain one; raises struct.error if out of range."""
    return _TAIL.pack(stored_ms, base, count, _NOT_COMPACTED, 0)


class BatchConsumeQueue(ConsumeQueue):
    """The units of one queue of batches."""

    is_batch: ClassVar[bool] = True
    unit_bytes: ClassVar[int] = BATCH_UNIT_BYTES
    #: Ours: Kafka's smallest record. Recovery accepts a number if the missing messages before it fit in the
    #: log.
    message_bytes_min: ClassVar[int] = 7

    __slots__ = ("_bases", "_first")

    def __init__(self, topic: str, queue_id: int, segments: Segments) -> None:
        super().__init__(topic, queue_id, segments)
        #: The place of the first unit.
        self._first = 0
        #: The number of each unit's first message.
        self._bases = array("q")

    @property
    def first_offset(self) -> int:
        """Return the number of the first message."""
        return self._bases[0] if self._bases else self.max_offset

    def append(self, units: bytes, max_offset: int, physical_end: int) -> int:
        """Append units; `max_offset` is the number after them. Return how many bytes are not yet written."""
        for at in range(_BASE_AT, len(units), BATCH_UNIT_BYTES):
            self._bases.append(int.from_bytes(units[at : at + 8]))
        return super().append(units, max_offset, physical_end)

    def _leave_gap(self, end: int) -> None:
        """Write nothing: missing numbers stay a gap."""

    def number_at(self, place: int) -> int:
        """Return the number of the first message of the unit at a place; waits for the disk."""
        return int(self.unit_at(place)[4])

    def with_tail(self, unit: bytes, number: int, count: int, stored_ms: int) -> bytes:
        """Return a unit of 46 bytes."""
        return unit + batch_tail(stored_ms, number, count)

    def batches(
        self, offset: int, count: int, units_max: int = UNITS_MAX, *, may_wait: bool
    ) -> list[BatchUnit] | FileRange:
        """Return the units of [offset, offset + count) within one file, or the range to warm first."""
        first = self.place_of(offset)
        end = min(self.place_after(offset + count), first + units_max)
        found = self.units_at(first, end, may_wait=may_wait)
        if isinstance(found, FileRange):
            return found
        return [BatchUnit(*each[:6]) for each in BATCH_UNIT.iter_unpack(found)]

    def units(self, offset: int, count: int, *, may_wait: bool) -> bytes | FileRange:
        """Return units as in a plain queue, one for each message."""
        found = self.batches(offset, count, may_wait=may_wait)
        return found if isinstance(found, FileRange) else self._spread(found, offset, count)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return a message's unit: physical offset, size, tag code; None if there is none."""
        found = self._batch_of(offset)
        if found is None:
            return None
        if offset < found.end:
            return found[:3]
        return end_of_unit(*found[:2]), BLANK_SIZE, 0

    def refers_to(self, head: RecordHead) -> bool:
        """Return whether the record with this head belongs to the queue; waits for the disk."""
        found = self._batch_of(head.queue_offset)
        return found is not None and found.is_of(head)

    def _batch_of(self, offset: int) -> BatchUnit | None:
        """Return the unit of a message or, in a gap, the last unit before it; None if out of range."""
        if not self.first_offset <= offset < self.max_offset:
            return None
        found = self.batches(offset, 1, may_wait=True)
        assert not isinstance(found, FileRange)
        return found[0]

    def place_after(self, offset: int) -> int:
        """Return the place after the units of all messages before a number."""
        return self._first + bisect_left(self._bases, offset)

    def _cut_at(self, place: int) -> int:
        del self._bases[place - self._first :]
        last = self._last()
        return last.end if last is not None else 0  # The same as the next start finds in the files.

    def place_of(self, offset: int) -> int:
        """Return the place of a message's unit."""
        return self._first + max(0, bisect_right(self._bases, offset) - 1)

    def offset_at(self, place: int) -> int:
        """Return the number of the first message of the unit at a place; the queue's end if there is none."""
        index = place - self._first
        return self._bases[index] if index < len(self._bases) else self.max_offset

    def drop_files(self) -> list[Path]:
        """Forget the files entirely before `min_offset`, but never the last; return them for removal."""
        dropped = super().drop_files()
        gone = self.segments.min_offset // BATCH_UNIT_BYTES - self._first
        if dropped and gone > 0:
            del self._bases[:gone]
            self._first += gone
        return dropped

    def _loaded(self, end: int) -> int:
        self._first = self.segments.min_offset // BATCH_UNIT_BYTES
        self._bases = array("q")
        place = self._first
        while place < end:
            data = self.units_at(place, end, may_wait=True)
            assert isinstance(data, bytes)
            self._bases.extend([unit[4] for unit in BATCH_UNIT.iter_unpack(data)])
            place += len(data) // BATCH_UNIT_BYTES
        last = self._last()
        return last.end if last is not None else 0

    def _last(self) -> BatchUnit | None:
        end = self._first + len(self._bases)
        data = self.units_at(end - 1, end, may_wait=True) if self._bases else b""
        assert isinstance(data, bytes)
        return BatchUnit(*BATCH_UNIT.unpack(data)[:6]) if data else None

    def _spread(self, found: list[BatchUnit], offset: int, count: int) -> bytes:
        """Return a unit for each message, and blank units for missing messages."""
        end = min(offset + count, self.max_offset)
        parts: list[bytes] = []
        before = 0
        for physical_offset, size, code, _, base, number in found:
            if base > offset:
                parts.append(UNIT.pack(before, BLANK_SIZE, 0) * (min(base, end) - offset))
                offset = min(base, end)
            here = min(base + number, end) - offset
            if here > 0:
                parts.append(UNIT.pack(physical_offset, size, code) * here)
                offset += here
            before = end_of_unit(physical_offset, size)
        if found and offset < end and self._bases[self.place_of(offset) - self._first] == found[-1].base:
            gap_end = min(end, self.offset_at(self.place_of(offset) + 1))
            parts.append(UNIT.pack(before, BLANK_SIZE, 0) * (gap_end - offset))
        return b"".join(parts)

    def _units_in(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        return BATCH_UNIT.iter_unpack(data)

    def _is_unit(self, unit: tuple[Any, ...]) -> bool:
        return bool(unit[0] >= 0 and unit[1] > 0 and unit[5] > 0 and 0 <= unit[4] <= _NUMBER_MAX - unit[5])


assert BATCH_UNIT.size == BATCH_UNIT_BYTES
