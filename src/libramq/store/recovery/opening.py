"""The opening of a store: detects whether the store was closed, killed or written by another broker, or has
lost the log's first files, and recovers accordingly; on a full disk it opens read-only.

        no `abort`              closed: everything is on the disk, and the queues determine the log's end
        `abort` with our mark   killed under LibraMQ: the recovery point tells what was on the disk
        any other `abort`       another broker wrote last: nothing is known, the whole log is read

This opening's recovery point and then the mark are on the disk before anything else changes. If an operator
must decide first, a closed store stays closed.
"""

from pathlib import Path

from libramq.clock import Clock
from libramq.errors import StoreDamaged, StoreError
from libramq.filesystem import NO_SPACE, FileSystem
from libramq.logs import get_logger
from libramq.store.checkpoint import UNKNOWN, RecoveryPoint, deletions_end, lost_before
from libramq.store.config import StoreConfig
from libramq.store.deletions import Deletions
from libramq.store.flush import RecoveryPointWriter
from libramq.store.log.commit_log import CommitLog
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.recovery.kept_aside import keep_aside
from libramq.store.recovery.lost_units import restore_lost_ends, restore_lost_units
from libramq.store.recovery.recovery import (
    Beginning,
    RecoveryReport,
    begin_after_crash,
    begin_after_stop,
    face_lost_files,
    recover,
)

log = get_logger(__name__)

ABORT = "abort"


class StoreOpening:
    """One opening of a locked directory."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        clock: Clock,
        log_: CommitLog,
        queues: ConsumeQueueTable,
        points: RecoveryPointWriter,
        deletions: Deletions,
        process_id: int,
    ) -> None:
        self._config = config
        self._filesystem = filesystem
        self._now_ms = int(clock.wall_ms())
        self._log = log_
        self._queues = queues
        self._points = points
        self._deletions = deletions
        self._process_id = process_id
        self._is_marked = False

    def run(self) -> RecoveryReport:
        """Recover the store; raises StoreDamaged if an operator must decide first."""
        abort = self._config.root / ABORT
        abort_text = self._filesystem.read_text(abort)
        clean = abort_text is None
        point = self._points.file.load()
        trusted = point if abort_text is None or (point and point.is_of(abort_text)) else None
        # Written before files are repaired, so that after a kill here the next opening knows as much.
        if not clean:
            self._mark(trusted or (point or RecoveryPoint()).next_generation(self._now_ms), abort)
        self._deletions.load(end=deletions_end(point, abort_text))
        self._queues.removal.remove_left()
        self._log.segments.load(clean=clean)
        self._queues.load(clean=clean, physical_min=self._log.min_offset)
        self._delete_queues()
        restore_lost_units(self._log, self._queues, self._deletions)
        begin = begin_after_stop if clean else begin_after_crash
        found = begin(self._log, self._queues, trusted)
        beginning = face_lost_files(self._log, self._queues, found, self._config.damaged)
        self._compare_beginning(trusted, found.known_end)
        lost = self._lost_ends(found, trusted, clean=clean) if beginning is found else []
        if clean:
            begins = min([beginning.start, *(queue.last_physical_end for queue in lost)])
            start = (point or RecoveryPoint()).next_generation(
                self._now_ms, flushed=beginning.known_end, dispatched=begins
            )
            self._mark(start, abort)
        known_end = beginning.known_end
        if lost and restore_lost_ends(self._log, self._queues, self._deletions, known_end, lost):
            beginning = begin(self._log, self._queues, trusted)
            if not beginning.lacks_units:
                log.warning("the last files of consume queues were lost; they are built from the commit log")
        self._explain(beginning, clean=clean, trusted=trusted)
        try:
            report = self._recover(beginning, clean=clean)
        except StoreDamaged:
            if clean:
                self._filesystem.unlink(abort)
            raise
        self._deletions.bound(first=self._log.min_offset, end=self._log.end)
        self._deletions.save()
        self._points.log_begins(self._log.min_offset if self._log.segments.starts else UNKNOWN)
        return report

    def _lost_ends(self, found: Beginning, point: RecoveryPoint | None, *, clean: bool) -> list[ConsumeQueue]:
        """Return the queues that may have lost their last files."""
        if found.lacks_units and point is not None:
            return [queue for queue in self._queues if queue.last_physical_end]
        if clean and (point is None or found.known_end > point.flushed):  # Another broker wrote last.
            lost = [queue for queue in self._queues if queue.may_lack_end]
            if lost:  # The search takes some 6 µs per record.
                begin = min(queue.last_physical_end for queue in lost)
                log.info("the log is searched for lost ends of queues", queues=len(lost), begin=begin)
            return lost
        return []

    def _compare_beginning(self, point: RecoveryPoint | None, known_end: int) -> None:
        """Log a warning if files at the start of the log are missing."""
        if point is None or not self._log.segments.starts:
            return
        lost = lost_before(point, self._log.min_offset, known_end)
        if lost:
            log.warning(
                "the first files of the commit log were lost, and their messages with them",
                bytes=lost,
                began_at=point.begins,
                begins_at=self._log.min_offset,
            )

    def _delete_queues(self) -> None:
        """Remove the queues of deleted topics that a power cut brought back."""
        for queue in list(self._queues):
            if 0 < queue.last_physical_end <= self._deletions.end_of(queue.topic):
                self._queues.delete(queue)

    def _recover(self, beginning: Beginning, *, clean: bool) -> RecoveryReport:
        if not self._log.segments.starts:
            self._queues.delete_all()
            return RecoveryReport(clean=clean)
        return recover(
            self._log,
            self._queues,
            beginning,
            clean=clean,
            deletions=self._deletions,
            damaged=self._config.damaged,
            before_cut=lambda end: 0 if clean and end == beginning.known_end else self._cut(end, beginning),
        )

    def set_mark(self) -> bool:
        """Set the mark of this opening if missing; return whether it is set. Nothing is stored without it."""
        if not self._is_marked:
            self._mark(self._points.point, self._config.root / ABORT)
        return self._is_marked and (not self._deletions.is_stale or self._deletions.save())

    def _mark(self, point: RecoveryPoint, abort: Path) -> None:
        try:
            self._points.put(point)
            self._filesystem.replace_text(abort, f"{self._process_id}\n{point.mark}\n", backup=False)
            self._is_marked = True
        except OSError as failed:  # The store can still be read; the previous mark stays.
            if failed.errno not in NO_SPACE:
                raise
            log.error("the disk is full: the store is open read-only", reason=str(failed))

    def _cut(self, end: int, beginning: Beginning) -> int:
        """Keep aside the data after the end; if it was on the disk once, lower the recovery point first."""
        is_torn = end >= beginning.protected
        size, path = 0, None
        try:
            size, path = keep_aside(
                self._filesystem, self._config.root, self._log.segments, end, is_torn=is_torn
            )
        except OSError as failed:
            if not is_torn:
                raise StoreError(
                    f"data that --damaged=cut removes cannot be kept aside in {self._config.root}: {failed}"
                ) from failed
            log.warning(
                "the torn end of the commit log could not be saved before cutting it off", reason=str(failed)
            )
        if path is not None:
            log.warning("the end of the commit log was cut off", offset=end, size=size, kept=str(path))
        if not is_torn:
            self._points.cut(end)
        return size

    def _explain(self, beginning: Beginning, *, clean: bool, trusted: RecoveryPoint | None) -> None:
        if not clean and trusted is None and self._log.segments.starts:
            log.warning(
                "the whole commit log is read: the store was not closed, and has no libra.checkpoint of the "
                "broker that was the last to open it",
                root=str(self._config.root),
            )
        elif beginning.lacks_units:
            log.warning(
                "consume queues were lost; all of them are built from the commit log",
                root=str(self._config.root),
            )
