"""Durability: when the store is to be flushed, and who is answered when it was.

    when_durable ─► wanted ─► plan ─► run_flush, on a thread ─► done | failed ─► answers, in groups

The log and the consume queues have a thread each, with one flush at a time: who waits for the log does not
wait for queues. Upstream: CommitLog.GroupCommitService, FlushRealTimeService.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from libramq.clock import Clock, MonotonicMs
from libramq.errors import SyncFailed
from libramq.logs import get_logger
from libramq.store.config import FlushDiskType
from libramq.store.flush import FlushPlan
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: How often a plan is asked for under ASYNC_FLUSH; the plan knows what is due.
POLL_MS: Final = 100
#: MessageStoreConfig.syncFlushTimeout.
SYNC_FLUSH_TIMEOUT_MS: Final = 5_000


class Durability:
    """Who waits for the disk. `wanted` is called when a flush should begin at once."""

    def __init__(self, store: MessageStore, clock: Clock, wanted: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wanted = wanted
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._is_broken = False
        self._waiting: deque[tuple[int, MonotonicMs, Callable[[bool], None]]] = deque()

    def when_durable(self, physical_offset: int, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True when the log is on disk up to an offset, with False when that fails."""
        if physical_offset <= self._store.flushed_offset:
            answer(True)
            return
        deadline_ms = self._clock.monotonic_ms() + SYNC_FLUSH_TIMEOUT_MS
        self._waiting.append((physical_offset, deadline_ms, answer))
        self._wanted()

    def appended(self) -> None:
        """Messages were stored; under SYNC_FLUSH they should be on disk soon."""
        if self._is_sync:
            self._wanted()

    def give_up(self) -> None:
        """Answer those whose time is up; all of them when the disk is broken."""
        now_ms = self._clock.monotonic_ms()
        while self._waiting and (self._is_broken or self._waiting[0][1] <= now_ms):
            self._waiting.popleft()[2](False)

    def plan(self) -> FlushPlan | None:
        """Return the flush of the log that is due: `run_flush` it, then call `done` or `failed`.

        Raises OSError where its files cannot be opened now.
        """
        plan = self._store.plan_log_flush(self._clock.monotonic_ms())
        if plan is None:
            self.give_up()
        return plan

    def plan_queues(self) -> FlushPlan | None:
        """Return the flush of consume queues that is due; as `plan`."""
        return self._store.plan_queue_flush(self._clock.monotonic_ms())

    def done(self, plan: FlushPlan) -> None:
        """A flush was carried out."""
        try:
            self._store.complete_flush(plan)
        finally:
            self._answer()

    def failed(self, error: SyncFailed) -> None:
        """A flush failed: nothing can be promised any more."""
        log.error("the disk refuses to flush; the store takes no more messages", reason=str(error))
        self._store.fail_flush(error)
        self._is_broken = True
        self.give_up()

    def _answer(self) -> None:
        flushed = self._store.flushed_offset
        while self._waiting and self._waiting[0][0] <= flushed:
            self._waiting.popleft()[2](True)
