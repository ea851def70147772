"""The file system: the only access to files, which the simulator replaces; how a file is replaced (with a
.bak), flushed (also on macOS) and locked; directories, made durable, or refused if open to others; reads that
do not wait for the disk, and how many files are flushed at once.

Everything that touches a disk takes a `FileSystem`, so that a simulator can replace it and fail any call.
Files are integers from `open` until `close`; reads and writes name their offset, so there is no shared
position.

Foreign errors (OSError) pass through: the caller knows which file it was, and why.

Ranges of a file are read at once, without keeping the bytes between them:

    file     ── a ──┈┈┈┈ between ┈┈┈┈── b ──┈┈┈┈── c ──
    buffers  joined[0:a]  _BETWEEN  joined[a:a+b]  …        one preadv

If those were kept, they would be most of the copied bytes: 32 messages of 1 KiB in one of eight queues took
180 µs, most of it for new pages of memory; now they take 20.

The lock of a file is that of its first byte, as taken by java.nio's FileChannel.tryLock(0, 1, false). On
Linux it belongs to the open file: it conflicts with Java's record locks and with a second opener in this
process, and closing another descriptor does not release it.
"""

import contextlib
import copy
import errno
import fcntl
import os
import resource
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from libramq.clock import WallMs
from libramq.errors import ConfigError, InvalidName, ProtocolError
from libramq.logs import get_logger

log = get_logger(__name__)

#: Offsets and sizes of ranges, ascending and without overlap, except in a damaged file.
Ranges = Sequence[tuple[int, int]]

T = TypeVar("T")

NAME_BYTES_MAX = 255  # NAME_MAX of every file system in use; also the longest retry topic.
#: Ours: a file system writes its journal once for all waiting flushes. 3,000 small files took 12.3 s one by
#: one, 0.5 s with eight threads, 0.25 s with 32 (ext4).
FLUSHES_AT_ONCE: Final = 16
#: Ours: one flush in some hundred pays for zeroing this much; see `store.log.commit_log`.
ZEROED_BYTES: Final = 1 << 20
#: A page of the page cache; larger writes begin with their flush.
PAGE_BYTES: Final = 4096
#: The errors of `open` when the process or the machine has too many open files.
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
#: Ours: descriptors of a broker without clients and queues: listeners, journals, logs, the loop's own.
DESCRIPTORS_IDLE: Final = 32
#: The errors of writes on a full disk, or beyond the user's quota.
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Why a directory above, made by others, may not be flushed: no permission, or no such disk.
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOTSUP})
#: The suffix under which ConfigManager.java keeps the previous text; here it holds a second copy of the same
#: text.
BACKUP_SUFFIX = ".bak"
DAMAGED_SUFFIX = ".damaged"


class DiskUsage(NamedTuple):
    """The usage of a disk, and the space left for this process."""

    used_bytes: int
    available_bytes: int

    @property
    def used_percent(self) -> int:
        """Return the used share, rounded up (UtilAll.getDiskPartitionSpaceUsedPercent)."""
        return -(-self.used_bytes * 100 // (max(1, self.used_bytes + self.available_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """The next content of a file. write: may be called in a thread. written, failed: report its outcome."""

    write: Callable[[], None]
    written: Callable[[], None] = lambda: None
    failed: Callable[[], None] = lambda: None


class FileSystem(Protocol):
    """The disk operations that the store, the offsets and the configuration need."""

    @property
    def flushes_at_once(self) -> int:
        """The number of flushes of different files that may wait for the disk at once, each on a thread."""
        ...

    @property
    def zeroed_bytes(self) -> int:
        """The bytes of a file to fill with zeroes before data is written and flushed there; 0: none."""
        ...

    @property
    def open_max(self) -> int:
        """The number of descriptors that the process may have open."""
        ...

    def private(self) -> "FileSystem":
        """Return the same file system, with new files readable only by this process's user."""
        ...

    def closes_if_short(self, close_one: Callable[[], bool]) -> None:
        """Call `close_one` when descriptors run out; it returns whether it closed a file."""
        ...

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a descriptor for reading, or for both; `create` creates a missing file, empty."""
        ...

    def close(self, file: int) -> None:
        """Close the descriptor."""
        ...

    def pread(self, file: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        ...

    def pread_nowait(self, file: int, size: int, offset: int) -> bytes | None:
        """Read without waiting; None if the disk would have to be read (RWF_NOWAIT)."""
        ...

    def pread_ranges_nowait(self, file: int, ranges: Ranges) -> bytes | bytearray | None:
        """Read ranges without waiting, joined; None if the disk would have to be read."""
        ...

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        """Write all of `data`."""
        ...

    def begin_writing(self, file: int, size: int, offset: int) -> None:
        """Make the disk begin to write a little data: a hint; only `fsync` makes it durable."""
        ...

    def fsync(self, file: int) -> None:
        """Flush the file to the disk."""
        ...

    def truncate(self, file: int, size: int) -> None:
        """Set the size; an added part is a hole of zeroes."""
        ...

    def file_size(self, file: int) -> int:
        """Return the bytes in an open file."""
        ...

    def size(self, path: Path) -> int:
        """Return the bytes in a file."""
        ...

    def modified_ms(self, path: Path) -> WallMs:
        """Return when the file was last written, by the machine's wall clock."""
        ...

    def used_percent(self, path: Path) -> float:
        """Return how full the disk with this directory is for an ordinary user, as `df` shows it."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Return whether a path is a directory."""
        ...

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Return what distinguishes a directory from a later one at its path; None if it is unreachable."""
        ...

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it does not exist."""
        ...

    def makedirs(self, path: Path) -> None:
        """Create the directory and its parents; see `make_directory` for one that survives a power cut."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; a missing one is ignored."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content; a missing one is ignored."""
        ...

    def disk_space(self, path: Path) -> DiskUsage:
        """Return the usage of the disk with a file or directory."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Flush the names in the directory to the disk."""
        ...

    def lock(self, path: Path) -> int | None:
        """Lock the file for this process until the descriptor is closed; None if another process has it."""
        ...

    def is_locked(self, path: Path) -> bool:
        """Return whether a process holds that lock, without changing it."""
        ...

    def read_text(self, path: Path) -> str | None:
        """Return the content of a small UTF-8 file; None if it does not exist."""
        ...

    def rename(self, path: Path, to: Path) -> None:
        """Rename a directory on the same disk; `to` must be missing or an empty directory."""
        ...

    def replace_text(self, path: Path, text: str, *, backup: bool = True) -> None:
        """Replace a small text atomically. backup: also replace the copy in `.bak` (`read_with_backup`)."""
        ...


class LocalFileSystem:
    """The machine's own files."""

    _closers: tuple[Callable[[], bool], ...] = ()
    _mode = 0o644
    #: The file system of which this is the `private` view, if any.
    _whole: "LocalFileSystem | None" = None

    @property
    def flushes_at_once(self) -> int:
        """Return FLUSHES_AT_ONCE."""
        return FLUSHES_AT_ONCE

    @property
    def zeroed_bytes(self) -> int:
        """Return ZEROED_BYTES."""
        return ZEROED_BYTES

    @property
    def open_max(self) -> int:
        """Return the soft limit of descriptors."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return sys.maxsize if limit == resource.RLIM_INFINITY else limit

    def private(self) -> "LocalFileSystem":
        """Return the same file system, with mode 0600 for new files."""
        private = copy.copy(self)
        private._mode, private._whole = 0o600, self
        return private

    def closes_if_short(self, close_one: Callable[[], bool]) -> None:
        """Add a function that closes a file which can be reopened."""
        self._closers = (*self._closers, close_one)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a descriptor for reading, or for both."""
        return self._descriptor(path, (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0))

    def _descriptor(self, path: Path, flags: int) -> int:
        return self._with_room(lambda: os.open(path, flags | os.O_CLOEXEC, self._mode))

    def _with_room(self, opens: Callable[[], T]) -> T:
        """Call a function that needs a descriptor; if there is none left, close other files for it."""
        while True:
            try:
                return opens()
            except OSError as failed:
                if failed.errno not in NO_DESCRIPTORS or not any(
                    close() for close in (self._whole or self)._closers
                ):
                    raise

    def close(self, file: int) -> None:
        """Close the descriptor."""
        os.close(file)

    def pread(self, file: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(file, size, offset)
        while len(data) < size:  # A signal or the kernel's limit of 2 GiB may cut a read short.
            more = os.pread(file, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_nowait(self, file: int, size: int, offset: int) -> bytes | None:
        """Read from the page cache only; None if it does not hold all of it."""
        buffer = bytearray(size)
        count = preadv_nowait(file, [buffer], offset)
        if count is None:
            return self.pread(file, size, offset)
        if count == size:
            return bytes(buffer)
        end = os.fstat(file).st_size
        return bytes(buffer[:count]) if offset + count >= end else None

    def pread_ranges_nowait(self, file: int, ranges: Ranges) -> bytes | bytearray | None:
        """Read ranges from the page cache only, joined; None if it does not hold all of them."""
        joined = bytearray(sum([size for _, size in ranges]))
        view, at = memoryview(joined), 0
        for near in nearby(ranges):
            start, total = span(near)
            room = view[at : at + (total if len(near) == 1 else sum([size for _, size in near]))]
            at += len(room)
            buffers = [room] if len(room) == total else buffers_of(near, room)
            if len(buffers) <= BUFFERS_MAX and preadv_nowait(file, buffers, start) == total:
                continue
            data = self.pread_nowait(file, total, start)  # Too many ranges, cold, or beyond the file's end.
            if data is None:
                return None
            found = joined_ranges(data, start, near)
            if len(found) < len(room):
                return bytes(view[: at - len(room)]) + found
            room[:] = found
        return joined

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        """Write all of `data`."""
        written = os.pwrite(file, data, offset)
        while written < len(data):
            written += os.pwrite(file, data[written:], offset + written)

    def begin_writing(self, file: int, size: int, offset: int) -> None:
        """Make the disk begin to write data of at most a page.

        Linux writes data that it is advised to drop from the page cache, without waiting, and drops only
        whole pages. The next fsync reports any failure.
        """
        if size <= PAGE_BYTES and sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)

    def fsync(self, file: int) -> None:
        """Flush the file to the disk; its times may follow later."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(file)
        else:
            _full_fsync(file)

    def truncate(self, file: int, size: int) -> None:
        """Set the size."""
        os.ftruncate(file, size)

    def file_size(self, file: int) -> int:
        """Return the bytes in an open file."""
        return os.fstat(file).st_size

    def size(self, path: Path) -> int:
        """Return the bytes in a file."""
        return os.stat(path).st_size

    def modified_ms(self, path: Path) -> WallMs:
        """Return when the file was last written."""
        return WallMs(os.stat(path).st_mtime_ns // 1_000_000)

    def used_percent(self, path: Path) -> float:
        """Return how full the disk is; blocks reserved for root count as neither used nor free."""
        disk = os.statvfs(path)
        used = disk.f_blocks - disk.f_bfree
        whole = used + disk.f_bavail
        return 100 * used / whole if whole else 0.0

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists."""
        return os.path.lexists(path)

    def is_directory(self, path: Path) -> bool:
        """Return whether a path is a directory."""
        return os.path.isdir(path)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Return disk and inode."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        try:
            return sorted(self._with_room(lambda: os.listdir(path)))
        except FileNotFoundError:
            return []

    def makedirs(self, path: Path) -> None:
        """Create the directory and its parents."""
        os.makedirs(path, exist_ok=True)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content, without following links."""
        if not os.path.isdir(path) or os.path.islink(path):
            path.unlink(missing_ok=True)
            return
        for name in os.listdir(path):
            self.remove_tree(path / name)
        os.rmdir(path)

    def disk_space(self, path: Path) -> DiskUsage:
        """Return what statvfs reports; blocks reserved for root count as neither used nor available."""
        disk = os.statvfs(path)
        return DiskUsage((disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def sync_directory(self, path: Path) -> None:
        """Flush the names in the directory to the disk."""
        directory = self._descriptor(path, os.O_RDONLY)
        try:
            _full_fsync(directory)
        finally:
            os.close(directory)

    def lock(self, path: Path) -> int | None:
        """Lock the first byte (`try_lock`)."""
        file = self._descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            if try_lock(file):
                return file
        except OSError:
            os.close(file)
            raise
        os.close(file)
        return None

    def is_locked(self, path: Path) -> bool:
        """Return whether a process holds the lock of `lock`, Java's included."""
        try:
            file = self._descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return is_locked(file)
        finally:
            os.close(file)

    def read_text(self, path: Path) -> str | None:
        """Return the content of a small UTF-8 file."""
        try:
            return self._with_room(path.read_bytes).decode(errors="replace")  # Unchanged, including "\r".
        except FileNotFoundError:
            return None

    def rename(self, path: Path, to: Path) -> None:
        """Give a directory another name."""
        os.rename(path, to)

    def replace_text(self, path: Path, text: str, *, backup: bool = True) -> None:
        """Write a new file, flush it, rename it; then the same for its backup."""
        if not self.exists(path.parent):
            make_directory(self, path.parent)
        for each in (path, backup_of(path)) if backup else (path,):
            fresh = path.with_name(path.name + ".tmp")
            file = self._descriptor(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self.pwrite(file, text.encode(), 0)
                _full_fsync(file)
            finally:
                os.close(file)
            os.replace(fresh, each)
            self.sync_directory(path.parent)  # At every moment one of the two is intact.


def backup_of(path: Path) -> Path:
    """Return the file that holds the backup of another."""
    return path.with_name(path.name + BACKUP_SUFFIX)


@contextlib.contextmanager
def opened(filesystem: FileSystem, path: Path, *, write: bool = False, create: bool = False) -> Iterator[int]:
    """Open a file, and close it at the end of the block."""
    file = filesystem.open(path, write=write, create=create)
    try:
        yield file
    finally:
        filesystem.close(file)


def read_bytes(filesystem: FileSystem, path: Path) -> bytes:
    """Return the content of a file."""
    with opened(filesystem, path) as file:
        return filesystem.pread(file, filesystem.file_size(file), 0)


def _is_utf8(filesystem: FileSystem, path: Path, text: str) -> bool:
    """Return whether a file's bytes are proper UTF-8, so that the text read from it is complete."""
    return "\N{REPLACEMENT CHARACTER}" not in text or text.encode() == read_bytes(filesystem, path)


def read_with_backup(filesystem: FileSystem, path: Path, decode: Callable[[str], T]) -> T | None:
    """Decode a text written by `replace_text`, or else its backup; None if both are missing or empty.

    A backup left by Apache's broker is older than the text. So the times of both are logged, and a damaged
    text is kept as `.damaged`. If neither can be read, the error of `decode` or an OSError is raised. A text
    with invalid UTF-8 is returned only if the backup is no better.
    """
    failed: ProtocolError | ValueError | OSError | None = None
    damaged, reason = "", "it is missing"
    not_utf8: list[T] = []
    for each in (path, backup_of(path)):
        text = None
        try:
            text = filesystem.read_text(each)
            if text is None:
                continue
            if not text.strip():
                reason = "it is empty" if each == path else reason
                continue
            value = decode(text)
            if (each == path or not_utf8) and not _is_utf8(filesystem, each, text):
                not_utf8.append(value)
                damaged, reason = text, "it has bytes that are no UTF-8"
                continue
        except (ProtocolError, ValueError, OSError) as error:
            failed, reason, damaged = error, str(error), text or ""
            continue
        if each != path:
            log.warning(
                "a file cannot be read, and its backup is taken instead",
                path=str(path),
                reason=reason,
                written=_written(filesystem, path),
                backup_written=_written(filesystem, each),
            )
            with contextlib.suppress(OSError):  # The next start will use the backup again.
                if damaged:
                    kept = path.with_name(path.name + DAMAGED_SUFFIX)
                    filesystem.replace_text(kept, damaged, backup=False)
                filesystem.replace_text(path, text)
        return value
    if not_utf8:
        return not_utf8[0]
    if failed is not None:
        raise failed
    if filesystem.exists(path):
        at = _written(filesystem, path)
        log.warning("a file is empty, and it has no backup: it begins anew", path=str(path), written=at)
    return None


def _written(filesystem: FileSystem, path: Path) -> str:
    """Return when a file was last written, for the log."""
    if not filesystem.exists(path):
        return "never"
    return datetime.fromtimestamp(int(filesystem.modified_ms(path)) / 1000, UTC).isoformat(
        timespec="milliseconds"
    )


def make_directory(filesystem: FileSystem, path: Path) -> None:
    """Create a directory and its parents, and wait until all of their names are on disk.

    Existing ones are flushed as well: a process may have created them and died before flushing.
    """
    filesystem.makedirs(path)
    for directory in path.absolute().parents:
        try:
            filesystem.sync_directory(directory)
        except OSError as failed:
            if failed.errno not in _NOT_OURS:
                raise


def refuse_shared_directory(directory: Path, option: str) -> None:
    """Raise ConfigError if every user of the machine may put files or links into a directory."""
    try:
        is_open = directory.stat().st_mode & stat.S_IWOTH
    except FileNotFoundError:
        return
    if is_open:
        raise ConfigError(
            f"{option}: every user of this machine may write to {directory}, and put files or links there;"
            f" chmod o-w {directory}, or name another directory"
        )


def _full_fsync(file: int) -> None:
    """Flush a file to the disk. On macOS, fsync leaves data in the disk's cache, which a power cut loses."""
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        try:
            fcntl.fcntl(file, command)
            return
        except OSError as failed:
            if failed.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # A network file system.
                raise
    os.fsync(file)


def safe_child(parent: Path, name: str) -> Path:
    """Return the path of `name` in `parent`; names that could lead anywhere else are refused.

    Only this function turns an outside name into a path.
    """
    if not name or name in (".", ".."):
        raise InvalidName(f"{name!r} cannot be the name of a file")
    if "/" in name or "\\" in name or "\0" in name or (os.sep != "/" and os.sep in name):
        raise InvalidName(f"{name!r} cannot be the name of a file: it has a separator or NUL in it")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{name!r} cannot be the name of a file: it is not proper Unicode") from None
    if size > NAME_BYTES_MAX:
        raise InvalidName(f"a name of {size} bytes cannot be the name of a file: at most {NAME_BYTES_MAX}")
    return parent / name


def sync_file(filesystem: FileSystem, path: Path) -> None:
    """Flush a file to the disk; raises OSError."""
    with opened(filesystem, path, write=True) as file:
        filesystem.fsync(file)


#: Ours: at this distance, two reads with their overhead (5 µs) cost as much as copying the bytes between
#: them. Eight queues filled in turn with messages of 1 KiB have 8.6 KiB between two messages of one queue.
GAP_BYTES: Final = 16 * 1024
#: Ours: at most this much is read at once; it fits in the processor's cache.
STRETCH_BYTES: Final = 256 * 1024

#: IOV_MAX of Linux and macOS: the buffers of one read.
BUFFERS_MAX: Final = 1024
#: Memory written by any thread and never read.
_BETWEEN: Final = memoryview(bytearray(GAP_BYTES))


def nearby(ranges: Ranges) -> list[Ranges]:
    """Group ranges that are near enough to be read at once."""
    if len(ranges) == 1:
        return [ranges]
    groups: list[Ranges] = []
    group: list[tuple[int, int]] = []
    start = end = 0
    for each in ranges:
        offset, size = each
        if group and not (0 <= offset - end <= GAP_BYTES and offset + size - start <= STRETCH_BYTES):
            groups.append(group)
            group = []
        if not group:
            start = offset
        group.append(each)
        end = offset + size
    groups.append(group)
    return groups


def span(ranges: Ranges) -> tuple[int, int]:
    """Return the start of nearby ranges, and the size up to their end."""
    start = ranges[0][0]
    last, size = ranges[-1]
    return start, last + size - start


def joined_ranges(data: bytes, start: int, ranges: Ranges) -> bytes:
    """Return the ranges in data read from `start` on, joined; shorter if less was read."""
    view = memoryview(data)
    return b"".join([view[offset - start : offset - start + size] for offset, size in ranges])


def buffers_of(ranges: Ranges, joined: memoryview) -> list[memoryview]:
    """Return the buffers for one read of nearby ranges: parts of `joined`, and scratch for the gaps."""
    buffers = []
    at = begun = 0
    end = ranges[0][0]
    for offset, size in ranges:
        if offset != end:
            if at != begun:
                buffers.append(joined[begun:at])
                begun = at
            between = offset - end
            buffers.append(_BETWEEN[:between])
        at += size
        end = offset + size
    buffers.append(joined[begun:at])
    return buffers


def preadv_nowait(file: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int | None:
    """Read from the page cache only; return the number of bytes it held, or None if that is unsupported."""
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    try:
        return os.preadv(file, buffers, offset, flag)
    except BlockingIOError:
        return 0
    except OSError as failed:
        if failed.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise


#: Linux's locks of an open file. macOS has the names too, but another struct flock.
HAS_FILE_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def try_lock(file: int) -> bool:
    """Lock an open file until it is closed; return False if it is locked elsewhere."""
    try:
        if HAS_FILE_LOCKS:
            first_byte = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # struct flock
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, first_byte)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failed:
        if failed.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def is_locked(file: int) -> bool:
    """Return whether an open file is locked elsewhere, without changing anything."""
    try:
        if HAS_FILE_LOCKS:
            query = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # struct flock
            kind: int = struct.unpack("hhqqi0q", fcntl.fcntl(file, fcntl.F_OFD_GETLK, query))[0]
            return kind != fcntl.F_UNLCK
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as failed:
        if failed.errno in (errno.EACCES, errno.EAGAIN):
            return True
        raise
    return False
