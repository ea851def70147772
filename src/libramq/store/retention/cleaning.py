"""The cleaning: old files of the commit log go, and with them what of the consume queues leads there.

    1. which files go is decided (`retention`)
    2. queues begin later, and then the log: pulls below hear so before a file is gone
    3. files are removed, once the recovery point behind them is on the disk: of the log oldest first, each
       for good before the next, so that a crash leaves no gap in it; then of the queues, where one is no harm

A cleaning is long work: threads look at files and remove them, and the store continues meanwhile.
Removed files stay readable where they are open.

Upstream: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from libramq.clock import Clock, WallMs
from libramq.filesystem import DiskUsage, FileSystem
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work, portions
from libramq.logs import get_logger
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import NAME_DIGITS
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.recovery.recovery_point_writer import RecoveryPointWriter
from libramq.store.retention.retention import OldFile, Retention, expired_files

log = get_logger(__name__)

#: Units begin with the physical offset, of either kind.
_PHYSICAL_BYTES: Final = 8


class Sighting(NamedTuple):
    """The input of a decision: the oldest files, and how full their disk is."""

    files: Sequence[OldFile]
    space: DiskUsage


class QueueSearch(NamedTuple):
    """The written units in the places [low, high), for a thread that looks where the messages begin."""

    directory: Path
    file_size: int
    unit_bytes: int
    low: int
    high: int


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
        #: Files that are none of the store's any more and are still there: of the log, of queues.
        self._left: list[Path] = []
        self._left_of_queues: list[Path] = []

    @property
    def may_find(self) -> bool:
        """Return whether there may be something to remove, now or later."""
        return len(self._log.segments.starts) > 1 or bool(self._left)

    def clean(self, retention: Retention, hour_of: Callable[[WallMs], int]) -> Work[int]:
        """Remove what has expired; the result is how many files of the log that were.

        hour_of: the hour of the broker's day. Raises OSError where the disk cannot be asked, SyncFailed where
        it does not flush.
        """
        if self._left or self._left_of_queues:  # They fill the disk still: nothing else goes for that.
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

    def clean_queues(self) -> Work[int]:
        """Remove files of queues whose messages lie before the log's beginning; the result is 0.

        A cleaning does so itself, but a kill may come before, or the disk refuse.
        """
        yield from self._begin_later(self._log.min_offset)
        yield from self._remove()
        return 0

    def _old_files(self, retention: Retention) -> list[tuple[int, int, Path]]:
        """Return the oldest files that no recovery begins in, nor where they end.

        Of the file after them something is on the disk, so a power cut leaves a log.
        """
        segments, needed_from = self._log.segments, self._points.point.dispatched
        starts = segments.starts[:-1][: retention.files_per_round_max]
        size = segments.file_size
        return [(start, size, segments.path(start)) for start in starts if start + size < needed_from]

    def _begin_later(self, physical_min: int) -> Work[int]:
        """Have the log begin at an offset: first its queues, then itself."""
        for queues in portions(list(self._queues)):
            searches = [_search(queue) for queue in queues]
            found = yield InThread(
                Thread.DISK, partial(_find_beginnings, self._filesystem, searches, physical_min)
            )
            for queue, search, place in zip(queues, searches, found, strict=True):
                if self._queues.get(queue.topic, queue.queue_id) is queue:  # Its topic is still there.
                    number = queue.offset_at(place)
                    if place >= search.high:  # Of what was not written yet the thread knew nothing.
                        queue.correct_min_offset(physical_min, number)
                    self._drop_before(queue, number)
        dropped = self._log.segments.drop_before(physical_min)
        self._left += dropped
        if dropped:
            self._points.log_begins(self._log.min_offset)
            log.info("old files of the commit log are deleted", count=len(dropped), log_begins=physical_min)
        return len(dropped)

    def _drop_before(self, queue: ConsumeQueue, number: int) -> None:
        queue.min_offset = max(queue.min_offset, number)
        dropped = queue.drop_files()
        if dropped:
            self._queues.being_cleaned[queue.segments.directory] = queue
            self._left_of_queues += dropped

    def _remove(self) -> Work[int]:
        """Remove files. Those of the log that cannot be are tried again with the next cleaning.

        Those of queues are not: a topic may be made again, and they do no harm.
        """
        of_queues, self._left_of_queues = self._left_of_queues, []
        try:
            point = self._points.path
            removed = yield InThread(
                Thread.DISK, partial(_remove_files, self._filesystem, point, self._left.copy(), of_queues)
            )
            del self._left[:removed]
            return int(removed)
        finally:
            self._queues.being_cleaned.clear()


def _look(filesystem: FileSystem, root: Path, files: Sequence[tuple[int, int, Path]]) -> Sighting:
    """Look at files and disk; done by a thread, because a disk may take its time to answer."""
    old = [OldFile(start, size, filesystem.modified_ms(path)) for start, size, path in files]
    return Sighting(old, filesystem.disk_space(root))


def _search(queue: ConsumeQueue) -> QueueSearch:
    segments = queue.segments
    low = queue.place_of(queue.min_offset)
    return QueueSearch(segments.directory, segments.file_size, queue.unit_bytes, low, queue.written)


def _find_beginnings(filesystem: FileSystem, searches: Sequence[QueueSearch], physical_min: int) -> list[int]:
    return [_find_beginning(filesystem, search, physical_min) for search in searches]


def _find_beginning(filesystem: FileSystem, search: QueueSearch, physical_min: int) -> int:
    """Return the first place of a unit whose record lies at an offset of the log or behind it."""
    low, high = search.low, search.high
    files: dict[int, int] = {}

    def is_before(place: int) -> bool:
        position = place * search.unit_bytes
        start = position - position % search.file_size
        if start not in files:
            files[start] = filesystem.open(search.directory / f"{start:0{NAME_DIGITS}d}")
        data = filesystem.pread(files[start], _PHYSICAL_BYTES, position - start)
        return len(data) == _PHYSICAL_BYTES and int.from_bytes(data, signed=True) < physical_min

    try:
        if low < high and not is_before(low):  # As of most queues.
            return low
        while low < high:
            middle = (low + high) // 2
            if is_before(middle):
                low = middle + 1
            else:
                high = middle
        return low
    except FileNotFoundError:  # Its topic was deleted meanwhile.
        return search.low
    finally:
        for file in files.values():
            filesystem.close(file)


def _remove_files(
    filesystem: FileSystem, point: Path, of_log: Sequence[Path], of_queues: Sequence[Path]
) -> int:
    """Remove files; return how many of the log's, oldest first, are gone for good.

    point: the file of the recovery point. A recovery from an older one would cut units that nothing is left
    to build from, and give their numbers out again. Raises SyncFailed.
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
