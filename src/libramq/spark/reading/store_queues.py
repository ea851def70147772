"""A store directory instead of brokers: answers the planner's queries, and reads ranges.

The directory is scanned once, when a query is planned; tasks read exactly what that scan found.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from libramq.client.queue_reader import OnLost, refuse_loss
from libramq.columns.records import Records, arrow_schema
from libramq.errors import RouteNotFound, StoreCorrupt, StoreError
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import Range
from libramq.spark.reading.source_options import SourceOptions
from libramq.spark.reading.worker import warn_of_loss
from libramq.store.reader import Span, StoreReader

T = TypeVar("T")


class StoreQueues:
    """The queues of a store directory. commit_log: the directory of its commit log, if it is elsewhere."""

    def __init__(self, directory: str, broker_name: str, commit_log: str | None = None) -> None:
        self._broker_name = broker_name
        self._directory = directory
        self._reader = _reader(directory, commit_log)
        self._extents = self._reader.survey()
        self._batch_topics = self._reader.batch_topics()

    def topics(self) -> list[str]:
        """Return the topics that have or had messages."""
        return sorted({topic for topic, _ in self._extents} | set(self._batch_topics))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic.

        Raises RouteNotFound if there are none, and StoreError for batch queues (BatchCQ).
        """
        if topic in self._batch_topics:
            raise StoreError(
                f"{self._directory}: topic {topic} keeps batches (queue.type=BatchCQ), which are not read "
                "from a directory; read them from the broker, or leave the topic out"
            )
        found = [
            MessageQueue(name, self._broker_name, number) for name, number in self._extents if name == topic
        ]
        if not found:
            there = ", ".join(self.topics()[:20])
            raise RouteNotFound(f"store {self._directory} has no topic {topic}; there are {there}")
        return found

    def patiently(self, look_up: Callable[[], T]) -> T:
        """Look up without retrying: waiting for a directory would not help."""
        return look_up()

    def absent_brokers(
        self, topics: Collection[str], required: Collection[str] = (), *, waits: bool = False
    ) -> dict[str, list[str]]:
        """Return none: a directory has no absent brokers."""
        return {}

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return each queue's maximum offset."""
        return {queue: self._extents[queue.topic, queue.queue_id].max_offset for queue in queues}

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return each queue's minimum offset."""
        return {queue: self._extents[queue.topic, queue.queue_id].min_offset for queue in queues}

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at or after each queue's time, or the queue's end."""
        keys = {queue: (queue.topic, queue.queue_id) for queue in times_ms}
        return {
            queue: self._reader.offset_at(keys[queue], self._extents[keys[queue]], time_ms)
            for queue, time_ms in times_ms.items()
        }

    def spans(self, ranges: Sequence[Range]) -> tuple[Span, ...]:
        """Return the ranges to read, with the extents found by the scan, for a task."""
        return tuple(
            Span(key, part.start, part.end, self._extents[key])
            for part in ranges
            for key in [(part.queue.topic, part.queue.queue_id)]
        )

    def close(self) -> None:
        """Close the file descriptors."""
        self._reader.close()


def _reader(directory: str, commit_log: str | None) -> StoreReader:
    return StoreReader(Path(directory), commit_log=Path(commit_log) if commit_log else None)


def read_spans(
    options: SourceOptions, columns: Sequence[str], spans: Sequence[Span]
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the messages of the spans; missing messages fail the task or log a warning."""
    assert options.store is not None
    lost: OnLost = refuse_loss if options.fail_on_data_loss else warn_of_loss

    def lost_of(key: tuple[str, int], start: int, end: int) -> None:
        lost(MessageQueue(key[0], options.store_broker, key[1]), start, end)

    schema = arrow_schema(columns)
    reader = _reader(options.store, options.store_commit_log)
    try:
        for window in reader.windows(spans, lost_of):
            records = Records(window.data, window.starts)
            if not (records.physical_offsets == window.physical).all():
                raise StoreCorrupt(f"{options.store}: its consume queues point to data that is not a record")
            yield records.batch([(options.store_broker, len(window.data))], schema)
    finally:
        reader.close()
