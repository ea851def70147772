"""The checkpoint: up to which message the files are known to be on the disk.

    commit log (8) | consume queues (8) | index (8) | master flushed offset (8) | confirm offset (8)
    zeroes up to 4096

The first three are store times of messages, not clock times: after an abnormal end, recovery begins at the
newest file that starts before all of them.

Upstream: store/StoreCheckpoint.java.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from libramq.clock import WallMs
from libramq.filesystem import FileSystem
from libramq.store.config import PAGE_BYTES

_FORMAT = struct.Struct(">qqqqq")
_SAFETY_MS: Final = 3_000  # StoreCheckpoint.getMinTimestamp: clocks and files are not that exact.


class Checkpoint(NamedTuple):
    """The content of the file."""

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
    """Read the file; an empty checkpoint if it is missing or cut short."""
    if not filesystem.exists(path):
        return Checkpoint()
    file = filesystem.open(path)
    try:
        data = filesystem.pread(file, _FORMAT.size, 0)
    finally:
        filesystem.close(file)
    return Checkpoint(*_FORMAT.unpack(data)) if len(data) == _FORMAT.size else Checkpoint()


def write_checkpoint(
    filesystem: FileSystem, path: Path, checkpoint: Checkpoint, *, sync: bool = False
) -> None:
    """Write the file. Losing it only prolongs recovery, so it is flushed only at the end."""
    file = filesystem.open(path, write=True, create=True)
    try:
        if filesystem.file_size(file) < PAGE_BYTES:
            filesystem.truncate(file, PAGE_BYTES)
        filesystem.pwrite(file, _FORMAT.pack(*checkpoint), 0)
        if sync:
            filesystem.fsync(file)
    finally:
        filesystem.close(file)
