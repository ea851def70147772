"""The store reader: reads a store directory or a copy without its broker, as far as its queues can be
trusted.

        survey()   where each queue begins and ends, up to the last complete durable record
        windows()  ranges of the log, with the positions of the wanted records as arrays

If the store was closed, its consume queues are right. If not (`abort` exists), they are trusted up to the
recovery point or, in a store written by Apache's broker, up to the store time in its checkpoint, which is
wrong if the clock was set back. Later records are read from the log one by one if no broker has the store
open. If one has, they are ignored, because the broker could still lose them. Records that cannot be read are
reported as lost.

A read goes through the log once for all queues, in the order of writing.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from libramq.errors import StoreCorrupt, StoreError
from libramq.filesystem import FileSystem, LocalFileSystem
from libramq.message.inner_batch import is_of_batch_queue
from libramq.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MAX, RECORD_BYTES_MIN
from libramq.message.record_head import HEADS, HOST_BITS, stored_ms_of
from libramq.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6, is_queued
from libramq.store.checkpoint import RecoveryPoint, RecoveryPointFile, deletions_end, read_checkpoint
from libramq.store.config import UNIT_BYTES
from libramq.store.deletions import Deletions
from libramq.store.log.log_scan import Damage, LogScan
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, unit_of
from libramq.store.queues.light_queues import light_places
from libramq.store.reading.read_only_files import FileRemoved, ReadOnlyFiles, end_of_units, queue_directories
from libramq.store.recovery.opening import ABORT

QueueKey = tuple[str, int]
Places = npt.NDArray[np.int64]
OnLost = Callable[[QueueKey, int, int], None]

WINDOW_BYTES: Final = 4 << 20  # Ours: read at a time; more exceeds the processor's cache.
SURVEYS_MAX: Final = 10  # Ours: a broker removes files every 10 s; a survey takes seconds.
GAP_BYTES: Final = 16 << 10  # Ours: copying this much costs as much as another read.
UNITS: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])


class Extent(NamedTuple):
    """The offsets of a queue. tail: the units from `tail_start` that its files lack."""

    min_offset: int
    max_offset: int
    tail_start: int
    tail: bytes


class Span(NamedTuple):
    """The messages [start, end) of a queue, as a survey found it."""

    queue: QueueKey
    start: int
    end: int
    extent: Extent


@dataclass(frozen=True, slots=True)
class LogWindow:
    """A range of the log. starts: the wanted records' positions in `data`; physical: in the log."""

    data: bytes
    starts: npt.NDArray[np.int64]
    physical: npt.NDArray[np.int64]


class StoreReader:
    """Reads a store; changes nothing in the directory.

    commit_log: the directory of the log, if it is outside the store directory (storePathCommitLog).
    """

    def __init__(
        self, root: Path, *, filesystem: FileSystem | None = None, commit_log: Path | None = None
    ) -> None:
        self._filesystem = filesystem or LocalFileSystem()
        self._root = root
        self._commit_log = commit_log or root / "commitlog"
        if not self._filesystem.is_directory(self._commit_log):
            missing = (
                "it has no commitlog; is it elsewhere?" if commit_log is None else f"{commit_log} is missing"
            )
            raise StoreError(f"{root} is no store directory: {missing}")
        self._log = ReadOnlyFiles(self._filesystem, self._commit_log)
        self._files: dict[QueueKey, ReadOnlyFiles] = {}

    def survey(self) -> dict[QueueKey, Extent]:
        """Return the extent of every queue; reads the end of the log if the store was not closed.

        Starts again if a broker removes files meanwhile; raises StoreError after SURVEYS_MAX attempts.
        """
        for _ in range(SURVEYS_MAX):
            with contextlib.suppress(FileRemoved):
                return self._survey()
            self.close()
            self._log = ReadOnlyFiles(self._filesystem, self._commit_log)
            self._files = {}
        raise StoreError(f"{self._root}: files are removed faster than they are looked at; read a copy")

    def _survey(self) -> dict[QueueKey, Extent]:
        found = {
            key: _Found(*self._ends_of_files(key))
            for key, _ in queue_directories(self._filesystem, self._root / "consumequeue")
        }
        point = RecoveryPointFile(self._filesystem, self._root).load()
        abort_text = self._filesystem.read_text(self._root / ABORT)
        if abort_text is not None:
            self._survey_unclosed(found, point, abort_text)
        deletions = Deletions(self._filesystem, self._root)
        deletions.load(end=deletions_end(point, abort_text))
        return {
            key: Extent(
                self._min_offset(key, queue, deletions), queue.max_offset, queue.written, bytes(queue.tail)
            )
            for key, queue in sorted(found.items())
        }

    def _survey_unclosed(
        self, found: dict[QueueKey, "_Found"], point: RecoveryPoint | None, abort_text: str
    ) -> None:
        """Keep the units that are known to be on the disk, and read the log after them."""
        is_locked = self._filesystem.is_locked(self._root / "lock")
        if point is not None and point.is_of(abort_text):
            for key, queue in found.items():
                queue.written = self._first_at_or_after(key, queue, point.dispatched)
            if not is_locked:
                self._scan(found, LogScan(
                    self._log, max(point.dispatched, self._log.min_offset),
                    protected=min(point.flushed, self._log.end), refuses_nuls=True,
                ))  # fmt: skip
            return
        checkpoint = read_checkpoint(self._filesystem, self._root / "checkpoint")
        for key, queue in found.items():
            queue.written = self._first_after(key, queue, int(checkpoint.safe_timestamp_ms) + 1)
        if not is_locked:
            self._scan(found, LogScan(self._log, self._end_of_units(found)))

    def batch_topics(self) -> list[str]:
        """Return the topics with batch queues, which surveys do not include.

        Apache's broker leaves empty directories when it deletes a topic; those do not count.
        """
        root = self._root / "batchconsumequeue"
        listdir = self._filesystem.listdir
        return [
            topic
            for topic in listdir(root)
            if any(listdir(root / topic / each) for each in listdir(root / topic))
        ]

    def offset_at(self, key: QueueKey, extent: Extent, time_ms: int) -> int:
        """Return the offset of a queue's first message stored at a time or later, or the queue's end."""

        def stored_ms(number: int) -> int:
            with contextlib.suppress(FileRemoved):
                (unit,) = self._units(key, extent, number, number + 1)
                return self._stored_ms(int(unit["physical"]))
            return 0  # Files removed meanwhile are older.

        return bisect_left(range(extent.max_offset), time_ms, extent.min_offset, key=stored_ms)

    def windows(self, spans: Iterable[Span], lost: OnLost) -> Iterator[LogWindow]:
        """Yield exactly the records of the spans, in log order; `lost` is called for missing ones."""
        cursors = [SpanCursor(self, span, lost) for span in spans]
        while cursors := [cursor for cursor in cursors if cursor.has_more]:
            first = min(cursor.next_physical for cursor in cursors)
            limit = min(first + WINDOW_BYTES, self._log.start_of(first) + self._log.file_size)
            taken = [cursor.take(limit) for cursor in cursors]
            physical, sizes, numbers = (np.concatenate(column) for column in zip(*taken, strict=True))
            order = np.argsort(physical, kind="stable")
            window = self._fetch(physical[order], sizes[order])
            is_whole = whole_frames(window.data, window.starts, sizes[order], physical[order])
            if not is_whole.all():
                owners = np.repeat(np.arange(len(cursors)), [len(each[0]) for each in taken])
                gone = np.sort(order[~is_whole])
                for owner, cursor in enumerate(cursors):
                    for first_number, end in runs(numbers[gone[owners[gone] == owner]]):
                        lost(cursor.queue, first_number, end)
                window = LogWindow(window.data, window.starts[is_whole], window.physical[is_whole])
            if len(window.physical):
                yield window

    def close(self) -> None:
        """Close the descriptors."""
        for files in (self._log, *self._files.values()):
            files.close()

    def _files_of(self, key: QueueKey) -> ReadOnlyFiles:
        files = self._files.get(key)
        if files is None:
            directory = self._root / "consumequeue" / key[0] / str(key[1])
            files = self._files[key] = ReadOnlyFiles(self._filesystem, directory)
        return files

    def _ends_of_files(self, key: QueueKey) -> tuple[int, int]:
        """Return the first number in the files, and the number after the last unit, where zeroes follow."""
        files = self._files_of(key)
        if not files.starts:
            return 0, 0
        return files.min_offset // UNIT_BYTES, end_of_units(files)

    def _first_after(self, key: QueueKey, queue: "_Found", time_ms: int) -> int:
        """Return the number of the first unit that does not point to a record stored before a time."""

        def is_after(number: int) -> bool:
            physical, size, _ = UNIT.unpack(self._files_of(key).read(number * UNIT_BYTES, UNIT_BYTES))
            is_gone = size == BLANK_SIZE or 0 <= physical < self._log.min_offset
            return not (is_gone or 0 < self._stored_ms(physical) < time_ms)

        return bisect_left(range(queue.written), True, queue.first, key=is_after)

    def _first_at_or_after(self, key: QueueKey, queue: "_Found", physical_offset: int) -> int:
        """Return the first number whose unit points to an offset or after it, or was never written."""
        files = self._files_of(key)

        def is_behind(number: int) -> bool:
            physical, size, _ = UNIT.unpack(files.read(number * UNIT_BYTES, UNIT_BYTES))
            return not (size > 0 and 0 <= physical < physical_offset)

        return bisect_left(range(files.end // UNIT_BYTES), True, queue.first, key=is_behind)

    def _end_of_units(self, found: dict[QueueKey, "_Found"]) -> int:
        """Return the end of the last record that the queues' files refer to."""
        end = self._log.min_offset
        for key, queue in found.items():
            if queue.written > queue.first:
                data = self._files_of(key).read((queue.written - 1) * UNIT_BYTES, UNIT_BYTES)
                physical, size, _ = UNIT.unpack(data)
                if size != BLANK_SIZE:
                    end = max(end, physical + size)
        return end

    def _scan(self, found: dict[QueueKey, "_Found"], scan: LogScan) -> None:
        """Read the log from the end of the trusted units, and rebuild a unit from each record."""
        for head in scan:
            if isinstance(head, Damage) or is_of_batch_queue(head):  # Surveys have no batch queues.
                continue
            if is_queued(head.sys_flag):
                unit = unit_of(head)
                found.setdefault((head.topic, head.queue_id), _Found(0, 0)).add(head.queue_offset, unit)
                for name, queue_id, number in light_places(head):
                    if (name, queue_id) in found:
                        found[name, queue_id].add(number, unit)

    def _min_offset(self, key: QueueKey, queue: "_Found", deletions: Deletions) -> int:
        """Return the offset of the first message that is still in the log and was not deleted."""
        physical_min = max(self._log.min_offset, deletions.end_in_queue(*key))
        extent = Extent(queue.first, queue.max_offset, queue.written, bytes(queue.tail))

        def is_there(number: int) -> bool:
            (unit,) = self._units(key, extent, number, number + 1)
            is_before_all = unit["size"] == BLANK_SIZE and not unit["physical"]
            return bool(unit["physical"] >= physical_min) and not is_before_all

        return bisect_left(range(queue.max_offset), True, queue.first, key=is_there)

    def _units(self, key: QueueKey, extent: Extent, start: int, end: int) -> npt.NDArray[np.void]:
        data = b""
        if start < extent.tail_start:
            size = (min(end, extent.tail_start) - start) * UNIT_BYTES
            data = self._files_of(key).read_across(start * UNIT_BYTES, size)
        tail_from = max(start, extent.tail_start) - extent.tail_start
        data += extent.tail[tail_from * UNIT_BYTES : max(0, end - extent.tail_start) * UNIT_BYTES]
        if len(data) != (end - start) * UNIT_BYTES:
            raise StoreCorrupt(f"queue {key[1]} of topic {key[0]} has no units {start} to {end} any more")
        return np.frombuffer(data, dtype=UNITS)

    def units_or_begin(
        self, key: QueueKey, extent: Extent, start: int, end: int
    ) -> npt.NDArray[np.void] | int:
        """Return units, or the first number in the queue's files if it is after `start`."""
        if start < extent.tail_start:
            files = self._files_of(key)
            for _ in range(2):
                begin = min(files.min_offset // UNIT_BYTES, extent.tail_start)
                if begin > start:
                    return begin
                with contextlib.suppress(FileRemoved):
                    return self._units(key, extent, start, end)
        return self._units(key, extent, start, end)

    def _stored_ms(self, physical: int) -> int:
        """Return the store time of a record; 0 if there is none."""
        if not self._log.has(physical):
            return 0
        head = self._log.read(physical, RECORD_BYTES_MIN)
        if len(head) < RECORD_BYTES_MIN:
            return 0
        return stored_ms_of(head)

    def may_hold(self, physical: Places, sizes: Places) -> npt.NDArray[np.bool_]:
        """Return which units may point to records: neither blank nor damaged."""
        log = self._log
        within = physical % log.file_size + sizes <= log.file_size if log.file_size else False
        may: npt.NDArray[np.bool_] = (
            (sizes >= RECORD_BYTES_MIN) & (sizes <= RECORD_BYTES_MAX) & within
            & (physical >= log.min_offset) & (physical + sizes <= log.end)
        )  # fmt: skip
        return may

    def _fetch(self, physical: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> LogWindow:
        """Return the ranges of the log with these records, joined and without large gaps."""
        ends = physical + sizes
        cuts = np.flatnonzero(physical[1:] - ends[:-1] > GAP_BYTES) + 1
        firsts, lasts = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(physical)]))
        pieces = []
        starts = np.empty(len(physical), dtype=np.int64)
        length = 0
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            begin, size = int(physical[first]), int(ends[last - 1] - physical[first])
            try:
                piece = self._log.read(begin, size)
            except FileRemoved:  # A window lies in one file, so all of it is gone.
                return LogWindow(b"", physical - begin, physical)
            if len(piece) != size:
                raise StoreCorrupt(f"{self._commit_log} does not hold {size} bytes at {begin} any more")
            starts[first:last] = physical[first:last] - (begin - length)
            pieces.append(piece)
            length += size
        return LogWindow(pieces[0] if len(pieces) == 1 else b"".join(pieces), starts, physical)


@dataclass(slots=True)
class _Found:
    """A queue during a survey: units [first, written) are in its files, later ones in `tail`."""

    first: int
    written: int
    tail: bytearray = field(default_factory=bytearray)

    @property
    def max_offset(self) -> int:
        return self.written + len(self.tail) // UNIT_BYTES

    def add(self, queue_offset: int, unit: bytes) -> None:
        """Add a unit as ConsumeQueue.rebuild does: fill gaps with blanks; number 0 means a new topic."""
        if queue_offset < self.max_offset:
            if queue_offset:
                return
            self.first = self.written = 0
            self.tail.clear()
        elif not self.max_offset:
            self.first = self.written = queue_offset
        physical = UNIT.unpack(unit)[0] if self.max_offset else 0
        self.tail += UNIT.pack(physical, BLANK_SIZE, 0) * (queue_offset - self.max_offset) + unit


BLOCK_UNITS: Final = 1 << 16  # Ours: read from a queue at a time, 1.3 MB.


class SpanCursor:
    """Iterates over the units of one span, block by block."""

    def __init__(self, reader: StoreReader, span: Span, lost: OnLost) -> None:
        self._reader = reader
        self._lost = lost
        self.queue, self._next, end, self._extent = span
        self._end = min(end, self._extent.max_offset)
        self._physical = self._sizes = self._numbers = np.empty(0, dtype=np.int64)
        if self._next < min(self._extent.min_offset, end):
            begin = min(self._extent.min_offset, end)
            lost(self.queue, self._next, begin)
            self._next = begin
        if max(self._next, self._end) < end:
            lost(self.queue, max(self._next, self._end), end)
        self._load()

    @property
    def has_more(self) -> bool:
        """Return whether a record is left."""
        return len(self._physical) > 0

    @property
    def next_physical(self) -> int:
        """Return the physical offset of the next record."""
        return int(self._physical[0])

    def take(self, limit: int) -> tuple[Places, Places, Places]:
        """Return offsets, sizes and numbers of the records that begin before a physical offset."""
        taken: list[tuple[Places, Places, Places]] = []
        while self.has_more:
            count = int(np.searchsorted(self._physical, limit))
            taken.append((self._physical[:count], self._sizes[:count], self._numbers[:count]))
            self._physical, self._sizes = self._physical[count:], self._sizes[count:]
            self._numbers = self._numbers[count:]
            if self.has_more:
                break
            self._load()
        if not taken:
            return self._physical, self._sizes, self._numbers
        physical, sizes, numbers = (np.concatenate(column) for column in zip(*taken, strict=True))
        return physical, sizes, numbers

    def _load(self) -> None:
        while not len(self._physical) and self._next < self._end:
            stop = min(self._next + BLOCK_UNITS, self._end)
            units = self._reader.units_or_begin(self.queue, self._extent, self._next, stop)
            if isinstance(units, int):  # Earlier units were removed since the survey.
                begin = min(units, self._end)
                self._lost(self.queue, self._next, begin)
                self._next = begin
                continue
            sizes, physical = units["size"].astype(np.int64), units["physical"].astype(np.int64)
            keep = self._reader.may_hold(physical, sizes)
            for first, last in runs(np.flatnonzero(~keep)):
                self._lost(self.queue, self._next + first, self._next + last)
            self._physical, self._sizes = physical[keep], sizes[keep]
            self._numbers = np.arange(self._next, stop)[keep]
            self._next = stop


def runs(places: npt.NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return ranges [first, end) of consecutive places."""
    if not len(places):
        return ()
    cuts = np.flatnonzero(np.diff(places) > 1)
    firsts = places[np.concatenate(([0], cuts + 1))]
    lasts = places[np.concatenate((cuts, [len(places) - 1]))] + 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


_MAGIC_AT = 4
_PHYSICAL_OFFSET_AT = 28
_SYS_FLAG_AT = 36
_HEAD_BYTES = HEADS[0].size
_LONGER_BYTES = HEADS[BORN_HOST_V6].size - _HEAD_BYTES
assert HOST_BITS == BORN_HOST_V6 | STORE_HOST_V6


def whole_frames(data: bytes, starts: Places, sizes: Places, physical: Places) -> npt.NDArray[np.bool_]:
    """Return for each position whether it has a consistent record of that size and physical offset."""
    if len(data) < RECORD_BYTES_MIN:
        return np.zeros(len(starts), dtype=np.bool_)

    def read(at: Places, kind: str) -> Places:
        dtype = np.dtype(kind)
        numbers: npt.NDArray[np.int64] = np.ndarray(
            (len(data) - dtype.itemsize + 1,), dtype, buffer=data, strides=(1,)
        )
        return numbers[np.clip(at, 0, len(numbers) - 1)].astype(np.int64)

    magic = read(starts + _MAGIC_AT, ">u4")
    sys_flag = read(starts + _SYS_FLAG_AT, ">i4")
    ends = starts + sizes
    body_at = starts + _HEAD_BYTES
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        body_at += np.where(sys_flag & bit, _LONGER_BYTES, 0)
    length_at = body_at + read(body_at - 4, ">u4")
    is_v1 = magic == MAGIC_V1
    topic_size = np.where(is_v1, read(length_at, ">u1"), read(length_at, ">u2"))
    properties_at = length_at + np.where(is_v1, 1, 2) + topic_size + 2
    whole: npt.NDArray[np.bool_] = (
        (read(starts, ">u4") == sizes)
        & (is_v1 | (magic == MAGIC_V2))
        & (read(starts + _PHYSICAL_OFFSET_AT, ">i8") == physical)
        & (properties_at <= ends)
        & (properties_at + read(properties_at - 2, ">u2") == ends)
        & (ends <= len(data))
    )
    return whole
