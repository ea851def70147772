"""The copy of a store while a broker may have it open (`libra store copy`): the order of the files, and the
number of attempts.

    1. recovery point, checkpoint, timers, the tables of `config`  what they refer to is copied later
    2. consume queues                                              only units before the recovery point matter
    3. find the log's end, scanning from the recovery point
    4. topics, deletions, and the log up to that end

A broker may write and remove files meanwhile. The copy contains everything acknowledged before it began,
because acknowledged data had been written, if not yet flushed. The copy opens from the recovery point of step
1 and builds the units of later records from the copied log.

The copy is written to a directory beside its destination, which is renamed once everything is on the disk.
"""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from libramq.clock import WallMs
from libramq.errors import StoreCorrupt, StoreError, StoreLocked
from libramq.filesystem import FileSystem, make_directory, opened, read_bytes
from libramq.store.checkpoint import (
    UNKNOWN,
    Checkpoint,
    RecoveryPoint,
    RecoveryPointFile,
    read_checkpoint,
    write_checkpoint,
)
from libramq.store.config import BATCH_UNIT_BYTES, UNIT_BYTES
from libramq.store.deletions import FILE_NAME as DELETIONS
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.log.log_scan import LogScan
from libramq.store.log.segments import NAME_DIGITS
from libramq.store.queues.consume_queue import UNIT, end_of_unit
from libramq.store.queues.queue_extension import EXTENSIONS
from libramq.store.reading.read_only_files import FileRemoved, ReadOnlyFiles, end_of_units, queue_directories
from libramq.store.recovery.opening import ABORT

#: The checkpoint, the slots, and last the units they point to; `libramq.timers` writes them in reverse order.
TIMER_FILES: Final = ("config/timercheck", "config/timermetrics", "timerwheel")
TIMER_LOG: Final = "timerlog"
UNFINISHED_SUFFIX: Final = ".unfinished"
#: Ours: a queue's copy, or the whole copy, is tried this often when files are removed during it.
ATTEMPTS_MAX: Final = 10
#: Every store has at least one of them; a broker without messages has no commitlog yet.
_MARKS: Final = ("commitlog", "config", ABORT)
_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True, kw_only=True)
class CopyReport:
    """The content of a copy. recovered_from: the offset at which its first opening begins to read the log."""

    is_closed: bool
    log_start: int = 0
    log_end: int = 0
    recovered_from: int = 0
    queue_count: int = 0
    unit_count: int = 0
    tables: list[str] = field(default_factory=list)


#: The queue directories and the size of their units.
_QUEUES: Final = {"consumequeue": UNIT_BYTES, "batchconsumequeue": BATCH_UNIT_BYTES}


class _TooSlow(Exception):
    """Files that the copied queues point into were removed: the log now begins after the recovery point."""


def copy_store(root: Path, to: Path, filesystem: FileSystem, *, commit_log: Path | None = None) -> CopyReport:
    """Copy a store, which a broker may have open, to a new or empty directory.

    commit_log: the directory of the log, if it is outside the store directory; the copy has it inside.

    Raises StoreError if there is no store or a broker was started meanwhile; StoreLocked if another copy to
    the same directory is under way.
    """
    if not any(filesystem.exists(root / name) for name in _MARKS):
        raise StoreError(f"{root} is no store directory: it has none of {', '.join(_MARKS)}")
    if filesystem.listdir(to) or (filesystem.exists(to) and not filesystem.is_directory(to)):
        raise StoreError(f"{to} is not empty; copy to a new directory")
    unfinished = to.with_name(to.name + UNFINISHED_SUFFIX)
    make_directory(filesystem, unfinished)
    lock = filesystem.lock(unfinished / "lock")
    if lock is None:
        raise StoreLocked(f"{unfinished} is in use by another process: a copy to {to} is under way")
    try:
        report = _copy_to(root, unfinished, filesystem, commit_log or root / "commitlog")
        filesystem.rename(unfinished, to)
        filesystem.sync_directory(to.parent)
    except BaseException:
        filesystem.remove_tree(unfinished)
        raise
    finally:
        filesystem.close(lock)
    return report


def _copy_to(root: Path, to: Path, filesystem: FileSystem, commit_log: Path) -> CopyReport:
    for _ in range(ATTEMPTS_MAX):
        for name in filesystem.listdir(to):  # Left by an earlier attempt or a killed copy.
            if name != "lock":
                filesystem.remove_tree(to / name)
        try:
            return _Copy(root, to, filesystem, commit_log).run()
        except _TooSlow:
            continue
    raise StoreError(f"{root}: files are removed faster than they are copied; copy to a faster disk")


class _Copy:
    """One attempt at a copy."""

    def __init__(self, root: Path, to: Path, filesystem: FileSystem, commit_log: Path) -> None:
        self._root = root
        self._commit_log = commit_log
        self._to = to
        self._filesystem = filesystem
        self._was_locked = filesystem.is_locked(root / "lock")
        self._opened = _opening_of(root, filesystem)
        self._abort = self._opened[0]
        self._point = RecoveryPointFile(filesystem, root).load()
        self._is_known = self._point is not None and (self._abort is None or self._point.is_of(self._abort))
        self._report = CopyReport(is_closed=self._abort is None)
        self._written: list[Path] = []
        self._directories: dict[Path, None] = {}
        self._units_end = 0

    def run(self) -> CopyReport:
        checkpoint = read_checkpoint(self._filesystem, self._root / "checkpoint")
        self._copy_timers()
        for stem in table_names(self._filesystem, self._root / "config"):
            self._copy_table(stem)
        for directory, unit_bytes in _QUEUES.items():
            for _, path in queue_directories(self._filesystem, self._root / directory):
                self._copy_queue(path.relative_to(self._root), unit_bytes)
        for _, path in queue_directories(self._filesystem, self._root / EXTENSIONS):
            self._copy_extension(path.relative_to(self._root))
        end = self._find_end()
        self._copy_table(TOPICS)
        deletions = self._filesystem.read_text(self._root / DELETIONS)
        if deletions is not None:
            self._write(self._to / DELETIONS, deletions.encode())
        self._copy_log(end)
        self._require_same_broker()
        self._finish(checkpoint, end)
        return self._report

    def _copy_table(self, stem: str) -> None:
        for name, data in read_table(self._filesystem, self._root / "config", stem).items():
            self._write(self._to / "config" / name, data)
            self._report.tables.append(name)

    def _copy_timers(self) -> None:
        """Copy the timers' files so that each file comes before those it points into."""
        for name in TIMER_FILES:
            if self._filesystem.exists(self._root / name):
                size = self._filesystem.size(self._root / name)
                self._make_directory((self._to / name).parent)
                self._copy_file(self._root / name, self._to / name, size, size)
        for name in self._filesystem.listdir(self._root / TIMER_LOG):
            source = self._root / TIMER_LOG / name
            self._make_directory(self._to / TIMER_LOG)
            with contextlib.suppress(FileNotFoundError):  # Removed: its messages were delivered.
                size = self._filesystem.size(source)
                self._copy_file(source, self._to / TIMER_LOG / name, size, size)

    def _copy_queue(self, queue: Path, unit_bytes: int) -> None:
        source, target = self._root / queue, self._to / queue
        for _ in range(ATTEMPTS_MAX):
            files = ReadOnlyFiles(self._filesystem, source)
            try:
                end = end_of_units(files, unit_bytes)
                if end * unit_bytes > files.min_offset:
                    data = files.read((end - 1) * unit_bytes, UNIT_BYTES)  # Batch units begin alike.
                    physical, size, _ = UNIT.unpack(data)
                    self._units_end = max(self._units_end, end_of_unit(physical, size))
                self._copy_files(files, source, target, end * unit_bytes)
            except (FileRemoved, FileNotFoundError):  # Removed by retention or with its topic.
                self._filesystem.remove_tree(target)
                continue
            finally:
                files.close()
            self._report.queue_count += bool(files.starts)
            self._report.unit_count += end - files.min_offset // unit_bytes if files.starts else 0
            return
        raise _TooSlow

    def _copy_extension(self, queue: Path) -> None:
        """Copy a queue extension written by Apache's broker; without it, messages match every tag."""
        source, target = self._root / queue, self._to / queue
        try:
            with contextlib.closing(ReadOnlyFiles(self._filesystem, source)) as files:
                self._copy_files(files, source, target, files.end)
        except (StoreCorrupt, FileNotFoundError):  # Removed, or corrupt in the original as well.
            self._filesystem.remove_tree(target)

    def _find_end(self) -> int:
        """Return the current end of the log, and note where the copy's first opening begins to read."""
        log = ReadOnlyFiles(self._filesystem, self._commit_log)
        begin, flushed = 0, 0
        if self._point is not None and self._is_known:
            begin, flushed = self._point.dispatched, self._point.flushed
        if self._abort is None:
            begin = self._units_end
        elif self._is_known and log.min_offset > begin:
            raise _TooSlow
        begin = max(begin, log.min_offset)
        scan = LogScan(log, begin, protected=min(flushed, log.end), refuses_nuls=self._is_known)
        try:
            for _ in scan:
                pass
        except FileRemoved as removed:
            raise _TooSlow from removed
        finally:
            log.close()
        self._report.recovered_from, self._report.log_end = begin, scan.end
        return scan.end

    def _copy_log(self, end: int) -> None:
        source, target = self._commit_log, self._to / "commitlog"
        while True:
            log = ReadOnlyFiles(self._filesystem, source)
            if log.min_offset > self._report.recovered_from:
                raise _TooSlow
            try:
                self._copy_files(log, source, target, end)
            except FileNotFoundError:  # Removed by retention, as are all files before it.
                continue
            for name in self._filesystem.listdir(target):
                if int(name) < log.min_offset:
                    self._filesystem.unlink(target / name)
            self._report.log_start = log.min_offset
            return

    def _copy_files(self, files: ReadOnlyFiles, source: Path, target: Path, end: int) -> None:
        """Copy the data before `end`, each file at its full size; files that are already copied are kept."""
        for start in files.starts:
            name = f"{start:0{NAME_DIGITS}d}"
            path = target / name
            if (start < end or start == files.starts[0]) and not self._filesystem.exists(path):
                self._make_directory(target)
                self._copy_file(source / name, path, min(end - start, files.file_size), files.file_size)

    def _copy_file(self, source: Path, target: Path, end: int, size: int) -> None:
        filesystem = self._filesystem
        with (
            opened(filesystem, source) as reading,
            opened(filesystem, target, write=True, create=True) as writing,
        ):
            filesystem.truncate(writing, size)
            for at in range(0, end, _CHUNK_BYTES):
                data = filesystem.pread(reading, min(_CHUNK_BYTES, end - at), at)
                if data.strip(b"\0"):  # Unwritten chunks stay holes.
                    filesystem.pwrite(writing, data, at)
        self._written.append(target)

    def _require_same_broker(self) -> None:
        """Raise StoreError if a broker opened the store meanwhile: its recovery may have changed any file."""
        is_started = not self._was_locked and self._filesystem.is_locked(self._root / "lock")
        opened = _opening_of(self._root, self._filesystem)
        point = RecoveryPointFile(self._filesystem, self._root).load()
        is_stopped = opened[0] is None and _generation(point) == _generation(self._point)
        if is_started or (opened != self._opened and not is_stopped):
            raise StoreError(f"a broker was started in {self._root} while it was copied; copy again")

    def _finish(self, checkpoint: Checkpoint, end: int) -> None:
        """Make the copy durable, with checkpoint, abort file and recovery point for its first opening."""
        if checkpoint != Checkpoint():
            write_checkpoint(self._filesystem, self._to / "checkpoint", checkpoint)
            self._written.append(self._to / "checkpoint")
        if self._abort is not None:
            self._write(self._to / ABORT, self._abort.encode())
        self._make_directory(self._to / "commitlog")
        directories = list(self._directories)
        run_flush(
            self._filesystem, FlushPlan(paths=tuple(self._written), directories=tuple(reversed(directories)))
        )
        if self._point is not None:
            point = self._point._replace(begins=UNKNOWN)  # Retention may have deleted old files meanwhile.
            if self._is_known:  # Topics deleted meanwhile make the unit count unknown.
                dispatched = end if self._abort is None else point.dispatched
                point = point._replace(flushed=end, dispatched=dispatched, units=UNKNOWN)
            file = RecoveryPointFile(self._filesystem, self._to)
            file.save(point, sync=True)
            file.close()

    def _write(self, path: Path, data: bytes) -> None:
        self._make_directory(path.parent)
        with opened(self._filesystem, path, write=True, create=True) as file:
            self._filesystem.pwrite(file, data, 0)
        self._written.append(path)

    def _make_directory(self, path: Path) -> None:
        """Make a directory, and register it and its parents up to the copy's root for the flush."""
        self._filesystem.makedirs(path)
        while path != self._to.parent:
            self._directories[path] = None
            path = path.parent


def _opening_of(root: Path, filesystem: FileSystem) -> tuple[str | None, WallMs]:
    """Return the text of `abort` and its modification time; every opening rewrites the file."""
    try:
        return filesystem.read_text(root / ABORT), filesystem.modified_ms(root / ABORT)
    except FileNotFoundError:
        return None, WallMs(0)


def _generation(point: RecoveryPoint | None) -> tuple[int, int] | None:
    return (point.generation, point.opened_ms) if point is not None else None


#: Copied after the log, so that every message in the copy finds its topic.
TOPICS: Final = "topics"
#: Copied in this order, before all others. Offsets come before the messages they commit, and fences before
#: the groups, so that a coordinator knows each epoch that a fence has.
FIRST: Final = (
    "consumerOffset", "lmqConsumerOffset", "delayOffset", "groupFences", "groups", "subscriptionGroup",
)  # fmt: skip
#: Ours: a table is written at most twice a second and read within milliseconds.
TABLE_ATTEMPTS_MAX: Final = 20
_JOURNAL: Final = ".journal."


def table_names(filesystem: FileSystem, directory: Path) -> list[str]:
    """Return the names of all tables except TOPICS, in copying order."""
    found = {_stem(name) for name in filesystem.listdir(directory) if _stem(name)} - {"", TOPICS}
    return [name for name in FIRST if name in found] + sorted(found - set(FIRST))


def read_table(filesystem: FileSystem, directory: Path, stem: str) -> dict[str, bytes]:
    """Return a consistent snapshot of a table's files by name; empty if the table does not exist.

    The files are NAME.json and the journals of later changes: NAME.json.journal.N, or NAME.journal.N for
    committed offsets. A broker writes a whole table, then removes the journals that it includes. So the files
    are consistent if the table was the same before and after the journals were read and no journal vanished.
    """
    for _ in range(TABLE_ATTEMPTS_MAX):
        try:
            before = _read(filesystem, directory / f"{stem}.json")
            journals = {
                name: read_bytes(filesystem, directory / name)
                for name in filesystem.listdir(directory)
                if _stem(name) == stem and _JOURNAL in name
            }
        except FileNotFoundError:
            continue
        if _read(filesystem, directory / f"{stem}.json") == before:
            return journals if before is None else {f"{stem}.json": before, **journals}
    raise StoreError(f"{directory / stem}.json changes faster than it can be read; copy again")


def _stem(name: str) -> str:
    """Return the name of a file's table; empty for backups and unfinished files."""
    if _JOURNAL in name:
        return name.partition(_JOURNAL)[0].removesuffix(".json")
    return name.removesuffix(".json") if name.endswith(".json") else ""


def _read(filesystem: FileSystem, path: Path) -> bytes | None:
    try:
        return read_bytes(filesystem, path)
    except FileNotFoundError:
        return None
