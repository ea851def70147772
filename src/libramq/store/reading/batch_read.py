"""The batch read: reads messages of a batch queue (BatchCQ), unwrapped or as stored, depending on the
reader's abilities.

    units ─► records ─► as stored     whole batches; the first may begin before the offset
                     ├► wrapped       the same, only batches that RocketMQ clients can unwrap (NEED_UNWRAP)
                     └► unwrapped     messages from the offset, as from any other queue

Upstream: DefaultMessageStore.getMessage, which sends clients whole batches to unwrap.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from libramq.errors import StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.record import RecordHead, peek_record
from libramq.message.record_head import SYS_FLAG_LOW_AT
from libramq.store.config import StoreConfig
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import FileRange
from libramq.store.queues.batch_consume_queue import BatchConsumeQueue, BatchUnit
from libramq.store.queues.consume_queue import BLANK_SIZE, unit_tag_code
from libramq.store.reading.read import (
    Place,
    Portion,
    ReadResult,
    ReadStatus,
    fetch,
    outside,
    read_limits,
    scan_count,
)
from libramq.store.reading.unwrapping import Unwrapping, Wrapped, is_wrapped

#: Ours: the most batches in one read.
UNITS_MAX: Final = 1024

#: A record, its head, and its messages if known; the record is then not read and is empty.
_Record = tuple[bytes, RecordHead, Sequence[bytes] | None]
_Data = tuple[bytes | memoryview, ...]


class BatchRead:
    """One read from `offset`, the counterpart of `read_queue`; as stored if `unwrapping` is None.

    As stored, only bytes are limited. may_be_wrapped: the reader can unwrap batches as RocketMQ clients do;
    the last batch is always whole.
    """

    def __init__(
        self,
        log: CommitLog,
        queue: BatchConsumeQueue,
        config: StoreConfig,
        offset: int,
        portion: Portion,
        tag_codes: frozenset[int] | None,
        unwrapping: Unwrapping | None,
        *,
        may_be_wrapped: bool = False,
    ) -> None:
        max_count, max_bytes = portion
        self._log = log
        self._queue = queue
        self._offset = offset
        self._tag_codes = tag_codes
        self._unwrapping = unwrapping
        self._may_be_wrapped = may_be_wrapped and tag_codes is None
        self._limits = read_limits(config, max_count, max_bytes)
        self._memory_start = log.end - config.in_memory_bytes
        self._scan_max = queue.visible_max - offset
        if unwrapping is None:
            bytes_max = config.bulk_transfer_bytes if max_bytes is None else max_bytes
            self._limits = ((1 << 31, min(bytes_max, config.bulk_transfer_bytes)),) * 2
        else:
            wanted = self._limits[0][0] if tag_codes is None else scan_count(config, max_count)
            self._scan_max = min(self._scan_max, max(wanted, 1))
        self._skipped: set[Place] = set()

    def run(self, *, may_wait: bool, may_unwrap: bool) -> ReadResult:
        """Read. may_unwrap: unwrap even large batches; otherwise WOULD_WAIT names the first of them."""
        while True:
            result = self._run(may_wait=may_wait, may_unwrap=may_unwrap)
            if isinstance(result, ReadResult):
                return result
            self._log.unreadable.add(result)
            self._skipped |= result

    def _run(self, *, may_wait: bool, may_unwrap: bool) -> ReadResult | set[Place]:
        """Read all but the skipped records, or return the records that cannot be read."""
        queue, offset = self._queue, self._offset
        min_offset, max_offset = queue.min_offset, queue.visible_max
        refused = outside(offset, min_offset if max_offset else -1, max_offset)
        if refused is not None:
            return refused
        scan = self._scan_max
        units = queue.batches(offset, scan, UNITS_MAX, may_wait=may_wait)
        if isinstance(units, FileRange):
            return ReadResult(ReadStatus.WOULD_WAIT, offset, min_offset, max_offset, cold=(units,))
        status, wanted, next_offset = self._wanted(units)
        if not wanted:
            if next_offset <= offset:  # No unit has these numbers.
                next_offset = min(queue.offset_at(queue.place_of(offset) + len(units)), max_offset)
            return ReadResult(status, next_offset, min_offset, max_offset)
        kept = self._kept(wanted, units)
        if kept is not None and self._unwrapping is not None:
            return self._unwrapped([kept], next_offset, self._unwrapping, may_unwrap=may_unwrap)
        offsets, sizes = zip(*wanted, strict=True)
        found = fetch(self._log, offsets, sizes, may_wait=may_wait)
        if isinstance(found, set):
            return found
        data, cold = found
        if cold:
            return ReadResult(ReadStatus.WOULD_WAIT, offset, min_offset, max_offset, cold=cold)
        if self._unwrapping is None:
            return ReadResult(
                ReadStatus.FOUND, next_offset, min_offset, max_offset,
                data=data, count=next_offset - offset, size=sum(sizes),
            )  # fmt: skip
        if self._may_be_wrapped:
            data_wrapped, end = _wrapped(data)
            if data_wrapped:
                next_offset = next_offset if end is None else end
                return ReadResult(
                    ReadStatus.FOUND, next_offset, min_offset, max_offset,
                    data=data_wrapped, count=next_offset - offset, size=sum(map(len, data_wrapped)),
                )  # fmt: skip
        return self._unwrapped(_records(data), next_offset, self._unwrapping, may_unwrap=may_unwrap)

    def _kept(self, wanted: Sequence[Place], units: Sequence[BatchUnit]) -> _Record | None:
        """Return the wanted record with its messages, if it is the only one and was unwrapped recently."""
        if len(wanted) > 1 or self._unwrapping is None or self._may_be_wrapped:
            return None
        kept = self._unwrapping.kept(wanted[0][0])
        if kept is None or not any(unit.is_of(kept[0]) for unit in units):
            return None
        return b"", *kept

    def _wanted(self, units: Sequence[BatchUnit]) -> tuple[ReadStatus, list[Place], int]:
        """Return the records to read, and the number after their messages."""
        status, next_offset = ReadStatus.NO_MATCHED_MESSAGE, self._offset
        wanted: list[Place] = []
        total = 0
        log_min = self._log.min_offset
        for physical_offset, size, _, _, base, count in units:
            if base + count <= self._offset:
                continue
            if wanted:
                count_max, bytes_max = self._limits_at(physical_offset)
                if total + size > bytes_max or base - self._offset >= count_max:
                    break
            next_offset = base + count
            if size == BLANK_SIZE:
                continue
            if physical_offset < log_min:
                status = ReadStatus.MESSAGE_WAS_REMOVING
                continue
            if (physical_offset, size) in self._skipped:
                continue
            wanted.append((physical_offset, size))
            total += size
        return status, wanted, next_offset

    def _limits_at(self, physical_offset: int) -> tuple[int, int]:
        in_memory, on_disk = self._limits
        return in_memory if physical_offset >= self._memory_start else on_disk

    def _unwrapped(
        self, records: Iterable[_Record], next_offset: int, unwrapping: Unwrapping, *, may_unwrap: bool
    ) -> ReadResult | set[Place]:
        """Return the messages of records from the offset, up to the limits."""
        queue = self._queue
        ends = queue.min_offset, queue.visible_max
        taken: list[bytes] = []
        size = 0
        for record, head, messages in records:
            try:
                if messages is None:
                    messages = [record] if not is_wrapped(head) else unwrapping.messages(
                        record, head, may_wait=may_unwrap
                    )  # fmt: skip
            except StoreCorrupt:
                return {(head.physical_offset, head.size)}
            if messages is None:
                if taken:
                    next_offset = head.queue_offset
                    break
                wrapped = Wrapped(unwrapping, record, head)
                return ReadResult(ReadStatus.WOULD_WAIT, self._offset, *ends, cold=(wrapped,))
            first = max(self._offset, head.queue_offset)
            left = messages[first - head.queue_offset :]
            end, size = self._take(left, first, taken, size, head.physical_offset)
            if end < head.queue_offset + len(messages):
                next_offset = end
                break
        if not taken:
            return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, next_offset, *ends)
        return ReadResult(
            ReadStatus.FOUND, next_offset, *ends, data=tuple(taken), count=len(taken), size=size
        )

    def _take(
        self, messages: Sequence[bytes], number: int, taken: list[bytes], size: int, physical_offset: int
    ) -> tuple[int, int]:
        """Append the matching messages from a number to `taken`, up to the limits.

        A batch may have tens of thousands of messages: without a filter none is examined, with one as many as
        in other queues. Returns the number after the last message, and the total size.
        """
        count_max, bytes_max = self._limits_at(physical_offset)
        if self._tag_codes is not None:
            for message in messages[: self._scan_max]:
                head = peek_record(message)
                if head is not None and unit_tag_code(head) in self._tag_codes:
                    if taken and (len(taken) >= count_max or size + len(message) > bytes_max):
                        break
                    taken.append(message)
                    size += len(message)
                number += 1
            return number, size
        fitting = messages[: max(0, count_max - len(taken))]
        sizes = list(accumulate(map(len, fitting), initial=size))
        count = max(bisect_right(sizes, bytes_max) - 1, 0 if taken else 1)
        taken += fitting[:count]
        return number + len(fitting[:count]), sizes[min(count, len(fitting))]


def _wrapped(data: _Data) -> tuple[_Data, int | None]:
    """Return the records up to the first batch of another protocol, and its offset or None.

    Only the size and the flag of a record are examined, however many messages it stands for.
    """
    before: list[bytes | memoryview] = []
    for piece in data:
        start = 0
        while start < len(piece):
            if piece[start + SYS_FLAG_LOW_AT] & flags.WRAPPED == flags.INNER_BATCH:
                if start:
                    before.append(piece[:start])
                return tuple(before), int.from_bytes(piece[start + 20 : start + 28])
            start += int.from_bytes(piece[start : start + 4])
        before.append(piece)
    return data, None


def _records(data: _Data) -> Iterator[_Record]:
    """Yield the records of a read, all of them whole."""
    for piece in data:
        start = 0
        while start < len(piece):
            end = start + int.from_bytes(piece[start : start + 4])
            record = bytes(piece[start:end])
            head = peek_record(record)
            assert head is not None
            yield record, head, None
            start = end
