"""The flush of the log and, in rounds, of the queues: its triggers (pages, intervals), the plans that a
thread runs, and the data that is durable afterwards.

The event loop makes a plan, a thread runs it (`run_flush`), and the event loop completes it. The commit log
and the consume queues have separate plans, so that a flush of the log never waits for ten thousand queues.
The log's files are flushed through descriptors that stay open. The thread opens all other files itself: fsync
applies to the file through any descriptor, and the loop may close its own.

    commit log       ASYNC_FLUSH: every 500 ms if 4 pages are dirty, every 10 s anyway · SYNC_FLUSH: at once
    consume queues   written every 1 s, flushed from 2 pages on, all of them every 60 s with the checkpoint

A round over the queues is split into slices. The first unit of a queue creates directories and a file, which
blocks the event loop for 0.1 ms or more: 50,000 new queues took 20 seconds. So a plan covers one slice
(queue_slice_cost). A thorough round flushes all queues; afterwards recovery may begin at the log's end as it
was when the round began.

Upstream: store/CommitLog.FlushManager, DefaultMessageStore.FlushConsumeQueueService.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from libramq.clock import MonotonicMs, WallMs
from libramq.errors import SyncFailed
from libramq.filesystem import NO_DESCRIPTORS, FileSystem, opened
from libramq.store.checkpoint import (
    UNKNOWN,
    Checkpoint,
    RecoveryPoint,
    RecoveryPointFile,
    read_checkpoint,
    write_checkpoint,
)
from libramq.store.config import PAGE_BYTES, FlushDiskType, StoreConfig
from libramq.store.deletions import Deletions
from libramq.store.log.commit_log import CommitLog
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable

#: Ours: fewer files are not worth threads; the flush of queues each second usually has a few.
PATHS_MIN: Final = 8


class FlushPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a flush makes durable.

    files: open descriptors of the commit log. commit_log_end: the log is durable up to here afterwards.
    log_bytes: the bytes of the log that the disk has to write, zeroes included. queues: each queue and the
    end of its units that become durable. checkpoint: may be written once the log is flushed up to
    `checkpoint_end`; None while some units are not covered. units: the unit count of all queues at that end.
    generation: the number of times the log had been cut when the plan was made.
    """

    files: tuple[int, ...] = ()
    paths: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    commit_log_end: int = 0
    log_bytes: int = 0
    queues: tuple[tuple[ConsumeQueue, int], ...] = ()
    checkpoint: Checkpoint | None = None
    checkpoint_end: int = 0
    units: int = UNKNOWN
    generation: int = 0

    @property
    def is_of_log_alone(self) -> bool:
        """Return whether the plan flushes only files of the commit log."""
        return bool(self.files) and not (
            self.paths or self.directories or self.queues or self.checkpoint is not None
        )


def run_flush(filesystem: FileSystem, plan: FlushPlan) -> None:
    """Run a plan; may be called in a thread.

    Raises SyncFailed: nothing counts as durable any more. Raises OSError if a file cannot be opened; the same
    plan may be run again.
    """
    for file in plan.files:
        _sync(filesystem, file)
    _each(partial(_sync_path, filesystem), plan.paths, filesystem.flushes_at_once)
    _each(partial(_sync_directory, filesystem), plan.directories, filesystem.flushes_at_once)


def _each(sync: Callable[[Path], None], paths: Sequence[Path], at_once: int) -> None:
    """Flush files, several at once. After trying all, raise SyncFailed in preference to OSError."""
    if at_once == 1 or len(paths) < PATHS_MIN:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(at_once, len(paths)), thread_name_prefix="libra-flush") as pool:
        flushes = [pool.submit(sync, path) for path in paths]
    failures = [failure for flush in flushes if (failure := flush.exception()) is not None]
    # Files that cannot be opened are flushed again later. A failed fsync is reported only once, and is final.
    for failure in sorted(failures, key=lambda failure: not isinstance(failure, SyncFailed)):
        raise failure


def _sync_path(filesystem: FileSystem, path: Path) -> None:
    # The topic of a missing file was deleted meanwhile.
    with contextlib.suppress(FileNotFoundError), opened(filesystem, path, write=True) as file:
        _sync(filesystem, file, path)


def _sync_directory(filesystem: FileSystem, directory: Path) -> None:
    try:
        filesystem.sync_directory(directory)
    except FileNotFoundError:  # Its topic was deleted meanwhile.
        return
    except OSError as failed:
        if failed.errno in NO_DESCRIPTORS:
            raise
        raise SyncFailed(f"{directory} cannot be flushed: {failed}") from failed


def _sync(filesystem: FileSystem, file: int, path: Path | None = None) -> None:
    try:
        filesystem.fsync(file)
    except OSError as failed:
        raise SyncFailed(f"{path or 'the commit log'} cannot be flushed: {failed}") from failed


class Flusher:
    """Decides what to flush, and keeps the checkpoint."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        log: CommitLog,
        queues: ConsumeQueueTable,
        deletions: Deletions,
    ) -> None:
        self.checkpoint = Checkpoint()
        self.write_failure: OSError | None = None
        self.wanted_end = 0  # The next plan flushes the log up to here.
        self._config = config
        self._filesystem = filesystem
        self._path = config.root / "checkpoint"
        self._log = log
        self._queues = queues
        self._deletions = deletions
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._log_flush_ms = self._log_thorough_ms = MonotonicMs(0)
        self._queue_flush_ms = self._queue_thorough_ms = MonotonicMs(0)
        self._round: QueueRound | None = None
        #: The checkpoint to write once the log is flushed up to the offset before it.
        self._due_checkpoint: tuple[int, Checkpoint] | None = None
        self._generation = 0

    def load_checkpoint(self) -> Checkpoint:
        """Read the checkpoint of the last opening."""
        self.checkpoint = read_checkpoint(self._filesystem, self._path)
        return self.checkpoint

    def save_checkpoint(self) -> None:
        """Write the checkpoint and wait for the disk."""
        write_checkpoint(self._filesystem, self._path, self.checkpoint, sync=True)

    def plan_log(self, now_ms: MonotonicMs, *, forced: bool = False) -> FlushPlan | None:
        """Return the due flush of the log at a monotonic time; raises OSError if the log cannot be opened.

        The plan includes notes of deleted topics, because later records are valid only together with them.
        """
        log = self._log
        if not self._log_due(now_ms) and not forced and not self._deletions.is_dirty:
            return None
        self._log_flush_ms = now_ms
        files = log.hold_unflushed() if log.end > log.flushed else []
        directories = log.segments.take_new_directories()
        paths = self._deletions.take_unsynced()
        if not files and not directories and not paths:
            return None
        return FlushPlan(
            files=tuple(files),
            paths=paths,
            directories=(*directories, *(path.parent for path in paths)),
            commit_log_end=log.end,
            log_bytes=log.unflushed_bytes,
            generation=self._generation,
        )

    def plan_queues(
        self,
        now_ms: MonotonicMs,
        store_timestamp_ms: WallMs,
        *,
        thorough: bool = False,
        cost_max: int | None = None,
    ) -> FlushPlan | None:
        """Return the due flush of the queues, after writing out their units (`write_failure` if that fails).

        cost_max: the limit of one slice, see `QueueRound`; the rest is due with the next call.
        """
        self.write_failure = None
        if thorough or self._round is None:
            self._round = self._due_round(now_ms, store_timestamp_ms, thorough=thorough)
        current = self._round
        if current is None:
            return None
        try:
            queues = current.advance(cost_max)
        except OSError as failed:
            self.write_failure = failed
            self._round = None
            return None
        checkpoint = None
        if current.is_over:
            self._round = None
            if current.checkpoint is not None:
                self._queue_thorough_ms = now_ms
                checkpoint = current.checkpoint
        if not queues and checkpoint in (None, self.checkpoint):
            return None
        directories = [name for queue in queues for name in queue.segments.take_new_directories()]
        return FlushPlan(
            paths=tuple(path for queue in queues for path in queue.unsynced_paths()),
            directories=tuple(dict.fromkeys(directories)),
            queues=tuple((queue, queue.written) for queue in queues),
            checkpoint=checkpoint,
            checkpoint_end=current.end,
            units=current.units,
            generation=self._generation,
        )

    @property
    def is_writing_queues(self) -> bool:
        """Return whether a round over the queues is under way, so that its next slice is due."""
        return self._round is not None

    def queues_deleted(self) -> None:
        """Forget the unit count from the beginning of the round."""
        if self._round is not None:
            self._round.units = UNKNOWN

    def _due_round(
        self, now_ms: MonotonicMs, store_timestamp_ms: WallMs, *, thorough: bool
    ) -> "QueueRound | None":
        config = self._config
        since_ms = now_ms - self._queue_thorough_ms
        if thorough or since_ms >= config.flush_consume_queue_thorough_interval_ms:
            checkpoint = self.checkpoint._replace(
                commit_log_timestamp_ms=store_timestamp_ms, consume_queue_timestamp_ms=store_timestamp_ms
            )
            self._queue_flush_ms = now_ms
            return QueueRound(self._queues, least_bytes=0, checkpoint=checkpoint, end=self._log.end)
        if now_ms - self._queue_flush_ms < config.flush_interval_consume_queue_ms:
            return None
        self._queue_flush_ms = now_ms
        return QueueRound(self._queues, least_bytes=config.flush_consume_queue_least_pages * PAGE_BYTES)

    def flush_everything(self, store_timestamp_ms: WallMs) -> None:
        """Flush everything now and wait for the disk; raises SyncFailed or OSError.

        The log comes first, so that it is durable even if the file of a queue cannot be opened.
        """
        self._flush(self.plan_log(MonotonicMs(0), forced=True))
        self._flush(self.plan_queues(MonotonicMs(0), store_timestamp_ms, thorough=True))
        if self.write_failure is not None:
            raise self.write_failure

    def _flush(self, plan: FlushPlan | None) -> None:
        if plan is not None:
            run_flush(self._filesystem, plan)
            self.complete(plan)

    def sync_resized(self) -> None:
        """Flush the sizes of truncated files and wait for the disk."""
        paths = [path for queue in self._queues for path in queue.segments.take_resized()]
        run_flush(self._filesystem, FlushPlan(paths=(*paths, *self._log.segments.take_resized())))

    def forget_plans(self) -> None:
        """Make the plans under way void: the log was cut and continues with other bytes."""
        self._generation += 1
        self._due_checkpoint = self._round = None

    def complete(self, plan: FlushPlan) -> None:
        """Handle a plan that was run."""
        if plan.generation != self._generation:
            return
        log = self._log
        if plan.commit_log_end > log.flushed:
            log.flushed = plan.commit_log_end
            if log.holds_several:
                with contextlib.suppress(OSError):  # On failure the files held so far stay held.
                    log.hold_unflushed()
        for queue, written in plan.queues:
            queue.synced = max(queue.synced, min(written, queue.written))
            if not queue.unsynced_bytes:
                self._queues.unsynced.pop(queue, None)
        if plan.checkpoint is not None:
            self._due_checkpoint = (plan.checkpoint_end, plan.checkpoint)
        if self._due_checkpoint is not None and self._due_checkpoint[0] <= log.flushed:
            checkpoint, self._due_checkpoint = self._due_checkpoint[1], None
            # On a full disk the old checkpoint stays: recovery takes longer but loses nothing.
            with contextlib.suppress(OSError):
                write_checkpoint(self._filesystem, self._path, checkpoint)
                self.checkpoint = checkpoint

    def _log_due(self, now_ms: MonotonicMs) -> bool:
        config, log = self._config, self._log
        if log.end == log.flushed:
            self._log_thorough_ms = now_ms
            return False
        if self._is_sync or log.flushed < self.wanted_end:
            return True
        if now_ms - self._log_thorough_ms >= config.flush_commit_log_thorough_interval_ms:
            self._log_thorough_ms = now_ms
            return True
        dirty = log.end // PAGE_BYTES - log.flushed // PAGE_BYTES
        is_time = now_ms - self._log_flush_ms >= config.flush_interval_commit_log_ms
        return is_time and dirty >= config.flush_commit_log_least_pages


class RecoveryPointWriter:
    """Writes the recovery point after each flush that moved it.

    Nothing waits for this write: after a power cut the point may be as old as the last queue flush but one.
    """

    def __init__(self, filesystem: FileSystem, root: Path, queues: ConsumeQueueTable) -> None:
        self.file = RecoveryPointFile(filesystem, root)
        self._queues = queues
        self.point = RecoveryPoint()
        self._planned: FlushPlan | None = None
        #: The queues are flushed for the log up to this offset, with this many units; the log is not yet.
        self._due: tuple[int, int] | None = None

    def put(self, point: RecoveryPoint) -> None:
        """Replace the point and wait for the disk; raises OSError if it refuses."""
        self.point = point
        self.file.save(point, sync=True)

    def planned(self, plan: FlushPlan) -> FlushPlan:
        """Add the point's file to a plan that flushes queues, about once a second.

        If the plan completes a thorough round, remember it: its units become durable with it.
        """
        if plan.queues or plan.checkpoint is not None:
            plan = msgspec.structs.replace(plan, paths=(*plan.paths, self.file.path))
        if plan.checkpoint is not None:
            self._planned = plan
        return plan

    def flushed(self, plan: FlushPlan, log_flushed: int) -> None:
        """Handle a completed plan; log_flushed: the log's end on the disk now."""
        if self._planned is plan:
            self._due, self._planned = (plan.checkpoint_end, plan.units), None
        point = self.point._replace(flushed=max(self.point.flushed, log_flushed))
        if self._due is not None and self._due[0] <= log_flushed:
            point = point._replace(dispatched=self._due[0], units=self._due[1])
            self._due = None
        self._write(point)

    def all_flushed(self, end: int) -> None:
        """Note that log and queues are on the disk up to an offset, and wait for the point to be written."""
        self._planned = self._due = None
        self.put(self.point._replace(flushed=end, dispatched=end, units=self._queues.count_units()))

    def queues_deleted(self, units: int) -> None:
        """Lower the expected unit count by the units of queues that were removed on purpose."""
        self._planned = self._due = None
        self._write(self.point._replace(units=max(self.point.units - units, UNKNOWN)))

    def log_begins(self, at: int) -> None:
        """Note the start of the log; a later start would mean lost files."""
        self._write(self.point._replace(begins=at))

    def cut(self, end: int) -> None:
        """Lower the point before the log is cut at `end`, and wait for the disk; OSError if it refuses."""
        self._planned = self._due = None
        point = self.point
        self.put(
            point._replace(
                flushed=min(point.flushed, end),
                dispatched=min(point.dispatched, end),
                units=UNKNOWN,
                begins=point.begins if point.begins < end else UNKNOWN,
            )
        )

    def _write(self, point: RecoveryPoint) -> None:
        if point != self.point:
            # On a full disk the old point stays: recovery takes longer but loses nothing. Only `begins` is
            # updated in memory, for the next point.
            try:
                self.file.save(point)
            except OSError:
                point = self.point._replace(begins=point.begins)
            self.point = point


#: Ours: a new file costs as much as this many writes, which take some 12 µs each.
NEW_FILE_COST: Final = 8


class QueueRound:
    """One round over the queues that had unwritten or unflushed units when it began.

    least_bytes: queues with fewer unsynced bytes are not flushed. checkpoint: may be written at the end of a
    thorough round. end, units: the log's end and the unit count when the round began.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        least_bytes: int,
        checkpoint: Checkpoint | None = None,
        end: int = 0,
    ) -> None:
        self.least_bytes = least_bytes
        self.checkpoint = checkpoint
        self.end = end
        self.units = UNKNOWN if checkpoint is None else queues.count_units()
        self._table = queues
        self._left = deque(queues.pending if checkpoint is None else queues.pending | queues.unsynced)

    @property
    def is_over(self) -> bool:
        """Return whether every queue has had its turn."""
        return not self._left

    def advance(self, cost_max: int | None) -> list[ConsumeQueue]:
        """Write out queues and return the ones to flush. OSError if the disk refuses; the round is then void.

        cost_max: the cost at which to stop; None: run to the end of the round.
        """
        table, found, cost = self._table, [], 0
        while self._left and (cost_max is None or cost < cost_max):
            queue = self._left.popleft()
            if queue in table.pending:
                cost += NEW_FILE_COST if queue.needs_file else 1
                table.write_out_queue(queue)
            else:
                cost += 1
            if queue in table.unsynced and queue.unsynced_bytes >= self.least_bytes:
                found.append(queue)
        return found
