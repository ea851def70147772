"""The timer checkpoint: from where on POP's journal is read at the next start, by either broker.

    last read time (8) | timer log flushed (8) | timer queue offset (8) | master's timer queue offset (8)
    state version (8) | timestamp (8) | counter (8)                                 Apache's: 56 bytes
    "LIBRAPOP" | a copy of Apache's 56 bytes | our own offset in the timer queue (8)
    zeroes up to 4096

Apache's broker writes its own part only. So if the copy differs, it has run since we wrote the file, and
what it moved to the revive topic, or holds in its timer wheel, is read as well (`loading`).
Upstream: store/timer/TimerCheckpoint.java, TimerMessageStore.recover.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from libramq.filesystem import FileSystem
from libramq.store.config import PAGE_BYTES

_APACHE: Final = struct.Struct(">qqqqqqq")
_OURS: Final = struct.Struct(f">8s{_APACHE.size}sq")
_MAGIC: Final = b"LIBRAPOP"


class TimerCheckpoint(NamedTuple):
    """The content of the file. place: None where Apache's broker wrote it last.

    read_ms: messages due before that are in their own topics. queue_offset: messages before that are in
    Apache's timer wheel, if they are not due.
    """

    read_ms: int = 0
    queue_offset: int = 0
    place: int | None = None


def read_timer_checkpoint(filesystem: FileSystem, path: Path) -> TimerCheckpoint | None:
    """Read the file; None if there is none."""
    if not filesystem.exists(path):
        return None
    file = filesystem.open(path)
    try:
        data = filesystem.pread(file, _APACHE.size + _OURS.size, 0)
    finally:
        filesystem.close(file)
    data = data.ljust(_APACHE.size + _OURS.size, b"\0")
    read_ms, _, queue_offset, _, _, _, _ = _APACHE.unpack_from(data)
    magic, copy, place = _OURS.unpack_from(data, _APACHE.size)
    is_ours = magic == _MAGIC and copy == data[: _APACHE.size]
    return TimerCheckpoint(read_ms, queue_offset, place if is_ours else None)


def write_timer_checkpoint(
    filesystem: FileSystem, path: Path, *, place: int, read_ms: int, keeps_apache: bool
) -> None:
    """Write the file, and wait for the disk.

    keeps_apache: messages wait in Apache's timer wheel that only its broker delivers, so its part stays.
    """
    if not filesystem.exists(path):
        filesystem.makedirs(path.parent)
    file = filesystem.open(path, write=True, create=True)
    try:
        if filesystem.file_size(file) < PAGE_BYTES:
            filesystem.truncate(file, PAGE_BYTES)
        apache = _APACHE.pack(read_ms, 0, place, place, 0, 0, 0)
        if keeps_apache:
            apache = filesystem.pread(file, _APACHE.size, 0)
        filesystem.pwrite(file, apache + _OURS.pack(_MAGIC, apache, place), 0)
        filesystem.fsync(file)
    finally:
        filesystem.close(file)
