"""The memory disk: a file system with a write-back cache and the faults of real disks.

    write ─► cache ─► fsync ─► platter
                                └── power cut: each unsynced sector is kept, or lost

A killed process loses nothing it wrote; a machine that loses power loses any part of its unsynced data.
Changes in one directory reach the platter in order, up to some point. A directory is a name in its parent,
just like a file: if that name was not synced, everything in the directory is lost, even synced files.
"""

import errno
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from libramq.clock import WallMs
from libramq.filesystem import DiskUsage, Ranges, backup_of, joined_ranges, make_directory, nearby, span
from libramq.testing.machine.process import PowerCut
from libramq.testing.machine.virtual_time import VirtualTime

#: The unit that disks write atomically.
SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class Inode:
    """One file, as processes see it and as it is on the platter."""

    cached: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    #: Changes since the last fsync: (offset, bytes) for a write, (size, None) for a truncation.
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    modified_ms: WallMs = WallMs(0)

    def write(self, offset: int, data: bytes) -> None:
        _write(self.cached, offset, data)
        self.changes.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.cached, size)
        self.changes.append((size, None))

    def copy(self) -> "Inode":
        """Return a file with the same content, all durable."""
        return Inode(bytearray(self.cached), bytearray(self.cached), modified_ms=self.modified_ms)

    def sync(self) -> None:
        for offset, data in self.changes:
            if data is None:
                _resize(self.synced, offset)
            else:
                _write(self.synced, offset, data)
        self.changes.clear()

    def cut(self, randomness: random.Random, kept_share: float) -> None:
        """Apply a power cut: keep size changes in order up to a random one, and random sectors."""
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


#: The size that the disk reports; files may grow beyond it.
DISK_BYTES: Final = 1 << 40
#: The inode of every directory.
_DIRECTORY: Final = Inode()


class MemoryDisk:
    """A `FileSystem` in memory."""

    def __init__(self, time: VirtualTime, randomness: random.Random) -> None:
        self._time = time
        self._random = randomness
        self._files: dict[str, Inode] = {}
        self._platter: dict[str, Inode] = {}
        #: By directory: unsynced name changes in order, as (name, inode or None).
        self._renames: dict[str, list[tuple[str, Inode | None]]] = {}
        #: Unsynced renames of directories in order, as (old, new).
        self._moves: list[tuple[str, str]] = []
        self._directories: set[str] = {"/"}
        self._open: dict[int, Inode] = {}
        self._locks: dict[int, str] = {}
        self._next_file = 3
        self._is_off = False
        self._is_observed = False
        self._calls_left: int | None = None
        #: Probabilities that a call fails: writes with ENOSPC, fsyncs with EIO.
        self.write_error_chance = 0.0
        self.sync_error_chance = 0.0
        self.percent_used = 0.0  # The usage that the disk reports.
        #: The probability that a file's bytes are not in the page cache.
        self.cold_chance = 0.0
        self.zeroed_bytes = 0  # See FileSystem.

    def on_platter(self, path: Path) -> bytes | None:
        """Return a file's content as it survives any power cut; None if its name is not durable yet."""
        inode = self._platter.get(str(path))
        return bytes(inode.synced) if inode is not None and self._is_reachable(str(path)) else None

    def copy(self) -> "MemoryDisk":
        """Return a faultless disk with the same files, as processes see them, all durable."""
        other = MemoryDisk(self._time, random.Random(0))
        other._files = {name: inode.copy() for name, inode in self._files.items()}
        other._directories = set(self._directories)
        other._platter = dict(other._files) | dict.fromkeys(other._directories, _DIRECTORY)
        return other

    # Faults.

    def cut_power_after(self, calls: int) -> None:
        """Raise PowerCut after this many more calls, in the middle of an operation."""
        self._calls_left = calls

    def process_died(self) -> None:
        """Handle the death of the process: descriptors and locks are gone, the cache stays."""
        self._open.clear()
        self._locks.clear()
        self._calls_left = None
        self._is_off = False

    def power_cut(self) -> None:
        """Handle a power cut: any part of the unsynced data is lost."""
        self.process_died()
        kept_share = self._random.choice((0.0, 0.5, 1.0))
        if self._moves:
            self._apply_moves(self._random.randint(0, len(self._moves)))
            for old, _ in self._moves:  # These are undone, with all later changes in their directories.
                for directory in [each for each in self._renames if f"{each}/".startswith(old)]:
                    del self._renames[directory]
            self._moves.clear()
        for directory in sorted(self._renames):
            changes = self._renames[directory]
            for path, inode in changes[: self._random.randint(0, len(changes))]:
                _name(self._platter, path, inode)
        self._renames.clear()
        self._platter = {name: inode for name, inode in self._platter.items() if self._is_reachable(name)}
        self._directories = {"/"} | {name for name, inode in self._platter.items() if inode is _DIRECTORY}
        self._files = {name: inode for name, inode in self._platter.items() if inode is not _DIRECTORY}
        for path in sorted(self._files):
            self._files[path].cut(self._random, kept_share)

    def flip_bit(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, also on the platter if its byte is synced."""
        inode = self._existing(path)
        for data in (inode.cached, inode.synced):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def zero(self, path: Path, offset: int, size: int) -> None:
        """Fill a range of a file with zeroes, also on the platter."""
        inode = self._existing(path)
        for data in (inode.cached, inode.synced):
            size_there = max(0, min(size, len(data) - offset))
            data[offset : offset + size_there] = bytes(size_there)

    def paths(self, start: str) -> list[Path]:
        """Return the files whose paths begin with `start`."""
        return [Path(name) for name in sorted(self._files) if name.startswith(start)]

    def heal(self) -> None:
        """Stop all faults."""
        self.write_error_chance = self.sync_error_chance = self.cold_chance = 0.0
        self._calls_left = None

    # FileSystem.

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a descriptor."""
        self._called()
        name = str(path)
        inode = self._files.get(name)
        if inode is None:
            if not create or _parent(name) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            inode = Inode(modified_ms=self._time.wall_ms())
            self._set(name, inode)
        self._next_file += 1
        self._open[self._next_file] = inode
        return self._next_file

    def close(self, file: int) -> None:
        """Close the descriptor, which releases its lock."""
        self._open.pop(file, None)
        self._locks.pop(file, None)

    def pread(self, file: int, size: int, offset: int) -> bytes:
        """Read bytes as processes see them."""
        self._called()
        return bytes(self._inode(file).cached[offset : offset + size])

    def pread_nowait(self, file: int, size: int, offset: int) -> bytes | None:
        """Read as in `pread`; None at random."""
        if self.cold_chance and self._random.random() < self.cold_chance:
            return None
        return self.pread(file, size, offset)

    def pread_ranges_nowait(self, file: int, ranges: Ranges) -> bytes | None:
        """Read all ranges or none, as in `pread_nowait`."""
        found = []
        for near in nearby(ranges):
            start, size = span(near)
            data = self.pread_nowait(file, size, start)
            if data is None:
                return None
            found.append(joined_ranges(data, start, near))
        return b"".join(found)

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        """Write the data, or only part of it if the disk is full."""
        self._called()
        inode = self._inode(file)
        if self.write_error_chance and self._random.random() < self.write_error_chance:
            inode.write(offset, bytes(data[: self._random.randint(0, len(data))]))
            raise OSError(errno.ENOSPC, "no space left on device")
        inode.write(offset, bytes(data))
        inode.modified_ms = self._time.wall_ms()

    def begin_writing(self, file: int, size: int, offset: int) -> None:
        """Do nothing: a power cut keeps a random part of unflushed data anyway."""

    def fsync(self, file: int) -> None:
        """Flush to the platter."""
        self._called()
        self._may_fail_to_sync()
        self._inode(file).sync()

    def truncate(self, file: int, size: int) -> None:
        """Set the file's size."""
        self._called()
        self._inode(file).resize(size)

    def file_size(self, file: int) -> int:
        """Return the size of an open file."""
        return len(self._inode(file).cached)

    def size(self, path: Path) -> int:
        """Return the size of a file."""
        return len(self._existing(path).cached)

    def modified_ms(self, path: Path) -> WallMs:
        """Return when the file was last written."""
        return self._existing(path).modified_ms

    def used_percent(self, path: Path) -> float:
        """Return the usage that was set."""
        return self.percent_used

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists."""
        return str(path) in self._files or str(path) in self._directories

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Return the same identity for every directory: simulated ones are never replaced."""
        return (0, 0)

    def is_directory(self, path: Path) -> bool:
        """Return whether the path is a directory."""
        return str(path) in self._directories

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        start = str(path) + "/"
        names = {
            name[len(start) :].split("/", 1)[0]
            for names in (self._files, self._directories)
            for name in names
            if name.startswith(start)
        }
        return sorted(names)

    def makedirs(self, path: Path) -> None:
        """Create the directory and its parents."""
        name = str(path)
        if name not in self._directories:
            self.makedirs(path.parent)
            self._directories.add(name)
            self._change(name, _DIRECTORY)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._called()
        if str(path) in self._files:
            self._set(str(path), None)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, file by file in an arbitrary, fixed order."""
        start = str(path) + "/"
        inside = [name for name in self._files if name.startswith(start) or name == str(path)]
        for name in sorted(inside, key=lambda name: zlib.crc32(name.encode())):
            self._called()
            self._set(name, None)
        removed = {name for name in self._directories if name.startswith(start) or name == str(path)}
        self._directories -= removed
        for name in sorted(removed, reverse=True):
            self._change(name, None)

    def disk_space(self, path: Path) -> DiskUsage:
        """Return the disk's usage, either real or as set."""
        self._called()
        used_bytes = sum(len(inode.cached) for inode in self._files.values())
        if self.percent_used:
            used_bytes = int(DISK_BYTES * self.percent_used / 100)
        return DiskUsage(used_bytes, max(0, DISK_BYTES - used_bytes))

    @property
    def flushes_at_once(self) -> int:
        """Return 1, so that a seed has one history."""
        return 1

    @property
    def open_max(self) -> int:
        """Return more than any process needs."""
        return sys.maxsize

    def private(self) -> "MemoryDisk":
        """Return this disk, which has no file modes."""
        return self

    def closes_if_short(self, close_one: Callable[[], bool]) -> None:
        """Do nothing: this disk never runs out of descriptors."""

    def sync_directory(self, path: Path) -> None:
        """Flush the directory's names to the platter."""
        self._called()
        self._may_fail_to_sync()
        if any(str(path) in (str(Path(name).parent) for name in move) for move in self._moves) or any(
            f"{path}/".startswith(old) for old, _ in self._moves
        ):  # Names in a recreated directory come after the move of the old one.
            self._apply_moves(len(self._moves))
        for name, inode in self._renames.pop(str(path), ()):
            _name(self._platter, name, inode)

    def lock(self, path: Path) -> int | None:
        """Lock a file until its descriptor is closed."""
        if str(path) in self._locks.values():
            return None
        file = self.open(path, write=True, create=True)
        self._locks[file] = str(path)
        return file

    def is_locked(self, path: Path) -> bool:
        """Return whether a process holds the lock."""
        return str(path) in self._locks.values()

    def read_text(self, path: Path) -> str | None:
        """Return the content of a small file."""
        self._called()
        inode = self._files.get(str(path))
        return inode.cached.decode(errors="replace") if inode is not None else None

    def rename(self, path: Path, to: Path) -> None:
        """Rename a directory with its files; durable once one of the two parents is synced."""
        self._called()
        old, new = f"{path}/", f"{to}/"
        for directory in [each for each in self._renames if f"{each}/".startswith(old)]:
            for name, inode in self._renames.pop(directory):
                _name(self._platter, name, inode)
        _move(self._files, old, new)
        self._moves.append((old, new))
        moved = {name for name in self._directories if f"{name}/".startswith(old)}
        self._directories -= moved
        self._directories |= {(new + f"{name}/".removeprefix(old)).rstrip("/") for name in moved}

    def replace_text(self, path: Path, text: str, *, backup: bool = True) -> None:
        """Write a temporary file, sync and rename it, and again for the backup, as `LocalFileSystem`."""
        if not self.exists(path.parent):
            make_directory(self, path.parent)
        for each in (path, backup_of(path)) if backup else (path,):
            fresh = path.with_name(path.name + ".tmp")
            self._set(str(fresh), Inode(modified_ms=self._time.wall_ms()))
            file = self.open(fresh, write=True)
            try:
                self.pwrite(file, text.encode(), 0)
                self.fsync(file)
            finally:
                self.close(file)
            self._called()
            self._set(str(each), self._files[str(fresh)])
            self._set(str(fresh), None)
            self.sync_directory(path.parent)

    def _inode(self, file: int) -> Inode:
        try:
            return self._open[file]
        except KeyError:
            raise OSError(errno.EBADF, "bad file descriptor") from None

    def _existing(self, path: Path) -> Inode:
        inode = self._files.get(str(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return inode

    def _set(self, name: str, inode: Inode | None) -> None:
        _name(self._files, name, inode)
        self._change(name, inode)

    def _change(self, name: str, inode: Inode | None) -> None:
        """Note that a name was added to a directory or removed."""
        self._renames.setdefault(_parent(name), []).append((name, inode))

    def _is_reachable(self, name: str) -> bool:
        """Return whether the names of all parent directories are on the platter."""
        while (name := _parent(name)) != "/":
            if self._platter.get(name) is not _DIRECTORY:
                return False
        return True

    def _apply_moves(self, count: int) -> None:
        for old, new in self._moves[:count]:
            _move(self._platter, old, new)
        del self._moves[:count]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Let an observer outside the simulation read without its calls being counted."""
        self._is_observed = True
        try:
            yield
        finally:
            self._is_observed = False

    def _called(self) -> None:
        """Count a call that reaches the disk; raise PowerCut if it was the last one."""
        if self._is_observed:
            return
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left <= 0:
                self._is_off = True
        if self._is_off:
            raise PowerCut

    def _may_fail_to_sync(self) -> None:
        if self.sync_error_chance and self._random.random() < self.sync_error_chance:
            raise OSError(errno.EIO, "the disk is broken")


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _name(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None and names.pop(name, None) is _DIRECTORY:
        for inside in [each for each in names if each.startswith(f"{name}/")]:
            del names[inside]
    elif inode is None:
        pass
    else:
        names[name] = inode


def _move(names: dict[str, Inode], old: str, new: str) -> None:
    for name in [name for name in names if f"{name}/".startswith(old)]:
        names[(new + f"{name}/".removeprefix(old)).removesuffix("/")] = names.pop(name)
