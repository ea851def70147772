"""The segments: a contiguous sequence of bytes in files of equal size; names, creates, removes (the newest
first) and reads them, without waiting for the disk.

    00000000000000000000   00000000000000001000   00000000000000002000        (file size 1000)

A file is named after the offset of its first byte and has its full size from the start, as a hole. Old files
are removed from the front. The commit log is one such sequence, as is each consume queue.

Upstream: store/MappedFileQueue.java. There is no mapping here: see docs/design/store.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem, Ranges, opened, safe_child
from libramq.store.open_files import OpenFiles

NAME_DIGITS: Final = 20
#: Ours: at most this many missing files are recreated as holes; a larger gap means that a file name is wrong.
FILLED_FILES_MAX: Final = 1_000


class FileRange(NamedTuple):
    """A range of one file that a thread may read, to bring it into the page cache."""

    path: Path
    offset: int
    size: int


class Preparation(Protocol):
    """Work that a thread does before a read is repeated."""

    def prepare(self) -> None:
        """Do the work; may be called in a thread."""


#: What a read waits for: a range of a file that is not in memory, or work.
Cold = FileRange | Preparation


class ColdRead(Exception):
    """Data that a thread must read first: it is not in memory, and the caller may not wait for the disk."""

    def __init__(self, stretch: Cold) -> None:
        super().__init__(
            f"{stretch.path} is not in memory at {stretch.offset}"
            if isinstance(stretch, FileRange)
            else "a batch is not unwrapped yet"
        )
        self.stretch = stretch


class Segments:
    """Files of one size that form one sequence of bytes."""

    def __init__(self, filesystem: FileSystem, files: OpenFiles, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        self._filesystem = filesystem
        self._files = files
        self._paths: dict[int, Path] = {}
        self._has_new_names = False
        self._resized: dict[Path, None] = {}
        #: Whether a file was too short when the files were loaded.
        self.was_short = False

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """Return where the last file ends."""
        return self.starts[-1] + self.file_size if self.starts else 0

    def load(
        self, *, clean: bool, is_gone: Callable[[int], bool] = lambda _: False, unit_bytes: int = 0
    ) -> None:
        """Find the files; raises StoreCorrupt if they cannot be contiguous.

        is_gone: whether the data before an offset, a file's end, is no longer needed. Then the next file may
        be missing: a crash may come after its removal and before that of older files. unit_bytes: the size of
        rebuildable units; if set, holes take the place of lost files and bytes.
        """
        starts: list[int] = []
        found = self._filesystem.listdir(self.directory)
        names = [name for name in found if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()]
        for name in names:
            start = int(name)
            path = safe_child(self.directory, name)
            size = self._filesystem.size(path)
            if size == 0 and name == names[-1]:  # The process was killed between creating and sizing it.
                self._filesystem.unlink(path)
                continue
            if size < self.file_size and (unit_bytes or not clean):  # Killed while the size was set.
                self._give_size(path, kept=size - size % unit_bytes if unit_bytes else size)
                self.was_short = True
            elif size != self.file_size:
                raise StoreCorrupt(
                    f"{path} has {size} bytes instead of {self.file_size}; was its configured size changed?"
                )
            follows = not starts or start == starts[-1] + self.file_size
            if not follows and is_gone(starts[-1] + self.file_size):
                while starts:
                    self._remove(starts.pop())
            elif unit_bytes and starts and self._fill(starts, start):
                pass
            elif start % self.file_size or not follows:
                raise StoreCorrupt(f"{path} does not follow the file before it; one is missing")
            starts.append(start)
        self.starts = starts
        # A killed process may have created files without syncing their names; `_fill` creates files as well.
        self._has_new_names = bool(starts) and (not clean or bool(unit_bytes and len(starts) > len(names)))

    def _fill(self, starts: list[int], until: int) -> bool:
        """Recreate missing files before `until` as holes; return False if the gap is not a plausible one."""
        missing = range(starts[-1] + self.file_size, until, self.file_size)
        if until % self.file_size or len(missing) > FILLED_FILES_MAX:
            return False
        for start in missing:
            self._give_size(self.path(start))
            starts.append(start)
        return True

    def begin_at(self, start: int) -> None:
        """Add files before the first, from back to front, until one begins at `start`."""
        while self.starts[0] > start:
            before = self.starts[0] - self.file_size
            self._give_size(self.path(before))
            self.starts.insert(0, before)
        self._has_new_names = True

    def remove_first(self) -> None:
        """Remove the first file."""
        self._remove(self.starts.pop(0))

    def write_whole(self, offset: int, data: bytes, unit_bytes: int) -> None:
        """Write to recreated files and wait for the disk; the first unit of each file is written last.

        An incompletely written file thus begins with a hole and still counts as lost.
        """
        while data:
            start = self.start_of(offset)
            part, data = data[: start + self.file_size - offset], data[start + self.file_size - offset :]
            file = self._files.get(self.path(start))
            self._filesystem.pwrite(file, part[unit_bytes:], offset - start + unit_bytes)
            self._filesystem.fsync(file)
            self._filesystem.pwrite(file, part[:unit_bytes], offset - start)
            self._filesystem.fsync(file)
            offset += len(part)

    def path(self, start: int) -> Path:
        """Return the file that begins at an offset."""
        path = self._paths.get(start)
        if path is None:
            path = self._paths[start] = safe_child(self.directory, f"{start:020d}")
        return path

    def paths_between(self, start: int, end: int) -> list[Path]:
        """Return the files with any byte from `start` up to `end`."""
        first = bisect_right(self.starts, start - self.file_size)
        return [self.path(each) for each in self.starts[first : bisect_left(self.starts, end)]]

    def take_new_directories(self) -> list[Path]:
        """Return the directories with names created since the last call, which need an fsync."""
        if not self._has_new_names:
            return []
        self._has_new_names = False
        return [self.directory, self.directory.parent, self.directory.parent.parent]

    def put_back(self, resized: Iterable[Path]) -> None:
        """Return directories and resized files to the pending ones, because their flush failed."""
        self._has_new_names = bool(self.starts)
        self._resized.update(dict.fromkeys(resized))

    def start_of(self, offset: int) -> int:
        """Return the start of the file that holds this byte."""
        return offset - offset % self.file_size

    def has(self, offset: int) -> bool:
        """Return whether a file holds this byte."""
        return self.min_offset <= offset < self.end

    def create(self, start: int) -> None:
        """Add the file that begins at `start`, which follows the last one."""
        assert not self.starts or start == self.end, (start, self.starts)
        if not self.starts:
            self._filesystem.makedirs(self.directory)
        self._give_size(self.path(start))
        self._has_new_names = True
        self.starts.append(start)

    def ensure(self, offset: int) -> None:
        """Add files until one holds this byte."""
        if not self.starts:
            self.create(self.start_of(offset))
        while offset >= self.end:
            self.create(self.end)

    def write(self, offset: int, data: bytes, *, begins: bool = False) -> None:
        """Write within one file. begins: whether to start writeback at once (`FileSystem.begin_writing`)."""
        start = offset - offset % self.file_size
        assert offset + len(data) <= start + self.file_size
        file = self._files.get(self.path(start))
        self._filesystem.pwrite(file, data, offset - start)
        if begins:
            self._filesystem.begin_writing(file, len(data), offset - start)

    def read(self, offset: int, size: int) -> bytes:
        """Read within one file, waiting for the disk if necessary; raises ColdRead if it may not wait."""
        if not self._files.may_wait:
            data = self.read_nowait(offset, size)
            if isinstance(data, FileRange):
                raise ColdRead(data)
            return data
        start = self.start_of(offset)
        return self._filesystem.pread(self._files.get(self.path(start)), size, offset - start)

    def read_nowait(self, offset: int, size: int) -> bytes | FileRange:
        """Read within one file from memory, or return the range that a thread must warm first."""
        start = self.start_of(offset)
        data = self._filesystem.pread_nowait(self._files.get(self.path(start)), size, offset - start)
        return self.file_range(offset, size) if data is None else data

    def read_ranges_nowait(self, ranges: Ranges) -> bytes | bytearray | None:
        """Read ranges of one file from memory, joined; None if the disk would have to be read."""
        start = self.start_of(ranges[0][0])
        in_file = [(offset - start, size) for offset, size in ranges]
        return self._filesystem.pread_ranges_nowait(self._files.get(self.path(start)), in_file)

    def file_range(self, offset: int, size: int) -> FileRange:
        """Return the range for use in a thread."""
        start = self.start_of(offset)
        return FileRange(self.path(start), offset - start, size)

    def zero_after(self, end: int) -> None:
        """Turn everything from `end` on into a hole, and remove later files."""
        while self.starts and self.starts[-1] > end:
            self._remove(self.starts.pop())
        if self.starts and end < self.end:
            path = self.path(self.starts[-1])
            file = self._files.get(path)
            self._filesystem.truncate(file, max(end, self.starts[-1]) - self.starts[-1])
            self._filesystem.truncate(file, self.file_size)
            self._resized[path] = None

    def take_resized(self) -> list[Path]:
        """Return the files that `zero_after` shortened since the last call.

        A power cut may leave them short until they are flushed, and after a clean stop no file may be short.
        """
        paths = [path for path in self._resized if int(path.name) in self.starts]
        self._resized.clear()
        return paths

    def drop_before(self, offset: int) -> list[Path]:
        """Forget the files entirely before `offset`, but never the last; return them for removal."""
        dropped = []
        while len(self.starts) > 1 and self.starts[0] + self.file_size <= offset:
            start = self.starts.pop(0)
            path = self.path(start)
            self._files.forget(path)
            self._paths.pop(start, None)
            dropped.append(path)
        return dropped

    def remove_all(self) -> None:
        """Remove every file, the newest first so that a kill leaves them contiguous; then the directory."""
        while self.starts:
            self._remove(self.starts.pop())
        self.forget_all()
        self._filesystem.remove_tree(self.directory)

    def forget_all(self) -> None:
        """Forget every file; the caller removes them."""
        while self.starts:
            self._files.forget(self.path(self.starts.pop()))
        self._paths.clear()
        self._resized.clear()
        self._has_new_names = False

    def _give_size(self, path: Path, kept: int = 0) -> None:
        with opened(self._filesystem, path, write=True, create=True) as file:
            self._filesystem.truncate(file, kept)
            self._filesystem.truncate(file, self.file_size)

    def _remove(self, start: int) -> None:
        path = self.path(start)
        self._files.forget(path)
        self._paths.pop(start, None)
        self._filesystem.unlink(path)
