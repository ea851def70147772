"""The message store: appends to the log and the queues with one write; limits reads (`visible_offset`);
refuses appends, for a while or for good, after a full disk, a failed fsync or a lost directory.

    append_batch → records in the log, units in the queues      (one write)
    plan_log_flush, plan_queue_flush → run_flush in a thread → complete_flush    (durable)
    read ← bounded by `visible_offset`

    stored ─► waits, by the log's end ─► on the disk and on slaves, where required ─► visible

`visible_offset` alone limits reads and wakes held ones: it is the end of the written data under ASYNC_FLUSH
and of the flushed data under SYNC_FLUSH. `take_changes` returns the queues whose readable end moved.

After a full disk appends are retried after a while; a check of the free space may lift the refusal without an
append. A failed fsync is final (`Refusal`).

Everything here runs in one thread, the event loop's; only `open` and `close` wait.

Upstream: store/DefaultMessageStore.java, CommitLog.asyncPutMessages.
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from libramq.clock import Clock, MonotonicMs, WallMs
from libramq.errors import StoreCorrupt, StoreError, StoreLocked, SyncFailed
from libramq.filesystem import FileSystem, make_directory
from libramq.filter.subscription import MessageFilter
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.message.ids import encode_host, split_place
from libramq.message.inner_batch import ROCKETMQ, BatchFormat, message_count
from libramq.message.message import MessageExt
from libramq.message.record import BLANK_BYTES, RecordHead, decode_record, has_good_crc, peek_record
from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.deletions import Deletions
from libramq.store.flush import Flusher, FlushPlan, RecoveryPointWriter
from libramq.store.log.append import (
    IN_SYNC_REPLICAS_NOT_ENOUGH,
    MESSAGE_ILLEGAL,
    SERVICE_NOT_AVAILABLE,
    AppendResult,
    MessageRun,
    StoreMessage,
    halves_of,
    joined,
)
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import Cold, ColdRead, FileRange
from libramq.store.log_copy import LogCopy, cut_log
from libramq.store.open_files import OpenFiles
from libramq.store.packing import PackedBatch, pack_batch, with_light
from libramq.store.queues.batch_consume_queue import BatchConsumeQueue
from libramq.store.queues.consume_queue import (
    BLANK_SIZE,
    PENDING_BYTES_MAX,
    UNIT,
    Boundary,
    ConsumeQueue,
    search_timestamp,
)
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.reading.batch_read import BatchRead
from libramq.store.reading.filtered_read import STEP_BYTES_MAX, STEP_COUNT_MAX, FilteredRead, properties_of
from libramq.store.reading.read import (
    NO_BATCHES,
    NO_QUEUE,
    Portion,
    ReadResult,
    ReadStatus,
    find_record,
    read_queue,
    unit_tag_codes,
    warm,
    whole_record,
)
from libramq.store.reading.unwrapping import Unwrapping, Wrapped, is_wrapped
from libramq.store.recovery.opening import ABORT, StoreOpening
from libramq.store.recovery.recovery import RecoveryReport
from libramq.store.retention import Cleaning

log = get_logger(__name__)

T = TypeVar("T")
#: Ours: a thread warms the page cache this often for one read, before the loop itself waits: under memory
#: pressure warmed pages may be evicted again. A search by time reads some 20 units and as many records.
WARMINGS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A snapshot of a store's content and its activity since the opening, taken without reading the disk."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    visible_offset: int
    queue_count: int
    open_file_count: int
    put_message_count: int
    put_bytes: int
    get_message_count: int
    get_bytes: int
    unreadable_count: int
    failure: str | None


class MessageStore:
    """A store directory, open for one process. visible_offset: the end of the readable log."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        clock: Clock,
        *,
        process_id: int = 0,
        batch_format: BatchFormat = ROCKETMQ,
    ) -> None:
        self.config = config
        self.unwrapping = Unwrapping(batch_format)
        self.visible_offset = 0
        self._filesystem = filesystem
        self._clock = clock
        self._files = files = OpenFiles(filesystem, config.open_files_max)
        self._log = CommitLog(filesystem, files, config)
        self._queues = ConsumeQueueTable(filesystem, files, config)
        self._get_count = self._get_bytes = 0
        #: Called once, at the next read that returns messages.
        self.when_read: Callable[[], None] | None = None
        self._is_sync = self._is_bounded = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicated: int | None = None
        #: Called when data is appended, flushed, made visible or removed.
        self.changed: Callable[[], None] = lambda: None
        #: Called when a flush should begin soon (`want_flush`).
        self.flush_wanted: Callable[[], None] = lambda: None
        self._waiting: dict[Callable[[], None], None] = {}
        #: The readable end of each queue for the next `take_changes`.
        self.touched: dict[tuple[str, int], int] = {}
        self._unsafe: deque[tuple[int, Sequence[tuple[ConsumeQueue, int]]]] = deque()
        self._refusal = Refusal(clock, self._room)
        self._store_host = encode_host(config.store_host)
        #: Messages stored since the last drain, by topic.
        self.topic_puts: dict[str, int] = {}
        self._last_store_timestamp_ms = WallMs(0)
        self._put_count = self._put_bytes = 0
        #: Whether appends are refused because too few slaves are in sync.
        self.lacks_replicas = False
        self.recovery: RecoveryReport | None = None
        self.deletions = Deletions(filesystem, config.root)
        self._flusher = Flusher(config, filesystem, self._log, self._queues, self.deletions)
        self._points = RecoveryPointWriter(filesystem, config.root, self._queues)
        self._opening = StoreOpening(
            config, filesystem, clock, self._log, self._queues, self._points, self.deletions, process_id
        )
        self.cleaning = Cleaning(filesystem, config.disks[-1], clock, self._log, self._queues, self._points)
        self.copy = LogCopy(
            self._log,
            self._queues,
            may_append=self._may_write,
            added=self._copied,
            failed=self._refusal.begin,
        )
        #: The files of deleted topics; a thread removes them.
        self.removal = self._queues.removal
        self._lock: int | None = None
        self._directories: dict[Path, tuple[int, int] | None] = {}
        #: The error once `look_for_directories` has missed a directory; nothing may be written any more.
        self.lost: SyncFailed | None = None
        self._is_open = False

    def open(self) -> RecoveryReport:
        """Lock the directory and recover its content; waits for the disk."""
        config, filesystem = self.config, self._filesystem
        for directory in config.disks:
            make_directory(filesystem, directory)
        self._lock = filesystem.lock(config.root / "lock")
        if self._lock is None:
            raise StoreLocked(f"{config.root} is in use by another process; stop it or use another directory")
        try:
            checkpoint = self._flusher.load_checkpoint()
            self.recovery = self._opening.run()
            self._last_store_timestamp_ms = self.recovery.last_store_timestamp_ms
            if not self._last_store_timestamp_ms:
                self._last_store_timestamp_ms = checkpoint.commit_log_timestamp_ms
            # Data that survived a kill may be only in the page cache, not on the disk.
            clean = self.recovery.clean
            self._log.flushed = self._log.end if clean else max(self.recovery.start, self._log.min_offset)
            self._flush_or_refuse()
        except BaseException:
            self._release()
            raise
        self._is_open = True
        self.lost = None
        self._directories.clear()
        self.look_for_directories()
        self.visible_offset = self._log.end
        return self.recovery

    def close(self) -> None:
        """Flush everything and leave the directory as after a clean stop; waits for the disk."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.removal.left:
                self.removal.take_work()()
            if not self._refusal.is_final:
                self._flush_everything()
                self._flusher.save_checkpoint()
                self._filesystem.unlink(self.config.root / ABORT)
                self._filesystem.sync_directory(self.config.root)  # Or a power cut could restore `abort`.
        finally:
            self._release()

    # Appending.

    def append_batch(self, messages: Sequence[StoreMessage | MessageRun]) -> list[AppendResult]:
        """Store messages with one write to one file; return one result per message or run."""
        if self.config.is_copy or not self._may_write():
            return [SERVICE_NOT_AVAILABLE] * len(messages)
        if self.lacks_replicas:
            return [IN_SYNC_REPLICAS_NOT_ENOUGH] * len(messages)
        wall_ms = self._clock.wall_ms()
        log = self._log
        batch = self._pack(messages, wall_ms)
        if not batch.data:
            return batch.results
        size = len(batch.data)
        try:
            if log.end + size + BLANK_BYTES > log.segments.end:
                if size > self.config.mapped_file_size_commit_log - BLANK_BYTES:  # No file can hold it.
                    return self._append_halves(messages)
                log.roll()
                batch = self._pack(messages, wall_ms)
            log.write(batch.data)
        except OSError as failed:
            self._refusal.begin(f"the commit log cannot be written: {failed}")
            return [SERVICE_NOT_AVAILABLE] * len(messages)
        self._last_store_timestamp_ms = wall_ms
        self._put_count += batch.message_count
        self._put_bytes += size
        self._dispatch(batch)
        return batch.results

    def drain_topic_puts(self) -> dict[str, int]:
        """Return how many messages of each topic were stored since the last call."""
        drained, self.topic_puts = self.topic_puts, {}
        return drained

    def keep_in_batches(self, topic: str) -> None:
        """Make new queues of a topic batch queues (queue.type=BatchCQ), unless it has other queues."""
        if all(queue.is_batch for queue in self._queues.of_topic(topic)):
            self._queues.batch_topics.add(topic)

    def is_in_batches(self, topic: str) -> bool:
        """Return whether new queues of a topic are batch queues."""
        return topic in self._queues.batch_topics

    @property
    def failure(self) -> str | None:
        """Return why appends are refused; None while they are accepted."""
        return self._refusal.reason

    @property
    def is_flush_wanted(self) -> bool:
        """Return whether the log must be flushed at once because a reply waits for it."""
        flushed = self._log.flushed
        return self._log.end > flushed and (self._is_sync or flushed < self._flusher.wanted_end)

    @property
    def is_flushed(self) -> bool:
        """Return whether no flush is due, now or later."""
        checkpoint = self._flusher.checkpoint
        return (
            self._log.end == self._log.flushed
            and not self._queues.pending
            and not self._queues.unsynced
            and not self.deletions.is_dirty
            and checkpoint.commit_log_timestamp_ms == self._last_store_timestamp_ms
        ) or self._refusal.is_final

    @property
    def flushed_offset(self) -> int:
        """Return the end of the flushed log; appends that end at or before it are durable."""
        return self._log.flushed

    @property
    def end(self) -> int:
        """Return the physical offset of the next record."""
        return self._log.end

    def want_flush(self, physical_offset: int) -> None:
        """Make the next plan flush the log up to an offset, even if few pages are dirty."""
        self._flusher.wanted_end = max(self._flusher.wanted_end, physical_offset)
        self.flush_wanted()

    def expect_lone_sends(self, *, is_alone: bool) -> None:
        """Note whether there is a lone sender: its messages are flushed next, so writeback starts at once."""
        self._log.is_flushed_next = is_alone and self._is_sync

    def flush(self) -> None:
        """Flush everything now, waiting for the disk; raises StoreError."""
        if self._refusal.is_final:
            raise StoreError(f"{self.config.root} cannot be flushed: {self.failure}")
        self._flush_everything()
        self._show_what_is_safe()

    def plan_log_flush(self, now_ms: MonotonicMs) -> FlushPlan | None:
        """Return the due flush of the log; raises OSError if its files cannot be opened."""
        return self._flusher.plan_log(now_ms) if self._is_open and not self._refusal.is_final else None

    def plan_queue_flush(self, now_ms: MonotonicMs) -> FlushPlan | None:
        """Write out pending units, and return the due flush of the queues.

        If many queues are new, this is one slice, and the next is due once the plan has been run.
        """
        if not self._is_open or self._refusal.is_final:
            return None
        timestamp_ms, cost_max = self._last_store_timestamp_ms, self.config.queue_slice_cost
        return self._planned(self._flusher.plan_queues(now_ms, timestamp_ms, cost_max=cost_max))

    @property
    def is_writing_queues(self) -> bool:
        """Return whether another slice of the queues' flush is due."""
        return self._flusher.is_writing_queues and not self._refusal.is_final

    def complete_flush(self, plan: FlushPlan) -> None:
        """Handle a completed plan: its data is durable and, under SYNC_FLUSH, becomes readable."""
        self._flusher.complete(plan)
        self._points.flushed(plan, self._log.flushed)
        self._show_what_is_safe()

    def look_for_directories(self) -> None:
        """Refuse all appends for good if a directory was removed or replaced: later writes would be lost."""
        for path in (self.config.root, self.config.commit_log_directory):
            found, known = self._filesystem.identity(path), self._directories.get(path)
            if known is None and (found is not None or not self._log.end):  # The log may begin later.
                self._directories[path] = found
            elif self.lost is None and (found is None or found != known):
                self.lost = SyncFailed(f"{path} was removed or exchanged while the broker had it open")
                self.fail_flush(self.lost)

    def look_for_room(self) -> None:
        """Lift a full disk's refusal if there is room again, without waiting for an append to notice."""
        self._refusal.look_for_room(self.config.max_message_size)

    def _room(self) -> int | None:
        """Return the bytes available on the fuller disk; None if unknown."""
        with contextlib.suppress(OSError):
            return min(self._filesystem.disk_space(each).available_bytes for each in self.config.disks)
        return None

    def fail_flush(self, error: SyncFailed) -> None:
        """Handle a failed plan. The kernel may have dropped the pages, so nothing counts as durable again."""
        self._refusal.fail(error)

    def delete_topic(self, topic: str, *, may_be_awaited: bool = False) -> None:
        """Remove the queues of a topic. `removal` deletes their files; its records go with the log's files.

        may_be_awaited: messages without a queue may be waiting for this topic. Raises OSError if the disk
        refuses.
        """
        former = self._queues.of_topic(topic)
        if may_be_awaited or former:
            self.deletions.note(topic, self._log.end)
        self._queues.delete_topic(topic)
        self._queues_deleted(topic, former)

    def copy_deletions(self, ends: Mapping[str, int]) -> Iterator[None]:
        """Adopt the master's deletions up to the log's end; raises OSError if the disk refuses."""
        for name, end in ends.items():
            if self.deletions.end_of(name) < end <= self._log.end:
                self._copy_deletion(name, end)
            yield

    def _copy_deletion(self, topic: str, end: int) -> None:
        self.deletions.note(topic, end)
        former = [each for each in self._queues.of_topic(topic) if each.last_physical_end <= end]
        if former and len(former) == len(self._queues.of_topic(topic)):
            self._queues.delete_topic(topic)
        else:  # Other queues have messages of the new topic.
            for queue in former:
                self._queues.delete(queue)
        self._queues_deleted(topic, former)

    def _queues_deleted(self, topic: str, former: Sequence[ConsumeQueue]) -> None:
        self._points.queues_deleted(sum(queue.max_offset for queue in former))
        self._flusher.queues_deleted()
        self.touched = {key: end for key, end in self.touched.items() if key[0] != topic}
        self.changed()

    def remove_group(self, group: str) -> None:
        """Note that a group is removed: its pops do not belong to a later group of the same name.

        Raises OSError if the disk refuses.
        """
        self.deletions.note_group(group, self._log.end)
        self.changed()

    def cut(self, end: int) -> None:
        """Cut the log at a record's start, and wait for the disk.

        The removed bytes are kept aside. Raises StoreError if the disk refuses; the log may be cut even then.
        """
        if not self._may_write():
            raise StoreError(f"{self.config.root} cannot be cut: {self.failure or 'it is closed'}")
        try:
            cut_log(self._filesystem, self.config.root, self._log, self._queues, self._points, end)
            self.deletions.bound(end=end)
        except OSError as failed:
            raise StoreError(f"{self.config.root} cannot be cut: {failed}") from failed
        finally:
            self._flusher.forget_plans()
            self.copy.forget_partial()
            self.unwrapping.forget()
            self._hide_from(self._log.end)
        self._flush_everything()

    def raise_min_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Raise a queue's minimum offset to `offset`, at most to its end; return the minimum offset.

        The change is durable with the log's next flush (`is_flushed`). Raises OSError if the disk refuses,
        and ColdRead before anything changes (see `without_waiting`).
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        offset = min(offset, queue.visible_max)
        if offset > queue.min_offset:
            unit = queue.unit(offset)
            self.deletions.note_queue(topic, queue_id, unit[0] if unit else queue.last_physical_end)
            queue.min_offset = offset
            self.changed()
        return queue.min_offset

    @property
    def traffic(self) -> tuple[int, int]:
        """Return the numbers of messages stored and read since the store was opened."""
        return self._put_count, self._get_count

    def statistics(self) -> StoreStatistics:
        """Return a snapshot of the store's content and activity."""
        return StoreStatistics(
            min_physical_offset=self._log.min_offset,
            max_physical_offset=self._log.end,
            flushed_offset=self._log.flushed,
            visible_offset=self.visible_offset,
            queue_count=len(self._queues),
            open_file_count=len(self._files),
            put_message_count=self._put_count,
            put_bytes=self._put_bytes,
            get_message_count=self._get_count,
            get_bytes=self._get_bytes,
            unreadable_count=len(self._log.unreadable),
            failure=self.failure,
        )

    # Reading, up to `visible_offset`. Reads wait for data that is not in memory, except with may_wait=False.

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        tag_codes: frozenset[int] | None = None,
        *,
        may_wait: bool = True,
        as_stored: bool = False,
        may_be_wrapped: bool = False,
    ) -> ReadResult:
        """Read messages from an offset; with may_wait=False, WOULD_WAIT names the data to `warm` first.

        as_stored: return inner batches as they are; they may begin before the offset. may_be_wrapped: return
        inner batches that RocketMQ clients can unwrap as they are, unless tag codes select messages.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self.no_queue(topic)
        result = self._read_queue(
            queue, offset, max_count, max_bytes, tag_codes, may_wait=may_wait, as_stored=as_stored,
            may_be_wrapped=may_be_wrapped,
        )  # fmt: skip
        self.count_read(result)
        return result

    def no_queue(self, topic: str) -> ReadResult:
        """Return the result of reading a queue that has no messages yet."""
        return NO_BATCHES if topic in self._queues.batch_topics else NO_QUEUE

    def look(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        """Read messages as stored, for a search; not counted, because no client receives them."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return NO_QUEUE
        return self._read_queue(queue, offset, max_count, max_bytes, None, may_wait=True, as_stored=True)

    def _read_queue(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        tag_codes: frozenset[int] | None,
        *,
        may_wait: bool,
        as_stored: bool = False,
        may_be_wrapped: bool = False,
    ) -> ReadResult:
        if isinstance(queue, BatchConsumeQueue):
            unwrapping = None if as_stored else self.unwrapping
            portion = Portion(max_count, max_bytes)
            read = BatchRead(
                self._log, queue, self.config, offset, portion, tag_codes, unwrapping,
                may_be_wrapped=may_be_wrapped,
            )  # fmt: skip
            result = read.run(may_wait=may_wait, may_unwrap=may_wait and self.may_wait)
            if may_wait and result.status is ReadStatus.WOULD_WAIT:
                raise ColdRead(result.cold[0])
            return result
        return read_queue(
            self._log, queue, self.config, offset, max_count, max_bytes, tag_codes, may_wait=may_wait
        )

    def filtered_read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        message_filter: MessageFilter,
        *,
        may_wait: bool = True,
    ) -> FilteredRead | None:
        """Return a stepwise read of the messages that pass a filter; pass its result to `count_read`.

        Returns None if there is no such queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return None
        return FilteredRead(
            partial(self._read_queue, queue),
            self._queues,
            queue,
            self.config,
            offset,
            Portion(max_count, max_bytes),
            message_filter,
            may_wait=may_wait,
        )

    def count_read(self, result: ReadResult) -> None:
        """Count the messages and bytes that a read returned."""
        self._get_count += result.count
        self._get_bytes += result.size
        if self.when_read is not None and result.count:
            then, self.when_read = self.when_read, None
            then()

    def properties(self, topic: str, queue_id: int, offset: int, *, end: int) -> list[bytes] | None:
        """Return the stored properties of the messages [offset, end), to check them before reading.

        None if there are too many, or if they are not in memory.
        """
        queue = self._queues.get(topic, queue_id)
        count = end - offset
        if queue is None or not 0 < count <= STEP_COUNT_MAX:
            return None
        read = self._read_queue(queue, offset, count, STEP_BYTES_MAX, None, may_wait=False)
        return properties_of(read.data) if read.data and read.next_offset >= end else None

    def tag_codes(self, topic: str, queue_id: int, offset: int, *, end: int) -> frozenset[int] | None:
        """Return the tag codes of the messages [offset, end), to check them before reading.

        None if there are too many, or if they are not in memory.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.is_batch:
            return None
        return unit_tag_codes(queue, offset, end)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue's readable messages; 0 if there is no such queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.visible_max if queue else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; messages before it may not be readable yet."""
        queue = self._queues.get(topic, queue_id)
        return queue.max_offset if queue else 0

    def durable_max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue's durable messages."""
        queue = self._queues.get(topic, queue_id)
        return queue.first_at_or_after(self._log.flushed) if queue else 0

    def first_offset_at(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the offset of a queue's first message at or after a physical offset."""
        queue = self._queues.get(topic, queue_id)
        return queue.first_at_or_after(physical_offset) if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's first message; 0 if there is no such queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min_offset if queue else 0

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of a queue's message stored at a time, or of the nearest one by `boundary`."""
        queue = self._queues.get(topic, queue_id)
        return search_timestamp(self._log, queue, timestamp_ms, boundary) if queue else 0

    def store_timestamp_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored; -1 if there is none."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible_max:
            return -1
        unit = queue.unit(offset)
        return self._log.store_timestamp_ms(unit[0]) if unit and unit[1] != BLANK_SIZE else -1

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> Work[int]:
        """Return when a message was stored, -1 if there is none; a thread reads from the disk if needed."""
        return self.reading(partial(self.store_timestamp_ms, topic, queue_id, offset))

    def earliest_log_time(self) -> int:
        """Return when the log's first message was stored; -1 if it has none."""
        return self._log.store_timestamp_ms(self._log.min_offset) or -1

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return when the first message of a queue was stored; -1 if there is none."""
        return self.store_timestamp_ms(topic, queue_id, self.min_offset(topic, queue_id))

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is empty or its first message is in memory (checkInMemByConsumeOffset)."""
        queue = self._queues.get(topic, queue_id)
        return queue is None or queue.is_young(self._log.end - self.config.in_memory_bytes)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at an offset sent by a client, only if its queue refers to it."""
        return self._find(physical_offset, self.visible_offset)

    def logged_record(self, physical_offset: int, sha256: str) -> bytes | None:
        """Return the record at an offset to a caller that knows its digest, even if no queue refers to it."""
        found = whole_record(self._log, physical_offset, self.visible_offset)
        return found[0] if found is not None and hashlib.sha256(found[0]).hexdigest() == sha256 else None

    def message_at(self, physical_offset: int) -> MessageExt | None:
        """Return the message at an offset; its body is as stored, so it may still be compressed."""
        return _decoded(self.record_at(physical_offset))

    def stored_message_at(self, physical_offset: int) -> MessageExt | None:
        """Return the message at an offset, even one that is not readable yet."""
        return _decoded(self._find(physical_offset, self._log.end))

    def _find(self, place: int, end: int) -> bytes | None:
        """Return the record of the message at a place (`message.ids`)."""
        physical_offset, number = split_place(place)
        kept = self._kept(physical_offset, end)
        if kept is not None:
            return _sound(kept[number]) if number < len(kept) else None
        record = find_record(self._log, self._queues, physical_offset, end)
        head = peek_record(record) if record is not None else None
        if record is None or head is None or not is_wrapped(head):
            return record if not number else None
        try:
            messages = self.unwrapping.messages(record, head, may_wait=self.may_wait)
        except StoreCorrupt:
            return None
        if messages is None:
            raise ColdRead(Wrapped(self.unwrapping, record, head))
        return messages[number] if number < len(messages) else None

    def _kept(self, physical_offset: int, end: int) -> Sequence[bytes] | None:
        """Return the messages of a recently unwrapped batch, if its queue refers to it."""
        kept = self.unwrapping.kept(physical_offset)
        if kept is None or not self._log.min_offset <= physical_offset <= end - kept[0].size:
            return None
        head, messages = kept
        queue = self._queues.get(head.topic, head.queue_id)
        is_one = isinstance(queue, BatchConsumeQueue) and queue.refers_to(head)
        return messages if is_one else None

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return the readable units of a queue from an offset: physical offset, size, tag code."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible_max:
            return []
        count = min(count, queue.visible_max - offset)
        data = queue.read_units(offset, count, may_wait=True, with_codes=True)
        assert isinstance(data, bytes)
        return list(UNIT.iter_unpack(data))

    @property
    def light_queue_count(self) -> int:
        """Return the number of light queues (LMQ)."""
        return self._queues.light_count

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has messages or had some."""
        return self._queues.get(topic, queue_id) is not None

    def topics(self) -> set[str]:
        """Return the topics that have messages or had some."""
        return self._queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have messages or had some."""
        return sorted(queue.queue_id for queue in self._queues.of_topic(topic))

    # The log's bytes, for slaves.

    @property
    def log_start(self) -> int:
        """Return the offset of the log's first byte."""
        return self._log.min_offset

    def log_file_start(self, offset: int) -> int:
        """Return the start of the log file that holds this byte."""
        return self._log.segments.start_of(offset)

    def log_file_end(self, offset: int) -> int:
        """Return the end of the log file that holds this byte."""
        return self._log.segments.start_of(offset) + self._log.segments.file_size

    def read_log(self, offset: int, size: int, *, may_wait: bool = False) -> bytes | FileRange | None:
        """Return bytes of one file of the log; None if they do not exist (any more).

        If the disk would have to be read and the caller may not wait, returns the range to `warm` first.
        """
        return self._log.read(offset, size) if may_wait else self._log.read_nowait(offset, size)

    @property
    def may_wait(self) -> bool:
        """Return whether reads may wait for the disk: not within `without_waiting`."""
        return self._files.may_wait

    def reading(self, read: Callable[[], T]) -> Work[T]:
        """Return the result of `read`, repeating it after a thread has brought missing data into memory."""
        for _ in range(WARMINGS_MAX):
            try:
                with self.without_waiting():
                    return read()
            except ColdRead as cold:
                stretch = cold.stretch
            yield InThread(Thread.READ, partial(self.warm, (stretch,)))
        return read()

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Make reads that would wait for the disk raise ColdRead; `warm` its range, then retry."""
        files = self._files
        was, files.may_wait = files.may_wait, False
        try:
            yield
        finally:
            files.may_wait = was

    def warm(self, ranges: tuple[Cold, ...]) -> None:
        """Bring file ranges into the page cache, and unwrap batches; may be called in a thread."""
        with contextlib.suppress(OSError):  # The read itself will raise the error.
            warm(self._filesystem, ranges)

    # The readable end, and the queues with new readable messages.

    def when_changed(self, action: Callable[[], None]) -> None:
        """Make `take_changes` return an action once, after the next change."""
        self._waiting[action] = None

    def take_changes(self) -> tuple[dict[tuple[str, int], int], Sequence[Callable[[], None]]]:
        """Return the queues whose readable end moved since the last call, their ends, and the actions."""
        touched, self.touched = self.touched, {}
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return touched, waiting

    def set_replicated(self, offset: int | None) -> None:
        """Limit reads to an offset that slaves have confirmed; None removes the limit."""
        self._replicated = offset
        self._is_bounded = self._is_sync or offset is not None
        self._show_what_is_safe()

    def _show_when_safe(self, shown: Sequence[tuple[ConsumeQueue, int]]) -> None:
        """Make stored messages readable, at once or when they are safe. shown: queues with their new ends."""
        if self._is_bounded:
            self._unsafe.append((self._log.end, shown))
        else:
            self.visible_offset = self._log.end
            for queue, max_offset in shown:
                queue.visible_max = max_offset
                self.touched[queue.topic, queue.queue_id] = max_offset
        self.changed()

    def _show_what_is_safe(self) -> None:
        """Make messages readable that are on the disk and on slaves, where required; hide nothing."""
        if self._is_bounded or self._unsafe:
            safe = self._log.flushed if self._is_sync else self._log.end
            if self._replicated is not None:
                safe = min(safe, self._replicated)
            self._show(max(safe, self.visible_offset))
        self.changed()

    def _show(self, visible_offset: int) -> None:
        self.visible_offset = visible_offset
        unsafe = self._unsafe
        while unsafe and unsafe[0][0] <= visible_offset:
            for queue, max_offset in unsafe.popleft()[1]:
                queue.visible_max = min(max_offset, queue.max_offset)
                self.touched[queue.topic, queue.queue_id] = queue.visible_max

    def _hide_from(self, end: int) -> None:
        """Hide everything from an offset: the log was cut there, and all earlier messages are safe."""
        self._unsafe.clear()
        self.visible_offset = end
        for queue in self._queues:
            queue.visible_max = queue.max_offset
        self.touched = {
            (topic, queue_id): min(was, self.max_offset(topic, queue_id))
            for (topic, queue_id), was in self.touched.items()
        }
        self.changed()

    # Parts of appending and flushing.

    def _planned(self, plan: FlushPlan | None) -> FlushPlan | None:
        if self._flusher.write_failure is not None:
            self._refusal.begin(f"a consume queue cannot be written: {self._flusher.write_failure}")
        return self._points.planned(plan) if plan is not None else None

    def _may_write(self) -> bool:
        if not self._is_open or (self._refusal.reason is not None and not self._refusal.is_over()):
            return False
        if not self._opening.set_mark():  # Without the mark, an abnormal end would not be recognised.
            self._refusal.begin("the disk is full")
            return False
        return True

    def _flush_everything(self) -> None:
        try:
            # A cut queue reuses its offsets, so its old units must not reappear after them.
            self._flusher.sync_resized()
            self._flusher.flush_everything(self._last_store_timestamp_ms)
            self._points.all_flushed(self._log.end)
        except (OSError, SyncFailed) as failed:
            raise StoreError(f"{self.config.root} cannot be flushed: {failed}") from failed

    def _flush_or_refuse(self) -> None:
        """Flush the changes of recovery; if the disk is full, the store opens read-only."""
        try:
            self._flush_everything()
        except StoreError as failed:
            if isinstance(failed.__cause__, SyncFailed):
                raise
            self._refusal.begin(str(failed))
            log.error("the store is open read-only: the disk is full", reason=str(failed))

    def _release(self) -> None:
        self._files.close()
        self._points.file.close()
        if self._lock is not None:
            self._filesystem.close(self._lock)
            self._lock = None

    def _pack(self, messages: Sequence[StoreMessage | MessageRun], wall_ms: WallMs) -> PackedBatch:
        return pack_batch(
            with_light(messages) if self._queues.has_light else messages,
            self._queues,
            physical_offset=self._log.end,
            store_timestamp_ms=wall_ms,
            store_host=self._store_host,
            body_bytes_max=self.config.max_message_size,
        )

    def _append_halves(self, messages: Sequence[StoreMessage | MessageRun]) -> list[AppendResult]:
        if len(messages) == 1:
            halves = halves_of(messages[0])
            return [joined(self.append_batch(halves)) if halves else MESSAGE_ILLEGAL]
        half = len(messages) // 2
        return self.append_batch(messages[:half]) + self.append_batch(messages[half:])

    def _dispatch(self, batch: PackedBatch) -> None:
        queues, topic_puts = self._queues, self.topic_puts
        shown: list[tuple[ConsumeQueue, int]] = []
        for plan in batch.plans.values():
            if plan.units:
                queue = plan.queue
                if not plan.is_light:
                    count = plan.max_offset - queue.max_offset
                    topic_puts[queue.topic] = topic_puts.get(queue.topic, 0) + count
                waiting = queue.append(b"".join(plan.units), plan.max_offset, plan.physical_end)
                queues.pending[queue] = None
                shown.append((queue, plan.max_offset))
                if waiting >= PENDING_BYTES_MAX:
                    self._write_out_queue(queue)
        self._show_when_safe(shown)

    def _copied(self, heads: list[RecordHead], ends: dict[ConsumeQueue, int]) -> None:
        """Handle records copied from the master."""
        self._last_store_timestamp_ms = WallMs(heads[-1].store_timestamp_ms)
        self._put_bytes += sum(head.size for head in heads)
        for head in heads:
            count = message_count(head)
            self._put_count += count
            self.topic_puts[head.topic] = self.topic_puts.get(head.topic, 0) + count
        self._show_when_safe(list(ends.items()))

    def _write_out_queue(self, queue: ConsumeQueue) -> None:
        try:
            self._queues.write_out_queue(queue)
            self._queues.pending[queue] = None  # The next round flushes it.
        except OSError as failed:
            self._refusal.begin(f"a consume queue cannot be written: {failed}")


def _sound(record: bytes) -> bytes | None:
    """Return a record if its body matches its checksum; records of a damaged batch do not."""
    head = peek_record(record)
    return record if head is not None and has_good_crc(record, head) else None


def _decoded(record: bytes | None) -> MessageExt | None:
    decoded = decode_record(record, decompress=False) if record is not None else None
    return decoded[0] if decoded else None


REFUSAL_MS: Final = 1_000  # Ours: appends are refused this long after a full disk.
LOG_MS: Final = 60_000  # Ours: a refusal is logged at most this often, as log files may be on that disk.


class Refusal:
    """The refusal of messages, for a while or for good. reason: None while messages are accepted.

    room: returns the available bytes of the disk.
    """

    def __init__(self, clock: Clock, room: Callable[[], int | None]) -> None:
        self.reason: str | None = None
        self._room = room
        self._room_before: int | None = None  # When the refusal began.
        self.is_final = False
        self._clock = clock
        self._since_ms = MonotonicMs(0)
        self._logged_ms: MonotonicMs | None = None

    def begin(self, reason: str) -> None:
        """Refuse for a while."""
        self.reason = reason
        self._room_before = self._room()
        self._since_ms = now_ms = self._clock.monotonic_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= LOG_MS:
            self._logged_ms = now_ms
            log.error("messages are refused, and tried again each second", reason=reason)

    def fail(self, error: SyncFailed) -> None:
        """Refuse for good: the kernel may have dropped the pages, so nothing counts as durable again."""
        self.is_final = True
        self.reason = f"{error}; restart the broker"

    def is_over(self) -> bool:
        """Return whether appends may be tried (again)."""
        if self._is_due:
            self.reason = None
        return self.reason is None

    def look_for_room(self, wanted: int) -> None:
        """End the refusal if `wanted` bytes have become free since it began.

        If the cause was descriptors or permissions, not space, only the next append shows whether it is over.
        """
        if self._is_due:
            before, room = self._room_before, self._room()
            if before is not None and room is not None and room - before >= wanted:
                self.reason = None

    @property
    def _is_due(self) -> bool:
        """Return whether a temporary refusal has lasted long enough to end."""
        if self.reason is None:
            return False
        return not self.is_final and self._clock.monotonic_ms() - self._since_ms >= REFUSAL_MS
