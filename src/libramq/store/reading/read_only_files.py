"""Read-only files: a store's files of equal size, which another process may own and remove meanwhile.

Nothing is locked, created, repaired or removed. The first file determines the file size, so the store's
configuration is not needed. The last file may be shorter, because a copy may be incomplete.

The store's broker may remove the oldest files meanwhile. A read of a removed file raises FileRemoved once;
afterwards the sequence begins after that file.
"""

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.store.config import UNIT_BYTES
from libramq.store.log.segments import NAME_DIGITS
from libramq.store.queues.consume_queue import UNIT

#: Ours: reading proceeds in order, so few files are read again.
OPEN_MAX: Final = 16


class FileRemoved(StoreCorrupt):
    """A file was removed since the directory was listed; the sequence now begins after it."""


class ReadOnlyFiles:
    """The files of a directory, opened on first read."""

    def __init__(self, filesystem: FileSystem, directory: Path, *, may_lack: bool = False) -> None:
        """may_lack: missing, empty or short files read as zeroes instead of being an error."""
        self.starts: list[int] = []
        self.file_size = 0
        self.end = 0
        self._filesystem = filesystem
        self._directory = directory
        self._open: dict[int, int] = {}
        self._may_lack = may_lack
        names = filesystem.listdir(directory)
        if may_lack:
            self._find(names)
            return
        for name in names:
            if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal():
                try:
                    self._add(int(name), filesystem.size(directory / name), is_last=name == names[-1])
                except FileNotFoundError:  # Files before it were removed as well.
                    self.starts.clear()

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte."""
        return self.starts[0] if self.starts else self.end

    @property
    def is_short(self) -> bool:
        """Return whether the last file is too short."""
        return bool(self.file_size and self.end % self.file_size)

    def start_of(self, offset: int) -> int:
        """Return the start of the file that holds this byte."""
        return offset - offset % self.file_size

    def has(self, offset: int) -> bool:
        """Return whether a file holds this byte."""
        return self.min_offset <= offset < self.end

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one file; fewer at its end."""
        start = self.start_of(offset)
        if self._may_lack and start not in self.starts:
            return bytes(size)
        file = self._open.get(start)
        if file is None:
            path = self._directory / f"{start:0{NAME_DIGITS}d}"
            try:
                file = self._filesystem.open(path)
            except FileNotFoundError:
                self.starts = [each for each in self.starts if each > start]
                raise FileRemoved(f"{path} was removed since the store was looked at") from None
            if len(self._open) >= OPEN_MAX:
                self._filesystem.close(self._open.pop(next(iter(self._open))))
            self._open[start] = file
        data = self._filesystem.pread(file, size, offset - start)
        return data.ljust(size, b"\0") if self._may_lack and start != self.starts[-1] else data

    def read_across(self, offset: int, size: int) -> bytes:
        """Return bytes from as many files as necessary."""
        parts = []
        while size > 0 and self.has(offset):
            part = self.read(offset, min(size, self.start_of(offset) + self.file_size - offset))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the descriptors."""
        while self._open:
            self._filesystem.close(self._open.popitem()[1])

    def _find(self, names: list[str]) -> None:
        names = [name for name in names if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()]
        sizes = {int(name): self._filesystem.size(self._directory / name) for name in names}
        self.starts = [start for start, size in sorted(sizes.items()) if size]
        if self.starts:
            self.file_size = max(sizes.values())
            self.end = self.starts[-1] + sizes[self.starts[-1]]

    def _add(self, start: int, size: int, *, is_last: bool) -> None:
        if not size:
            if is_last:  # Just created by a running broker.
                return
            raise StoreCorrupt(f"{self._directory}: file {start} is empty, and others follow it")
        if not self.starts:
            self.file_size = size
        if start != (self.starts[-1] + self.file_size if self.starts else start) or start % self.file_size:
            raise StoreCorrupt(
                f"{self._directory}: file {start} does not follow the one before; one is missing"
            )
        if self.end != start and self.starts:
            raise StoreCorrupt(f"{self._directory}: the file before {start} is cut short")
        self.starts.append(start)
        self.end = start + size


def end_of_units(files: ReadOnlyFiles, unit_bytes: int = UNIT_BYTES) -> int:
    """Return the place after the last unit of a queue's files, where zeroes follow."""
    if not files.starts:
        return 0

    def is_empty(place: int) -> bool:
        physical, size, _ = UNIT.unpack(files.read(place * unit_bytes, UNIT_BYTES))
        return bool(physical < 0 or size <= 0)

    return bisect_left(range(files.end // unit_bytes), True, files.starts[-1] // unit_bytes, key=is_empty)


def queue_directories(filesystem: FileSystem, queues: Path) -> Iterator[tuple[tuple[str, int], Path]]:
    """Yield the queues in a directory, and the directory of each queue's files."""
    for topic in filesystem.listdir(queues):
        if filesystem.is_directory(queues / topic):
            for name in filesystem.listdir(queues / topic):
                if name.isascii() and name.isdecimal() and str(int(name)) == name:
                    yield (topic, int(name)), queues / topic / name
