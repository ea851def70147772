"""The flush: what is to reach the disk, when, and what is known to have reached it.

The event loop makes a plan, a thread carries it out (`run_flush`), the event loop completes it. The thread
opens its own descriptors: fsync concerns the file, whoever wrote it, and the loop may close its own
meanwhile.

    commit log       ASYNC_FLUSH: every 500 ms if 4 pages are dirty, every 10 s anyway · SYNC_FLUSH: at once
    consume queues   written every 1 s, flushed from 2 pages on, all of them every 60 s with the checkpoint

Upstream: store/CommitLog.FlushManager, DefaultMessageStore.FlushConsumeQueueService.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from libramq.clock import MonotonicMs, WallMs
from libramq.filesystem import FileSystem
from libramq.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from libramq.store.commit_log import CommitLog
from libramq.store.config import PAGE_BYTES, FlushDiskType, StoreConfig
from libramq.store.consume_queue import ConsumeQueue
from libramq.store.consume_queue_table import ConsumeQueueTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    """What a flush makes durable.

    commit_log_end: the log up to there. queues: the units of these queues up to a number. checkpoint: what
    may be said afterwards; None while some units are not covered.
    """

    paths: tuple[Path, ...]
    directories: tuple[Path, ...]
    commit_log_end: int
    queues: tuple[tuple[ConsumeQueue, int], ...]
    checkpoint: Checkpoint | None


def run_flush(filesystem: FileSystem, plan: FlushPlan) -> None:
    """Do it; may be called in a thread. An OSError means that nothing may be taken for durable any more."""
    for path in plan.paths:
        try:
            file = filesystem.open(path, write=True)
        except FileNotFoundError:  # Its topic was deleted meanwhile.
            continue
        try:
            filesystem.fsync(file)
        finally:
            filesystem.close(file)
    for directory in plan.directories:
        if filesystem.exists(directory):
            filesystem.sync_directory(directory)


class Flusher:
    """Decides what to flush, and keeps the checkpoint."""

    def __init__(
        self, config: StoreConfig, filesystem: FileSystem, log: CommitLog, queues: ConsumeQueueTable
    ) -> None:
        self.checkpoint = Checkpoint()
        self.write_failure: OSError | None = None
        self._config = config
        self._filesystem = filesystem
        self._path = config.root / "checkpoint"
        self._log = log
        self._queues = queues
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._log_flush_ms = self._log_thorough_ms = MonotonicMs(0)
        self._queue_flush_ms = self._queue_thorough_ms = MonotonicMs(0)

    def load_checkpoint(self) -> Checkpoint:
        """Read what was known when the store was last open."""
        self.checkpoint = read_checkpoint(self._filesystem, self._path)
        return self.checkpoint

    def save_checkpoint(self) -> None:
        """Write it and wait for the disk."""
        write_checkpoint(self._filesystem, self._path, self.checkpoint, sync=True)

    def plan(self, now_ms: MonotonicMs, store_timestamp_ms: WallMs, *, thorough: bool) -> FlushPlan | None:
        """What is due at a monotonic time; writes out units first (`write_failure` where it cannot)."""
        config, log = self._config, self._log
        log_due = thorough or self._log_due(now_ms)
        since_thorough_ms = now_ms - self._queue_thorough_ms
        all_queues = thorough or since_thorough_ms >= config.flush_consume_queue_thorough_interval_ms
        since_flush_ms = now_ms - self._queue_flush_ms
        queues: list[ConsumeQueue] = []
        if all_queues or since_flush_ms >= config.flush_interval_consume_queue_ms:
            self._queue_flush_ms = now_ms
            self._write_out()
            all_queues = all_queues and self.write_failure is None
            least = 0 if all_queues else config.flush_consume_queue_least_pages * PAGE_BYTES
            queues = [queue for queue in self._queues.unsynced if queue.unsynced_bytes >= least]
        if all_queues:
            self._queue_thorough_ms = now_ms
        if log_due:
            self._log_flush_ms = now_ms
        covers_log = log_due or log.flushed == log.end
        if log_due:
            paths = log.segments.paths_between(log.flushed, log.end)
            directories = log.segments.take_new_directories()
        else:
            paths, directories = [], []
        for queue in queues:
            paths += queue.unsynced_paths()
            directories += queue.segments.take_new_directories()
        checkpoint = None
        if all_queues and covers_log:
            checkpoint = self.checkpoint._replace(
                commit_log_timestamp_ms=store_timestamp_ms, consume_queue_timestamp_ms=store_timestamp_ms
            )
        if not paths and not directories and checkpoint in (None, self.checkpoint):
            return None
        return FlushPlan(
            paths=tuple(paths),
            directories=tuple(dict.fromkeys(directories)),
            commit_log_end=log.end if log_due else log.flushed,
            queues=tuple((queue, queue.written) for queue in queues),
            checkpoint=checkpoint,
        )

    def complete(self, plan: FlushPlan) -> None:
        """A plan was carried out."""
        self._log.flushed = max(self._log.flushed, plan.commit_log_end)
        for queue, written in plan.queues:
            queue.synced = max(queue.synced, min(written, queue.written))
            if not queue.unsynced_bytes:
                self._queues.unsynced.pop(queue, None)
        if plan.checkpoint is not None:
            # On a full disk the old one stays: recovery takes longer and loses nothing.
            with contextlib.suppress(OSError):
                write_checkpoint(self._filesystem, self._path, plan.checkpoint)
                self.checkpoint = plan.checkpoint

    def _write_out(self) -> None:
        self.write_failure = None
        try:
            self._queues.write_out()
        except OSError as failed:
            self.write_failure = failed

    def _log_due(self, now_ms: MonotonicMs) -> bool:
        config, log = self._config, self._log
        if log.end == log.flushed:
            self._log_thorough_ms = now_ms
            return False
        if self._is_sync:
            return True
        if now_ms - self._log_thorough_ms >= config.flush_commit_log_thorough_interval_ms:
            self._log_thorough_ms = now_ms
            return True
        dirty = log.end // PAGE_BYTES - log.flushed // PAGE_BYTES
        is_time = now_ms - self._log_flush_ms >= config.flush_interval_commit_log_ms
        return is_time and dirty >= config.flush_commit_log_least_pages
