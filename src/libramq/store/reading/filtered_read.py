"""The filtered read: reads the messages of a queue that pass an SQL92 filter, in steps of limited size.

    step  ─►  read up to 32 records  ─►  keep those that match  ─►  enough, the end, or too many examined?
      ▲                                                                          │ no
      └──────────────── other requests run in between ◄───────────────────────────┘

Tags are compared on the consume queue's units. Other filters need the record itself, which costs some
microseconds a message instead of a tenth of one. The limits of count and bytes are those of an ordinary read.

Upstream: MessageFilter.isMatchedByCommitLog in DefaultMessageStore.getMessage.
"""

import struct
from collections.abc import Callable
from typing import Final

from libramq.filter.subscription import MessageFilter
from libramq.message.record import MAGIC_V1
from libramq.message.record_head import HEADS, HOST_BITS, SYS_FLAG_LOW_AT
from libramq.store.config import StoreConfig
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.reading.read import (
    NO_QUEUE,
    Portion,
    ReadResult,
    ReadStatus,
    read_limits,
    scan_count,
)

#: MessageStoreConfig.maxTransferCountOnMessageInMemory: an ordinary read. Some 0.3 ms for most filters.
STEP_COUNT_MAX: Final = 32
#: Ours: one step reads at most this many bytes, so long properties make for fewer messages; a single message
#: may be larger.
STEP_BYTES_MAX: Final = 64 * 1024

#: Ours: with up to this many property lookups a message, a step reads STEP_BYTES_MAX; with more,
#: proportionally less.
STEP_LOOKUPS: Final = 16

_INT: Final = struct.Struct(">I")
_MAGIC_AT: Final = 4
_QUEUE_OFFSET: Final = struct.Struct(">20xq")
_BODY_STARTS: Final = {bits: head.size for bits, head in HEADS.items()}
_NOT_READ: Final = frozenset({ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.WOULD_WAIT})


def record_properties(data: bytes | memoryview, start: int, end: int) -> bytes:
    """Return the stored properties of a whole record."""
    body_start = start + _BODY_STARTS[data[start + SYS_FLAG_LOW_AT] & HOST_BITS]
    topic_at = body_start + _INT.unpack_from(data, body_start - 4)[0]
    if _INT.unpack_from(data, start + _MAGIC_AT)[0] == MAGIC_V1:
        topic_end = topic_at + 1 + data[topic_at]
    else:
        topic_end = topic_at + 2 + (data[topic_at] << 8 | data[topic_at + 1])
    return bytes(data[topic_end + 2 : end])


def properties_of(data: tuple[bytes | memoryview, ...]) -> list[bytes]:
    """Return the stored properties of the records of a read."""
    found = []
    for piece in data:
        start = 0
        while start < len(piece):
            end = start + _INT.unpack_from(piece, start)[0]
            found.append(record_properties(piece, start, end))
            start = end
    return found


class FilteredRead:
    """One read under way. Call `step` until it returns the result."""

    def __init__(
        self,
        read: Callable[..., ReadResult],
        queues: ConsumeQueueTable,
        queue: ConsumeQueue,
        config: StoreConfig,
        offset: int,
        portion: Portion,
        message_filter: MessageFilter,
        *,
        may_wait: bool,
    ) -> None:
        self._read = read
        self._queues = queues
        self._queue = queue
        self._start = self._offset = offset
        self._count_max, self._bytes_max = read_limits(config, *portion)[0]
        self._examined_max = scan_count(config, portion.max_count)
        self._filter = message_filter
        self._step_bytes = STEP_BYTES_MAX * STEP_LOOKUPS // max(STEP_LOOKUPS, message_filter.weight)
        self._last: ReadResult = NO_QUEUE
        self._may_wait = may_wait
        self._data: list[bytes | memoryview] = []
        self._count = self._size = 0

    def step(self) -> ReadResult | None:
        """Examine some messages; return the result, or None if there is more to examine."""
        if self._queues.get(self._queue.topic, self._queue.queue_id) is not self._queue:
            return NO_QUEUE  # The queue was deleted between two steps.
        left = self._examined_max - (self._offset - self._start)
        read = self._read(
            self._offset,
            min(STEP_COUNT_MAX, left),
            self._step_bytes,
            None,
            may_wait=self._may_wait,
        )
        self._last = read
        if self._offset != self._start and read.status in _NOT_READ:
            return self._result(read)  # Return the matches so far first; the next read may wait.
        is_full = read.status is ReadStatus.FOUND and self._take(read.data)
        if not is_full:
            self._offset = read.next_offset
        is_over = self._offset >= read.max_offset or self._offset - self._start >= self._examined_max
        if is_full or is_over or read.status not in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE):
            return self._result(read)
        return None

    def result_so_far(self) -> ReadResult:
        """Return the messages found up to the last step."""
        return self._result(self._last)

    def _take(self, data: tuple[bytes | memoryview, ...]) -> bool:
        """Keep the matching records; if another does not fit, set the offset to it and return True."""
        matches = self._filter.matches
        for piece in data:
            start = first = 0
            while start < len(piece):
                end = start + _INT.unpack_from(piece, start)[0]
                if not matches(record_properties(piece, start, end)):
                    self._keep(piece, first, start)
                    first = end
                elif self._count and (
                    self._count >= self._count_max or self._size + end - start > self._bytes_max
                ):
                    self._keep(piece, first, start)
                    self._offset = _QUEUE_OFFSET.unpack_from(piece, start)[0]
                    return True
                else:
                    self._count += 1
                    self._size += end - start
                start = end
            self._keep(piece, first, start)
        return False

    def _keep(self, piece: bytes | memoryview, first: int, end: int) -> None:
        """Keep a run of adjacent records, as a copy that does not hold the memory of the others."""
        if end - first == len(piece):
            self._data.append(piece)
        elif end > first:
            self._data.append(bytes(piece[first:end]))

    def _result(self, read: ReadResult) -> ReadResult:
        if self._count:
            return ReadResult(
                ReadStatus.FOUND,
                self._offset,
                read.min_offset,
                read.max_offset,
                data=tuple(self._data),
                count=self._count,
                size=self._size,
            )
        if self._offset == self._start or read.status not in (ReadStatus.FOUND, *_NOT_READ):
            return read
        return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, self._offset, read.min_offset, read.max_offset)
