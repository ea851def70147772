"""The inode: one file of a memory disk, as processes see it and as the platter has it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import WallMs

#: The unit that disks write as a whole.
SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class Inode:
    """One file: as processes see it, and as the platter has it."""

    cached: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    #: Since the last fsync: (offset, bytes) written, or (size, None) set.
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    modified_ms: WallMs = WallMs(0)

    def write(self, offset: int, data: bytes) -> None:
        _write(self.cached, offset, data)
        self.changes.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.cached, size)
        self.changes.append((size, None))

    def copy(self) -> "Inode":
        """Return a file with the same content, which is durable."""
        return Inode(bytearray(self.cached), bytearray(self.cached), modified_ms=self.modified_ms)

    def sync(self) -> None:
        for offset, data in self.changes:
            if data is None:
                _resize(self.synced, offset)
            else:
                _write(self.synced, offset, data)
        self.changes.clear()

    def cut(self, randomness: random.Random, kept_share: float) -> None:
        """Apply a power cut: sizes in order up to some change, sectors by chance."""
        sizes_kept = randomness.randint(0, len(self.changes))
        for number, (offset, data) in enumerate(self.changes):
            if data is None:
                if number < sizes_kept:
                    _resize(self.synced, offset)
                continue
            if number < sizes_kept and len(self.synced) < offset + len(data):
                _resize(self.synced, offset + len(data))
            start = 0
            while start < len(data):
                end = start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES
                if randomness.random() < kept_share:
                    part = data[start:end][: max(0, len(self.synced) - offset - start)]
                    self.synced[offset + start : offset + start + len(part)] = part
                start = end
        self.changes.clear()
        self.cached = bytearray(self.synced)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _write(data: bytearray, offset: int, new: Iterable[int]) -> None:
    new = bytes(new)
    if len(data) < offset:
        _resize(data, offset)
    data[offset : offset + len(new)] = new
