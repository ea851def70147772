"""The retention: deletes old files of the log, then of the queues (fileReservedTime, deleteWhen, disk ratios;
never after the recovery point), and refuses sends when the disk is full.

        in an hour of deleteWhen, or above diskMaxUsedSpaceRatio   files older than fileReservedTime
        above diskSpaceCleanForciblyRatio                          the oldest of any age, as many as needed
        above diskSpaceWarningLevelRatio                           sends are refused

A file's age counts from its last write. A cleaning selects files, then raises the minimum offsets of the
queues and of the log, so that pulls below get OFFSET_TOO_SMALL before a file is gone. Files are removed once
a later recovery point is on the disk: first the log's, oldest first and each durably before the next, so that
a crash leaves no gap; then the queues', where a gap is harmless. Threads do the slow part, examining and
removing files, while the store continues. Removed files stay readable where they are open.

Upstream: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService; MappedFileQueue.
deleteExpiredFileByTime, which always deletes ten files.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from libramq.clock import Clock, MonotonicMs, WallMs
from libramq.filesystem import DiskUsage, FileSystem
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work, portions
from libramq.logs import get_logger
from libramq.store.flush import FlushPlan, RecoveryPointWriter, run_flush
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import NAME_DIGITS
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable

log = get_logger(__name__)

NEVER_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of message retention; ratios are percentages of the disk, and 100 means never."""

    file_reserved_hours: int = 72
    delete_hours: frozenset[int] = frozenset({4})
    disk_max_used_percent: int = 75
    clean_forcibly_percent: int = 85
    #: MessageStoreConfig.deleteFileBatchMax.
    files_per_round_max: int = 10


class Cleaning:
    """Removes old files of one store. disk: a directory on the log's disk."""

    def __init__(
        self,
        filesystem: FileSystem,
        disk: Path,
        clock: Clock,
        log_: CommitLog,
        queues: ConsumeQueueTable,
        points: RecoveryPointWriter,
    ) -> None:
        self._filesystem = filesystem
        self._disk = disk
        self._clock = clock
        self._log = log_
        self._queues = queues
        self._points = points
        #: Files of the log that the store has dropped but not yet removed.
        self._left: list[Path] = []
        #: Files of queues that the store has dropped but not yet removed.
        self._left_of_queues: list[Path] = []

    @property
    def may_find(self) -> bool:
        """Return whether there may be something to remove, now or later."""
        return len(self._log.segments.starts) > 1 or bool(self._left)

    def clean(self, retention: Retention, hour_of: Callable[[WallMs], int]) -> Work[int]:
        """Remove expired files; the result is the number of the log's.

        hour_of: returns the hour of the broker's day. Raises OSError if the disk cannot be examined,
        SyncFailed if a flush fails.
        """
        if self._left or self._left_of_queues:  # These still fill the disk: select no others first.
            yield from self._remove()
            if self._left:
                return 0
        seen: Sighting = yield InThread(
            Thread.DISK, partial(_look, self._filesystem, self._disk, self._old_files(retention))
        )
        now_ms = self._clock.wall_ms()
        expired = expired_files(seen.files, seen.space, retention, now_ms=now_ms, hour=hour_of(now_ms))
        if expired.file_count:
            if expired.early_count:
                log.warning(
                    "messages are deleted before their time: the disk is full",
                    used_percent=seen.space.used_percent,
                    files=expired.early_count,
                )
            last = seen.files[expired.file_count - 1]
            yield from self._begin_later(last.start + last.size)
            yield from self._remove()
        return expired.file_count

    def clean_queues(self) -> Work[None]:
        """Remove queue files whose messages lie before the log's beginning.

        A cleaning does this as well, but a kill or a disk error may prevent it.
        """
        yield from self._begin_later(self._log.min_offset)
        yield from self._remove()

    def _old_files(self, retention: Retention) -> list[tuple[int, int, Path]]:
        """Return the oldest files that end before the recovery point.

        The file after them has data on the disk, so a log remains after a power cut.
        """
        segments, needed_from = self._log.segments, self._points.point.dispatched
        starts = segments.starts[:-1][: retention.files_per_round_max]
        size = segments.file_size
        return [(start, size, segments.path(start)) for start in starts if start + size < needed_from]

    def _begin_later(self, physical_min: int) -> Work[None]:
        """Raise the minimum offset of the queues, then of the log."""
        for queues in portions(list(self._queues)):
            searches = [_search(queue) for queue in queues]
            found = yield InThread(
                Thread.DISK, partial(_find_beginnings, self._filesystem, searches, physical_min)
            )
            for queue, search, place in zip(queues, searches, found, strict=True):
                if self._queues.get(queue.topic, queue.queue_id) is queue:  # Its topic still exists.
                    number = queue.offset_at(place)
                    if place >= search.high:  # The thread did not see unwritten units.
                        queue.correct_min_offset(physical_min, number)
                    self._drop_before(queue, number)
        dropped = self._log.segments.drop_before(physical_min)
        self._left += dropped
        if dropped:
            self._points.log_begins(self._log.min_offset)
            log.info("old files of the commit log are deleted", count=len(dropped), log_begins=physical_min)

    def _drop_before(self, queue: ConsumeQueue, number: int) -> None:
        queue.min_offset = max(queue.min_offset, number)
        dropped = queue.drop_files()
        if dropped:
            self._queues.being_cleaned[queue.segments.directory] = queue
            self._left_of_queues += dropped

    def _remove(self) -> Work[None]:
        """Remove dropped files. The next cleaning retries log files that cannot be removed.

        Queue files are not retried: they are harmless, and a recreated topic may reuse their names.
        """
        of_queues, self._left_of_queues = self._left_of_queues, []
        try:
            point = self._points.file.path
            removed = yield InThread(
                Thread.DISK, partial(_remove_files, self._filesystem, point, self._left.copy(), of_queues)
            )
            del self._left[:removed]
        finally:
            self._queues.being_cleaned.clear()


_HOUR_MS: Final = 3_600_000


class OldFile(NamedTuple):
    """A file of the log that is no longer written."""

    start: int
    size: int
    modified_ms: WallMs


class Expired(NamedTuple):
    """The number of files to delete, and how many of them have not reached their age."""

    file_count: int
    early_count: int


def expired_files(
    files: Sequence[OldFile], space: DiskUsage, retention: Retention, *, now_ms: WallMs, hour: int
) -> Expired:
    """Return the number of files to delete, oldest first. hour: the hour of the broker's day, 0 to 23."""
    all_bytes = space.used_bytes + space.available_bytes
    is_time = hour in retention.delete_hours
    old_count = early_count = 0
    if is_time or space.used_bytes * 100 > retention.disk_max_used_percent * all_bytes:
        oldest_ms = now_ms - retention.file_reserved_hours * _HOUR_MS
        old_count = sum(1 for _ in takewhile(lambda file: file.modified_ms <= oldest_ms, files))
    excess_bytes = space.used_bytes - retention.clean_forcibly_percent * all_bytes // 100
    if files and excess_bytes > 0:
        early_count = max(0, -(-excess_bytes // files[0].size) - old_count)
    count = min(old_count + early_count, len(files), retention.files_per_round_max)
    return Expired(count, max(0, count - old_count))


class Sighting(NamedTuple):
    """The input of a decision: the oldest files and the usage of their disk."""

    files: Sequence[OldFile]
    space: DiskUsage


def _look(filesystem: FileSystem, root: Path, files: Sequence[tuple[int, int, Path]]) -> Sighting:
    """Examine files and disk; runs in a thread, because a disk may be slow."""
    old = [OldFile(start, size, filesystem.modified_ms(path)) for start, size, path in files]
    return Sighting(old, filesystem.disk_space(root))


#: Both kinds of units begin with the physical offset.
_PHYSICAL_BYTES: Final = 8


class QueueSearch(NamedTuple):
    """The written units in the places [low, high), in which a thread searches for the first message."""

    directory: Path
    file_size: int
    unit_bytes: int
    low: int
    high: int


def _search(queue: ConsumeQueue) -> QueueSearch:
    segments = queue.segments
    low = queue.place_of(queue.min_offset)
    return QueueSearch(segments.directory, segments.file_size, queue.unit_bytes, low, queue.written)


def _find_beginnings(filesystem: FileSystem, searches: Sequence[QueueSearch], physical_min: int) -> list[int]:
    return [_find_beginning(filesystem, search, physical_min) for search in searches]


def _find_beginning(filesystem: FileSystem, search: QueueSearch, physical_min: int) -> int:
    """Return the place of the first unit whose record lies at or after a physical offset."""
    files: dict[int, int] = {}

    def is_there(place: int) -> bool:
        position = place * search.unit_bytes
        start = position - position % search.file_size
        if start not in files:
            files[start] = filesystem.open(search.directory / f"{start:0{NAME_DIGITS}d}")
        data = filesystem.pread(files[start], _PHYSICAL_BYTES, position - start)
        return len(data) < _PHYSICAL_BYTES or int.from_bytes(data, signed=True) >= physical_min

    try:
        if search.low < search.high and is_there(search.low):  # True for most queues.
            return search.low
        return bisect_left(range(search.high), True, search.low, key=is_there)
    except FileNotFoundError:  # The topic was deleted meanwhile.
        return search.low
    finally:
        for file in files.values():
            filesystem.close(file)


def _remove_files(
    filesystem: FileSystem, point: Path, of_log: Sequence[Path], of_queues: Sequence[Path]
) -> int:
    """Remove files; return how many of the log's, oldest first, are durably removed.

    point: the file of the recovery point, which is flushed first. A recovery from an older point would cut
    units that can no longer be rebuilt, and reuse their numbers. Raises SyncFailed.
    """
    run_flush(filesystem, FlushPlan(paths=(point,)))
    removed = 0
    for path in of_log:
        try:
            filesystem.unlink(path)
            filesystem.sync_directory(path.parent)
        except OSError as failed:
            log.error("an old file cannot be removed; tried again", path=str(path), reason=str(failed))
            break
        removed += 1
    for path in of_queues:
        try:
            filesystem.unlink(path)
        except OSError as failed:
            log.error("an old file cannot be removed", path=str(path), reason=str(failed))
    return removed


#: Ours: the maximum age of a measurement; CleanCommitLogService measures every 10 s.
LOOK_MS: Final = 1_000


class DiskSpace:
    """Measures the fullest disk on demand, at most every LOOK_MS. disks: a directory on each disk."""

    def __init__(self, filesystem: FileSystem, disks: Sequence[Path], warning_percent: int) -> None:
        self._refusal: str | None = None
        self._looked_ms: MonotonicMs | None = None
        self._filesystem = filesystem
        self._disks = disks
        self._warning_percent = warning_percent

    def refusal(self, now_ms: MonotonicMs) -> str | None:
        """Return the refusal for producers; None while there is room."""
        if self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self._look()
        return self._refusal

    def _look(self) -> None:
        try:
            used, fullest = max((self._filesystem.used_percent(disk), disk) for disk in self._disks)
        except OSError as error:
            log.warning(
                "free disk space cannot be determined", paths=list(map(str, self._disks)), reason=str(error)
            )
            return
        was_refused = self._refusal is not None
        if used <= self._warning_percent:
            self._refusal = None
            if was_refused:
                log.warning("sends are accepted again: the disk has free space", used_percent=f"{used:.1f}")
            return
        self._refusal = (
            f"the disk with {fullest} is {used:.1f} % full: sends are refused from"
            f" {self._warning_percent} % on (diskSpaceWarningLevelRatio); consumers continue while"
            " there is room for their commits; free space"
        )
        if not was_refused:
            log.error("sends are refused: the disk is full", used_percent=f"{used:.1f}")
