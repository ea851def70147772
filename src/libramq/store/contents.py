"""The contents of a store: which messages readers may see (`visible_offset`: written, on the disk, or at
enough slaves), by queue, position and time; first and last offsets.

Everything here reads, and is bounded by `visible_offset`:

    stored ─► waits, by the log's end ─► on the disk, and at slaves, as far as either is asked for ─► shown

Data that is not in memory is waited for, except by `read` with may_wait=False.

Upstream: store/DefaultMessageStore.java.
"""

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.filter.subscription import MessageFilter
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work
from libramq.message.ids import split_place
from libramq.message.message import MessageExt
from libramq.message.record import decode_record, has_good_crc, peek_record
from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.segments import Cold, ColdRead, FileRange
from libramq.store.open_files import OpenFiles
from libramq.store.queues.batch_consume_queue import BatchConsumeQueue
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, Boundary, ConsumeQueue, search_timestamp
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.reading.batch_read import read_batches
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

T = TypeVar("T")
#: Ours: how often a thread reads for the same read, before the loop waits: memory may be so short that
#: what was read is gone again. A search by time reads some 20 units and as many records.
WARMINGS_MAX: Final = 64


class StoreContents:
    """The reading part of a store. visible_offset: the end of the readable log."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        files: OpenFiles,
        log: CommitLog,
        queues: ConsumeQueueTable,
        unwrapping: Unwrapping,
    ) -> None:
        self.config = config
        self.unwrapping = unwrapping
        self.visible_offset = 0
        self._filesystem = filesystem
        self._files = files
        self._log = log
        self._queues = queues
        self._get_count = self._get_bytes = 0
        #: Called once, when something is read next.
        self.when_read: Callable[[], None] | None = None
        self._is_sync = self._is_bounded = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicated: int | None = None
        #: Called when something is appended, flushed, shown or removed.
        self.changed: Callable[[], None] = _ignore
        #: Called when a flush is to begin soon (`MessageStore.want_flush`).
        self.flush_wanted: Callable[[], None] = _ignore
        self._waiting: dict[Callable[[], None], None] = {}
        #: The queues for `take_changes`.
        self.touched: dict[tuple[str, int], int] = {}
        self._unsafe: deque[tuple[int, Sequence[tuple[ConsumeQueue, int]]]] = deque()

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
        """Read messages from an offset on; with may_wait=False WOULD_WAIT names what to `warm` first.

        as_stored: return inner batches as they are, from before the offset perhaps. may_be_wrapped: those
        that clients of RocketMQ unwrap may come so, unless messages are selected by tag codes.
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
        """Return what a read of a queue that has not begun results in."""
        return NO_BATCHES if topic in self._queues.batch_topics else NO_QUEUE

    def look(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        """Read messages as they are stored, for a search: they go to no client, so they are not counted."""
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
            result = read_batches(
                self._log, queue, self.config, offset, max_count, max_bytes, tag_codes, unwrapping,
                may_wait=may_wait, may_unwrap=may_wait and self.may_wait, may_be_wrapped=may_be_wrapped,
            )  # fmt: skip
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
        """Return a read in steps, of messages that pass a filter; pass its result to `count_read`.

        None if there is no such queue.
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
        """Count what a read returned."""
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
        """Return the offset of the message that is stored next in a queue; others may not be readable yet."""
        queue = self._queues.get(topic, queue_id)
        return queue.max_offset if queue else 0

    def durable_max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue's messages on the disk; under SYNC_FLUSH those are the readable ones."""
        queue = self._queues.get(topic, queue_id)
        return queue.first_at_or_after(self._log.flushed) if queue else 0

    def first_offset_at(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first message of a queue that lies at or behind a place in the log."""
        queue = self._queues.get(topic, queue_id)
        return queue.first_at_or_after(physical_offset) if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first message of a queue; 0 if there is no such queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min_offset if queue else 0

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the message of a queue that was stored at a time, or next to it."""
        queue = self._queues.get(topic, queue_id)
        return search_timestamp(self._log, queue, timestamp_ms, boundary) if queue else 0

    def store_timestamp_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored; -1 if there is none."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible_max:
            return -1
        unit = queue.unit(offset)
        return self._log.store_timestamp_ms(unit[0]) if unit and unit[1] != BLANK_SIZE else -1

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
        """Return the record at an offset from a client: only if its queue refers to it."""
        return self._find(physical_offset, self.visible_offset)

    def logged_record(self, physical_offset: int, sha256: str) -> bytes | None:
        """Return the record at an offset, even if no queue refers to it, to a caller that has it."""
        found = whole_record(self._log, physical_offset, self.visible_offset)
        return found[0] if found is not None and hashlib.sha256(found[0]).hexdigest() == sha256 else None

    def message_at(self, physical_offset: int) -> MessageExt | None:
        """Return the message at an offset; its body is as stored, so it may still be compressed."""
        return _decoded(self.record_at(physical_offset))

    def stored_message_at(self, physical_offset: int) -> MessageExt | None:
        """Return the message at an offset, even one that is not readable yet."""
        return _decoded(self._find(physical_offset, self._log.end))

    def _find(self, place: int, end: int) -> bytes | None:
        """Return the record of a message, by its place (`message.ids`)."""
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
        """Return the messages of a batch that was unwrapped before, if its queue refers to it."""
        kept = self.unwrapping.kept(physical_offset)
        if kept is None or not self._log.min_offset <= physical_offset <= end - kept[0].size:
            return None
        head, messages = kept
        queue = self._queues.get(head.topic, head.queue_id)
        is_one = isinstance(queue, BatchConsumeQueue) and queue.refers_to(head)
        return messages if is_one else None

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return the readable units of a queue from an offset on: physical offset, size, tag code."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.visible_max:
            return []
        count = min(count, queue.visible_max - offset)
        data = queue.read_units(offset, count, may_wait=True, with_codes=True)
        assert isinstance(data, bytes)
        return list(UNIT.iter_unpack(data))

    @property
    def light_queue_count(self) -> int:
        """Return how many light queues there are (LMQ)."""
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
        """Return where the file of the log with this byte begins."""
        return self._log.segments.start_of(offset)

    def log_file_end(self, offset: int) -> int:
        """Return where the file of the log with this byte ends."""
        return self._log.segments.start_of(offset) + self._log.segments.file_size

    def read_log(self, offset: int, size: int, *, may_wait: bool = False) -> bytes | FileRange | None:
        """Return bytes of one file of the log; None if they do not exist (any more).

        If the disk would have to be read: the range to `warm` first, unless the caller may wait.
        """
        return self._log.read(offset, size) if may_wait else self._log.read_nowait(offset, size)

    @property
    def may_wait(self) -> bool:
        """Return whether reads may wait for the disk: not within `without_waiting`."""
        return self._files.may_wait

    def reading(self, read: Callable[[], T]) -> Work[T]:
        """Return the result of `read`, which is repeated once a thread has read what was not in memory."""
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
        """Make reads that would wait for the disk raise ColdRead; `warm` its range, and start over."""
        files = self._files
        was, files.may_wait = files.may_wait, False
        try:
            yield
        finally:
            files.may_wait = was

    def warm(self, ranges: tuple[Cold, ...]) -> None:
        """Bring file ranges into the page cache, and unwrap batches; may be called in a thread."""
        with contextlib.suppress(OSError):  # The reader will get the error.
            warm(self._filesystem, ranges)

    # How far readers see, and which queues have more to read than before.

    def when_changed(self, action: Callable[[], None]) -> None:
        """Have `take_changes` return an action once, after the next change."""
        self._waiting[action] = None

    def take_changes(self) -> tuple[dict[tuple[str, int], int], Sequence[Callable[[], None]]]:
        """Return the queues whose readable end moved since the last call, with that end, and who waits."""
        touched, self.touched = self.touched, {}
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return touched, waiting

    def set_replicated(self, offset: int | None) -> None:
        """Show readers nothing that slaves do not have; None: whatever slaves have."""
        self._replicated = offset
        self._is_bounded = self._is_sync or offset is not None
        self._show_what_is_safe()

    def _show_when_safe(self, shown: Sequence[tuple[ConsumeQueue, int]]) -> None:
        """Show what was stored, at once or when it is safe: queues, with their ends."""
        if self._is_bounded:
            self._unsafe.append((self._log.end, shown))
        else:
            self.visible_offset = self._log.end
            for queue, max_offset in shown:
                queue.visible_max = max_offset
                self.touched[queue.topic, queue.queue_id] = max_offset
        self.changed()

    def _show_what_is_safe(self) -> None:
        """Show readers what is on the disk and at slaves, as far as either is asked for; hide nothing."""
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
        """Show nothing from an offset on: the log was cut there, and all before is safe."""
        self._unsafe.clear()
        self.visible_offset = end
        for queue in self._queues:
            queue.visible_max = queue.max_offset
        self.touched = {
            (topic, queue_id): min(was, self.max_offset(topic, queue_id))
            for (topic, queue_id), was in self.touched.items()
        }
        self.changed()


def _sound(record: bytes) -> bytes | None:
    """Return a record if its body matches its checksum: those of a damaged batch do not."""
    head = peek_record(record)
    return record if head is not None and has_good_crc(record, head) else None


def _decoded(record: bytes | None) -> MessageExt | None:
    decoded = decode_record(record, decompress=False) if record is not None else None
    return decoded[0] if decoded else None


def _ignore() -> None:
    """Do nothing: nobody waits for this store."""
