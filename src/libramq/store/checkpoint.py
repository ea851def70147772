"""The checkpoints, which record up to where a store's files are on the disk: Apache's file (`checkpoint`) and
LibraMQ's own (the recovery point).

    checkpoint          Apache's: commit log (8) | consume queues (8) | index (8)
                        master flushed offset (8) | confirm offset (8), then zeroes up to 4096

Its first three fields are store times of messages, not clock times: after an abnormal end, recovery begins at
the newest file that starts before all three. Times mislead once a clock has been set back, so LibraMQ's file,
the **recovery point**, has offsets:

    libra.checkpoint    two slots, 4096 bytes apart, written in turn

    magic (8) | number (8) | generation (8) | opened at (8)
    flushed (8) | dispatched (8) | units (8) | crc (4)
    begins (8) | crc of all before (4)

`flushed`: the log up to here was on the disk; unreadable data before it is damage, not a torn end.
`dispatched`: the consume queue units of the log up to here were on the disk as well. Recovery begins here.
`units`: the number of units in all queues at that time, -1 if unknown; fewer mean that queues were lost.
`begins`: the start of the log, -1 if unknown; a later start means that its first files were lost.

While a LibraMQ broker runs, the second line of its `abort` file is the point's mark. Apache's brokers write
their own `abort` at every start. So if the store was not closed and the mark is missing, another broker wrote
last, and the point is void.

Upstream: store/StoreCheckpoint.java.
"""

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from libramq.clock import WallMs
from libramq.filesystem import FileSystem, opened
from libramq.store.config import PAGE_BYTES

_FORMAT = struct.Struct(">qqqqq")
_SAFETY_MS: Final = 3_000  # StoreCheckpoint.getMinTimestamp: a margin for inexact clocks and file times.


class Checkpoint(NamedTuple):
    """The content of Apache's `checkpoint`."""

    commit_log_timestamp_ms: WallMs = WallMs(0)
    consume_queue_timestamp_ms: WallMs = WallMs(0)
    index_timestamp_ms: WallMs = WallMs(0)
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def safe_timestamp_ms(self) -> WallMs:
        """Return the store time up to which messages and their consume queue units are on the disk."""
        return max(WallMs(0), min(self.commit_log_timestamp_ms, self.consume_queue_timestamp_ms) - _SAFETY_MS)


def read_checkpoint(filesystem: FileSystem, path: Path) -> Checkpoint:
    """Read the file; return an empty checkpoint if it is missing or cut short."""
    if not filesystem.exists(path):
        return Checkpoint()
    with opened(filesystem, path) as file:
        data = filesystem.pread(file, _FORMAT.size, 0)
    return Checkpoint(*_FORMAT.unpack(data)) if len(data) == _FORMAT.size else Checkpoint()


def write_checkpoint(
    filesystem: FileSystem, path: Path, checkpoint: Checkpoint, *, sync: bool = False
) -> None:
    """Write the file. Losing it only prolongs recovery, so only the last write at closing is synced."""
    with opened(filesystem, path, write=True, create=True) as file:
        if filesystem.file_size(file) < PAGE_BYTES:
            filesystem.truncate(file, PAGE_BYTES)
        filesystem.pwrite(file, _FORMAT.pack(*checkpoint), 0)
        if sync:
            filesystem.fsync(file)


FILE_NAME: Final = "libra.checkpoint"
UNKNOWN: Final = -1
_MAGIC: Final = b"LibraCP1"
_MARK: Final = "LibraMQ "
_SLOT = struct.Struct(">8sqqqqqq")
_SLOT_BYTES: Final = _SLOT.size + 4
#: Versions without `begins` write only the part before it, so the second crc no longer matches.
_ADDED = struct.Struct(">qI")


class RecoveryPoint(NamedTuple):
    """The content of `libra.checkpoint`, without magic, number and checksums."""

    generation: int = 0
    opened_ms: int = 0
    flushed: int = 0
    dispatched: int = 0
    units: int = UNKNOWN
    begins: int = UNKNOWN

    @property
    def mark(self) -> str:
        """Return the line of the abort file that belongs to this point."""
        return f"{_MARK}{self.generation} {self.opened_ms}"

    def next_generation(self, opened_ms: int, flushed: int = 0, dispatched: int = 0) -> "RecoveryPoint":
        """Return the point for the next opening; all other fields are reset."""
        return RecoveryPoint(self.generation + 1, opened_ms, flushed, dispatched)

    def is_of(self, abort_text: str) -> bool:
        """Return whether the broker that left this abort file also wrote this point."""
        return abort_text.splitlines()[1:2] == [self.mark]


def deletions_end(point: RecoveryPoint | None, abort_text: str | None) -> int | None:
    """Return the physical offset up to which noted deletions are valid; None: all of them are.

    Another broker that was not closed may have cut the log and appended below the notes' offsets.
    """
    if abort_text is None:
        return None
    if point is not None:
        return None if point.is_of(abort_text) else point.flushed
    is_ours = any(line.startswith(_MARK) for line in abort_text.splitlines()[1:2])
    return None if is_ours else 0


def lost_before(point: RecoveryPoint, log_start: int, known_end: int) -> int:
    """Return how many bytes are missing before the log's first file, except files that this broker deleted.

    known_end: the log was on the disk up to here. If it lies after the point, another broker wrote to the log
    and may have deleted files as well, so the result is 0.
    """
    if point.begins == UNKNOWN or known_end > point.flushed:
        return 0
    return max(0, log_start - point.begins)


class RecoveryPointFile:
    """The `libra.checkpoint` file, open as long as the store is."""

    def __init__(self, filesystem: FileSystem, root: Path) -> None:
        self._filesystem = filesystem
        self.path = root / FILE_NAME
        self._file: int | None = None
        self._number = 0

    def load(self) -> RecoveryPoint | None:
        """Return the newest complete point; None if there is none."""
        if not self._filesystem.exists(self.path):
            return None
        with opened(self._filesystem, self.path) as file:
            size = _SLOT_BYTES + _ADDED.size
            slots = [self._filesystem.pread(file, size, at) for at in (0, PAGE_BYTES)]
        found = max(filter(None, map(_decode, slots)), default=None)
        if found is None:
            return None
        self._number = found[0]
        return found[1]

    def save(self, point: RecoveryPoint, *, sync: bool = False) -> None:
        """Write a point over the older of the two slots; raises OSError if the disk refuses."""
        if self._file is None:
            is_new = not self._filesystem.exists(self.path)
            self._file = self._filesystem.open(self.path, write=True, create=True)
            if is_new:
                self._filesystem.sync_directory(self.path.parent)
        number = self._number + 1
        self._filesystem.pwrite(self._file, _encode(number, point), number % 2 * PAGE_BYTES)
        self._number = number
        if sync:
            self._filesystem.fsync(self._file)

    def close(self) -> None:
        """Close the descriptor."""
        if self._file is not None:
            self._filesystem.close(self._file)
            self._file = None


def _encode(number: int, point: RecoveryPoint) -> bytes:
    data = _SLOT.pack(_MAGIC, number, *point[:-1])
    data += zlib.crc32(data).to_bytes(4)
    return data + _ADDED.pack(
        point.begins, zlib.crc32(point.begins.to_bytes(8, signed=True), zlib.crc32(data))
    )


def _decode(data: bytes) -> tuple[int, RecoveryPoint] | None:
    slot, added = data[:_SLOT_BYTES], data[_SLOT_BYTES:]
    if len(slot) != _SLOT_BYTES or zlib.crc32(slot[:-4]) != int.from_bytes(slot[-4:]):
        return None
    magic, number, *fields = _SLOT.unpack(slot[:-4])
    if magic != _MAGIC:
        return None
    point = RecoveryPoint(*fields)
    if len(added) == _ADDED.size:
        begins, crc = _ADDED.unpack(added)
        if crc == zlib.crc32(data[:-4]):
            point = point._replace(begins=begins)
    return number, point
