"""The appended contents: messages are stored, by one write for many, in the log and in their queues.

    messages ─► records and units ─► the log ─► units wait in their queues, and are shown when it is safe

Upstream: store/CommitLog.asyncPutMessages, DefaultMessageStore.putMessages.
"""

from collections.abc import Sequence

from libramq.clock import Clock, WallMs
from libramq.filesystem import FileSystem
from libramq.message.ids import encode_host
from libramq.message.inner_batch import message_count
from libramq.message.record import RecordHead
from libramq.store.config import StoreConfig
from libramq.store.log.append import (
    IN_SYNC_REPLICAS_NOT_ENOUGH,
    MESSAGE_ILLEGAL,
    SERVICE_NOT_AVAILABLE,
    AppendResult,
    StoreMessage,
)
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.message_run import MessageRun, halves_of, joined
from libramq.store.log.packing import PackedBatch, pack_batch, with_light
from libramq.store.open_files import OpenFiles
from libramq.store.queues.consume_queue import PENDING_BYTES_MAX, ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.reading.unwrapping import Unwrapping
from libramq.store.refusal import Refusal
from libramq.store.visible_contents import VisibleContents


class AppendedContents(VisibleContents):
    """The contents, to which messages are added."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        files: OpenFiles,
        log: CommitLog,
        queues: ConsumeQueueTable,
        unwrapping: Unwrapping,
        clock: Clock,
    ) -> None:
        super().__init__(config, filesystem, files, log, queues, unwrapping)
        self._clock = clock
        self._refusal = Refusal(clock)
        self._store_host = encode_host(config.store_host)
        #: Messages stored by topic, since the last drain.
        self.topic_puts: dict[str, int] = {}
        self._last_store_timestamp_ms = WallMs(0)
        self._put_count = self._put_bytes = 0
        #: Whether everything is refused, as too few slaves are in sync.
        self.lacks_replicas = False

    def append_batch(self, messages: Sequence[StoreMessage | MessageRun]) -> list[AppendResult]:
        """Store messages, all in one file and by one write; return one result per message or run."""
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
            if size > log.room():
                if size > self.config.mapped_file_size_commit_log - 8:  # No file can hold it.
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
        """Have new queues of a topic be of batches (queue.type=BatchCQ), unless it has others already."""
        if all(queue.is_batch for queue in self._queues.of_topic(topic)):
            self._queues.batch_topics.add(topic)

    def is_in_batches(self, topic: str) -> bool:
        """Return whether new queues of a topic are of batches."""
        return topic in self._queues.batch_topics

    def _may_write(self) -> bool:
        """Return whether anything can be stored now."""
        raise NotImplementedError

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
        """Handle records that came from the master."""
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
            self._queues.pending[queue] = None  # For the next round, which flushes it.
        except OSError as failed:
            self._refusal.begin(f"a consume queue cannot be written: {failed}")
