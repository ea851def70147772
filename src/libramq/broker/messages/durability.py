"""Durability: when the log is flushed (SYNC_FLUSH, ASYNC_FLUSH), on a thread or the loop, and which replies
wait for it, and for how long.

    ReplyWhenDurable ─► parked, by offset ─► plan ─► run_flush ─► done | failed ─► answers, in groups
                                                     on a thread, or on the loop while the disk is fast

The log and the consume queues have a lane each, with one flush at a time, so replies that wait for the log do
not wait for queues. A flush of the log begins after all ready events, so that all sends that have arrived
share it; at once if only one connection sends. Handing a flush to a thread costs as much as a fast disk
takes, because thread and loop are woken and contend for the interpreter. So brief flushes of the log run on
the loop (`runtime.asyncio_seams`).

Upstream: CommitLog.GroupCommitService, FlushRealTimeService.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from libramq.catalog.journal_sync import JournalSync
from libramq.clock import MonotonicMs
from libramq.errors import SyncFailed
from libramq.filesystem import FileSystem
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.purgatory import Gated, Missing
from libramq.logs import get_logger
from libramq.store.config import FlushDiskType
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: How often a plan is requested while data is not on the disk; the plan decides what is due.
POLL_MS: Final = 100
#: Ours: how often the existence of the store's directories is checked, even if nothing is written.
DIRECTORIES_MS: Final = 2_000
#: Ours: pause for other events between slices of the queues' flush, which take up to 10 ms each.
SLICE_PAUSE_MS: Final = 5
#: Ours: most bytes that the loop flushes by itself; 64 senders of 2 KiB bring half of them.
BRIEF_BYTES_MAX: Final = 256 << 10
#: Ours: after a slower flush, early writing is not requested: on a disk with a full queue, the loop would
#: wait for that request, too.
EARLY_MS_MAX: Final = 10
#: MessageStoreConfig.syncFlushTimeout.
SYNC_FLUSH_TIMEOUT_MS: Final = 5_000


class Lane:
    """Flushes of one kind, one at a time. plan: returns the due flush; done, failed: take the result.

    is_deferred: whether a flush begins only after all ready events. is_brief: whether a plan is small enough
    for the event loop's own thread (`Run.is_brief`).
    """

    def __init__(
        self,
        thread: Thread,
        filesystem: FileSystem,
        kernel: Kernel,
        *,
        plan: Callable[[], FlushPlan | None],
        done: Callable[[FlushPlan], None],
        failed: Callable[[SyncFailed], None],
        is_deferred: bool = False,
        is_brief: Callable[[FlushPlan], bool] = lambda _: False,
    ) -> None:
        self._is_deferred = is_deferred
        self._is_brief = is_brief
        self._will_begin = False
        self._thread = thread
        self._filesystem = filesystem
        self._effects = kernel.effects
        self._plan = plan
        self._done = done
        self._failed = failed
        self._clock = kernel.clock
        self._began_ms = MonotonicMs(0)
        #: Called with the duration of each flush, in milliseconds; None by default.
        self.observer: Callable[[int], None] | None = None
        self.is_running = self._is_wanted = self._is_postponed = False
        self._unfinished: FlushPlan | None = None

    def begin(self, *, gathers: bool = True) -> None:
        """Start a flush if one is due, after the flush under way. gathers: also after the ready events."""
        if self._is_postponed:  # The poll tries again, not every event that follows from the failure.
            return
        if self.is_running or not (self._is_deferred and gathers):
            self.begin_at_once()
        elif not self._will_begin:
            self._will_begin = True
            self._effects.defer(self._begin_deferred)

    def _begin_deferred(self) -> None:
        self._will_begin = False
        self.begin_at_once()

    def begin_at_once(self) -> None:
        """Start a flush if one is due, after the flush under way, but without waiting for ready events."""
        if self.is_running:
            self._is_wanted = True
            return
        plan = self._unfinished
        if plan is None:
            try:
                plan = self._plan()
            except OSError as error:
                self._postpone(error)
        if plan is not None:
            self.is_running, self._began_ms = True, self._clock.monotonic_ms()
            work = partial(run_flush, self._filesystem, plan)
            done, is_brief = partial(self._ended, plan), self._is_brief(plan)
            self._effects.run(self._thread, work, done, is_brief=is_brief)

    def _ended(self, plan: FlushPlan, result: object) -> None:
        self.is_running = False
        if self.observer is not None:
            self.observer(self._clock.monotonic_ms() - self._began_ms)
        if isinstance(result, SyncFailed):
            self._failed(result)
        # Perhaps descriptors or threads ran out. Run the same plan again: another would lack its journals and
        # directories, and without flushes no message would ever be safe again.
        elif isinstance(result, BaseException):
            self._unfinished = plan
            self._postpone(result)
        else:
            self._unfinished, self._is_postponed = None, False
            self._done(plan)
            if self._is_wanted:
                self._is_wanted = False
                self.begin()

    def _postpone(self, error: BaseException) -> None:
        if not self._is_postponed:
            exc_info = None if isinstance(error, OSError) else error
            log.error("a flush could not be run; retrying", reason=str(error), exc_info=exc_info)
        self._is_postponed = True


class Durability:
    """Flushes the store, and answers waiting replies; a `kernel.purgatory.Gate`."""

    def __init__(
        self,
        store: MessageStore,
        filesystem: FileSystem,
        kernel: Kernel,
        journals: JournalSync | None = None,
    ) -> None:
        self._store = store
        self._journals = journals or JournalSync()
        self._journals_through = 0
        self._clock = kernel.clock
        self._purgatory = kernel.purgatory
        self._is_broken = False
        self._poll = kernel.deadlines.new(self._look)
        self._directories = kernel.deadlines.new(self._look_for_directories)
        self._directories.at(self._clock.monotonic_ms() + DIRECTORIES_MS)
        lane = partial(Lane, filesystem=filesystem, kernel=kernel, failed=self._failed)
        self._log = lane(
            Thread.FLUSH,
            plan=self._plan_log,
            done=self._log_done,
            is_deferred=True,
            is_brief=self._is_brief,
        )
        self._queues = lane(
            Thread.DISK,
            plan=lambda: self._store.plan_queue_flush(self._clock.monotonic_ms()),
            done=self._done,
        )
        self._waiting: deque[tuple[int, MonotonicMs, Gated]] = deque()
        self._time_limit = kernel.deadlines.new(self._expire)
        self._sender_number = 0  # The number of the connection that waited last.
        self._planned_ms = MonotonicMs(0)
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        store.flush_wanted = self._journals.changed = partial(kernel.soon, Phase.FLUSH, self.settle)
        store.flush_wanted()
        self._is_fast = True  # As of the log's last flush.

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until the log is on the disk up to an offset."""
        if physical_offset <= self._store.flushed_offset:
            parked.succeed()
        elif self._is_broken:
            parked.fail(Missing.DISK)
        elif not self._purgatory.has_room(parked.connection, parked.cost_bytes):
            parked.fail(Missing.ANSWER)
        else:
            while self._waiting and not self._waiting[0][2].is_parked:  # Its connection has ended.
                self._waiting.popleft()
            self._purgatory.park(parked)
            until_ms = self._clock.monotonic_ms() + SYNC_FLUSH_TIMEOUT_MS
            if self._time_limit.due_ms is None:
                self._time_limit.at(until_ms)
            is_alone = not self._waiting and parked.connection.number == self._sender_number
            self._sender_number = parked.connection.number
            self._store.expect_lone_sends(is_alone=is_alone and self._is_fast)
            self._waiting.append((physical_offset, until_ms, parked))
            self._log.begin(gathers=not is_alone)

    def observe_flushes(self, observer: Callable[[int], None]) -> None:
        """Set a function to be called with the duration of each flush of the log, in milliseconds."""
        self._log.observer = observer

    def is_flushing(self) -> bool:
        """Return whether the log or the queues are being flushed."""
        return self._log.is_running or self._queues.is_running

    def settle(self) -> None:
        """Flush the stored data, or what a flush under way leaves, after it; then wait for more."""
        store = self._store
        if not self._log.is_running and (self._journals.is_wanted or store.is_flush_wanted):
            self._journals.is_wanted = False
            self._log.begin()
        if self._poll.due_ms is None:
            if store.is_flushed and self._journals.is_synced:
                store.when_changed(self.settle)
                return
            pause_ms = SLICE_PAUSE_MS if store.is_writing_queues else POLL_MS
            self._poll.at(self._clock.monotonic_ms() + pause_ms)
        if self._is_sync:
            store.when_changed(self.settle)

    def _plan_log(self) -> FlushPlan | None:
        """Return the due flush of the log, including the tables' journals."""
        now_ms = self._planned_ms = self._clock.monotonic_ms()
        plan = self._store.plan_log_flush(now_ms)
        journals = self._journals.plan()
        if journals is None:
            return plan
        self._journals_through = journals.through
        plan = plan or FlushPlan()
        directories = tuple(dict.fromkeys((*plan.directories, *journals.directories)))
        return msgspec.structs.replace(plan, paths=(*plan.paths, *journals.paths), directories=directories)

    def _is_brief(self, plan: FlushPlan) -> bool:
        """Return whether a plan is small, a reply waits for it, and we do not use the disk otherwise."""
        return (
            bool(self._waiting)
            and plan.is_of_log_alone
            and plan.log_bytes <= BRIEF_BYTES_MAX
            and not self._queues.is_running
        )

    def _expire(self, now_ms: MonotonicMs) -> None:
        """Answer expired replies; all wait equally long. An earlier answer does not move the deadline."""
        try:
            while self._waiting and (self._waiting[0][1] <= now_ms or not self._waiting[0][2].is_parked):
                parked = self._waiting.popleft()[2]
                if self._purgatory.release(parked):
                    parked.fail(Missing.ANSWER)
        finally:  # Even if an answer fails: the others have no other deadline.
            if self._waiting:
                self._time_limit.at(self._waiting[0][1])

    def _look_for_directories(self, now_ms: MonotonicMs) -> None:
        self._store.look_for_directories()
        self._store.look_for_room()
        if self._store.lost is not None:
            self._failed(self._store.lost)
        else:
            self._directories.at(now_ms + DIRECTORIES_MS)

    def _look(self, _: MonotonicMs) -> None:
        self._log.begin_at_once()
        self._queues.begin_at_once()
        self._store.flush_wanted()  # Perhaps only a part was due.

    def _log_done(self, plan: FlushPlan) -> None:
        """Handle the end of a flush of the log and the journals."""
        through = self._journals_through
        self._is_fast = self._clock.monotonic_ms() - self._planned_ms <= EARLY_MS_MAX
        if not self._is_fast:
            self._store.expect_lone_sends(is_alone=False)
        self._done(plan)
        self._journals.complete(through)

    def _done(self, plan: FlushPlan) -> None:
        """Handle the end of a flush, and answer the replies that waited for it."""
        self._store.complete_flush(plan)
        flushed = self._store.flushed_offset
        while self._waiting and self._waiting[0][0] <= flushed:
            parked = self._waiting.popleft()[2]
            if self._purgatory.release(parked):
                parked.succeed()

    def _failed(self, error: SyncFailed) -> None:
        """Stop: after a failed flush, nothing can be guaranteed."""
        log.error("nothing can be stored durably; the store accepts no more messages", reason=str(error))
        self._store.fail_flush(error)
        self._journals.fail(str(error))
        self._is_broken = True
        while self._waiting:  # If an answer fails, the other replies are answered when they expire.
            parked = self._waiting.popleft()[2]
            if self._purgatory.release(parked):
                parked.fail(Missing.DISK)
