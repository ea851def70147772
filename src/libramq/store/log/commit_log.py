"""The commit log: all records in one sequence; decides when a new file begins, and tracks how far the log is
written and flushed, the newest part in memory (tail), and the zeroes written ahead.

Records do not cross files. If the next records do not fit, a blank fills the rest of the file; room for its
eight bytes is always left.

    `end`      the offset of the next record; everything before it is written
    `flushed`  everything before it is on the disk

Under SYNC_FLUSH zeroes are written ahead of small records, a stretch at a time. A file of the log is a hole
at first, and a flush of data in a hole also writes the block allocation, in most file systems through a
journal that other writers wait for: 32 KiB took 0.24 ms (mean 0.55) in a hole, 0.10 ms (0.17) over zeroes.
Both read as zeroes, so recovery sees no difference.

Upstream: store/CommitLog.java.
"""

import contextlib
import mmap
from collections.abc import Sequence
from typing import Final

from libramq.filesystem import FileSystem, Ranges, joined_ranges, nearby, span
from libramq.logs import get_logger
from libramq.message.record import BLANK_BYTES, RECORD_BYTES_MAX, RECORD_BYTES_MIN, encode_blank
from libramq.message.record_head import STORED_BY_BYTES, stored_ms_of
from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.log.segments import FileRange, Segments
from libramq.store.open_files import OpenFiles

log = get_logger(__name__)

#: Ours: data of this size or more is worth its own allocation; zeroes would double the bytes written.
ZEROED_FOR_BYTES_MAX: Final = 64 << 10
#: Ours: zeroes are written in chunks of this size. The page cache keeps each write as one folio and scans all
#: of it to flush a few bytes, which took 5 µs more with 1 MiB.
ZEROES_BYTES: Final = 64 << 10


class CommitLog:
    """The records, by physical offset."""

    def __init__(self, filesystem: FileSystem, files: OpenFiles, config: StoreConfig) -> None:
        size = config.mapped_file_size_commit_log
        self.segments = Segments(filesystem, files, config.commit_log_directory, size)
        self._files = files
        is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._zeroed_bytes = filesystem.zeroed_bytes if is_sync else 0
        self._zeroed_end = 0
        self._zeroed_at = 0  # The log's end when zeroes were last written.
        self.tail = Tail(config.tail_bytes)
        self.end = 0
        self.flushed = 0
        #: Whether each write is flushed next, so that its writeback starts while the send is still being
        #: processed.
        self.is_flushed_next = False
        self.unreadable = UnreadableRecords()

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte."""
        return self.segments.min_offset

    @property
    def unflushed_bytes(self) -> int:
        """Return the number of bytes that the next flush writes: records and the zeroes after them."""
        zeroed = self._zeroed_end - self._zeroed_at if self._zeroed_at > self.flushed else 0
        return self.end - self.flushed + max(0, zeroed)

    def roll(self) -> None:
        """Begin the next file; the rest of this one becomes a blank."""
        segments = self.segments
        remaining = segments.end - self.end
        if not segments.starts:
            segments.create(segments.start_of(self.end))
            return
        if remaining:
            blank = encode_blank(remaining)
            segments.write(self.end, blank)
            segments.create(segments.end)
            self.tail.append(self.end, blank + bytes(remaining - BLANK_BYTES))
            self.end += remaining
        else:
            segments.create(segments.end)

    def write(self, data: bytes) -> None:
        """Append records that fit in this file; if the disk fails, none of them is appended."""
        try:
            self.segments.write(self.end, data, begins=self.is_flushed_next)
        except OSError:
            # Partly written records must not reappear after shorter ones later.
            self._cut_files(self.end)
            raise
        self.tail.append(self.end, data)
        self.end += len(data)
        if self._zeroed_end < self.end and self._zeroed_bytes and len(data) < ZEROED_FOR_BYTES_MAX:
            self._write_zeroes()

    def begin_at(self, offset: int) -> None:
        """Begin an empty log at the start of a file."""
        self.tail.restart(offset)
        self.end = self.flushed = offset

    def recovered(self, end: int) -> None:
        """Set the end after recovery, and cut off everything after it."""
        self._cut_files(end)
        self.tail.restart(end)
        self.end = end

    @property
    def holds_several(self) -> bool:
        """Return whether files other than the one being written are kept open."""
        return self._files.held_count > 1

    def hold_unflushed(self) -> list[int]:
        """Keep the unflushed files and the one being written open; return their descriptors.

        A thread may flush them: each stays open until `flushed` has passed it and this is called again.
        """
        segments = self.segments
        if not segments.starts:
            return []
        last_start = segments.starts[-1]
        last = segments.path(last_start)
        if self.flushed > last_start:  # The common case; saves 10 µs a send.
            only = self._files.held_only(last)
            if only is not None:
                return [only]
        return self._files.hold(dict.fromkeys([*segments.paths_between(self.flushed, self.end), last]))

    def read(self, offset: int, size: int) -> bytes | None:
        """Return bytes of one file, or None if they do not exist (any more)."""
        data = self.tail.read(offset, size)
        if data is None:
            if not self._holds(offset, size):
                return None
            data = self.segments.read(offset, size)
        return data if len(data) == size else None

    def read_nowait(self, offset: int, size: int) -> bytes | FileRange | None:
        """Return the bytes or, if they are not in memory, the range that a thread must warm first."""
        data = self.tail.read(offset, size)
        if data is not None or not self._holds(offset, size):
            return data
        found = self.segments.read_nowait(offset, size)
        return found if isinstance(found, FileRange) or len(found) == size else None

    def read_runs(self, runs: Ranges, *, may_wait: bool) -> bytes | bytearray | tuple[FileRange, ...] | None:
        """Return runs of records of one file, joined, or None if not all exist (any more).

        If they are not in memory and the caller may not wait, return the ranges that a thread must warm
        first.
        """
        for start, size in runs:
            if not self._holds(start, size):
                return None
        data: bytes | bytearray | None
        if may_wait:
            data = b"".join([self._read_nearby(near) for near in nearby(runs)])
        else:
            data = self.segments.read_ranges_nowait(runs)
            if data is None:
                return tuple(self.segments.file_range(*span(near)) for near in nearby(runs))
        return data if len(data) == sum([size for _, size in runs]) else None

    def _read_nearby(self, runs: Ranges) -> bytes:
        start, size = span(runs)
        return joined_ranges(self.segments.read(start, size), start, runs)

    def record(self, offset: int) -> bytes | None:
        """Return the bytes of a possible record at an offset, never more than the largest record."""
        if not self._holds(offset, BLANK_BYTES):
            return None
        size = int.from_bytes(self.segments.read(offset, 4))
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return None
        return self.read(offset, size)

    def store_timestamp_ms(self, offset: int) -> int:
        """Return the store time of the record at an offset; 0 if it cannot be read, as upstream."""
        head = self.read(offset, STORED_BY_BYTES) if self.end - offset >= STORED_BY_BYTES else None
        return stored_ms_of(head) if head is not None else 0

    def may_hold(self, offset: int, size: int) -> bool:
        """Return whether a record of this size fits at this offset; a damaged unit may contain any value."""
        return RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX and self._holds(offset, size)

    def _holds(self, offset: int, size: int) -> bool:
        segments = self.segments
        return (
            size > 0
            and segments.min_offset <= offset
            and offset + size <= self.end
            and offset % segments.file_size + size <= segments.file_size
        )

    def _cut_files(self, end: int) -> None:
        self.segments.zero_after(end)
        self._zeroed_end = 0

    def _write_zeroes(self) -> None:
        """Fill the stretch that the end has reached; if the disk refuses, records are still written."""
        self._zeroed_end = min(
            self.end - self.end % self._zeroed_bytes + self._zeroed_bytes, self.segments.end
        )
        self._zeroed_at = self.end
        zeroes = bytes(ZEROES_BYTES)
        with contextlib.suppress(OSError):
            for start in range(self.end, self._zeroed_end, ZEROES_BYTES):
                self.segments.write(start, zeroes[: self._zeroed_end - start])


class Tail:
    """The tail: the newest `capacity` bytes of the log, in memory.

    The tail is a ring buffer: the byte at physical offset p lies at p modulo the capacity. It holds one
    contiguous range up to the log's end. Consumers that keep up read from it without a system call. The
    kernel allocates its memory on first write, so a broker that stores little uses little.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ring = mmap.mmap(-1, capacity)
        #: The physical offsets of the oldest byte held, and after the newest.
        self.start = self.end = 0

    def restart(self, offset: int) -> None:
        """Drop everything; the next data begins at `offset`."""
        self.start = self.end = offset

    def append(self, offset: int, data: bytes) -> None:
        """Add data written at `offset`; if that is not the end, drop the held data first."""
        if offset != self.end:
            self.restart(offset)
        self.end = end = offset + len(data)
        capacity = self._capacity
        if len(data) > capacity:
            data = data[-capacity:]
            offset = end - capacity
        at = offset % capacity
        room = capacity - at
        if len(data) <= room:
            self._ring[at : at + len(data)] = data
        else:
            self._ring[at:] = data[:room]
            self._ring[: len(data) - room] = data[room:]
        if self.start < end - capacity:
            self.start = end - capacity

    def read(self, offset: int, size: int) -> bytes | None:
        """Return a range, or None if not all of it is held."""
        end = offset + size
        if offset < self.start or end > self.end:
            return None
        at = offset % self._capacity
        room = self._capacity - at
        if size <= room:
            return self._ring[at : at + size]
        return self._ring[at:] + self._ring[: size - room]

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> tuple[bytes, ...] | None:
        """Return ranges given by offset and size, the oldest first; None if not all of them are held.

        Copying them one by one is faster than copying the gaps between them as well.
        """
        ring, capacity, oldest, newest = self._ring, self._capacity, self.start, self.end
        pieces = []
        for start, size in runs:
            end = start + size
            if start < oldest or end > newest:
                return None
            at = start % capacity
            end = at + size
            pieces.append(ring[at:end] if end <= capacity else ring[at:] + ring[: end - capacity])
        return tuple(pieces)


#: Ours: after this many lost records, further reports add nothing.
REMEMBERED_MAX: Final = 10_000


class UnreadableRecords:
    """Physical offsets of records that readers had to skip, each reported once."""

    def __init__(self) -> None:
        self._offsets: set[int] = set()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, places: set[tuple[int, int]]) -> None:
        """Note physical offsets and sizes of unreadable records, and report the new ones."""
        for offset, _ in sorted(places):
            if self.note(offset):
                log.error("a record of the commit log cannot be read; readers skip it", offset=offset)

    def note(self, offset: int) -> bool:
        """Note a record that was reported already; return whether it is new."""
        if offset in self._offsets or len(self._offsets) >= REMEMBERED_MAX:
            return False
        self._offsets.add(offset)
        return True
