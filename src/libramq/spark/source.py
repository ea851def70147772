"""`format("rocketmq")`: topics as a table and as a stream. Spark's entry point; groups ranges into tasks (one
empty task if there are no ranges).

Spark asks for the schema in one process, plans in a second and reads in others, so a reader consists of plain
values. Objects with sockets are created where they are used and never sent. The planning and reading modules
are also imported only there, so that a process that only asks for the schema starts faster.
"""

import gc
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from libramq.errors import ConfigError
from libramq.spark.reading.positions import Limits, Range, StreamOffset
from libramq.spark.reading.source_options import SourceOptions
from libramq.spark.schema import COLUMNS, columns_of, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from libramq.client.queue_reader import QueueReader
    from libramq.spark.reading.lag_mirror import LagMirror
    from libramq.spark.reading.planner import Planner, Queues
    from libramq.spark.reading.pushdown import ReadRange
    from libramq.spark.writing.sink import MessagesStreamWriter, MessagesWriter
    from libramq.spark.writing.sink_options import SinkOptions
    from libramq.store.reader import Span


ROWS_WORTH_A_TASK: Final = 50_000
"""Below this many rows, one Python task is faster than two."""


def tasks(
    ranges: Iterable[Range],
    *,
    cores: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[Range]]:
    """Group ranges into tasks of similar size.

    A Python task has a fixed cost of 25 to 50 ms. So few rows make one task, even in many queues, and many
    rows make one task per core. `minPartitions` and `maxRecordsPerPartition` can demand more.

    Upstream: Kafka's KafkaOffsetRangeCalculator.scala, which begins with one task per partition.
    """
    ranges = list(ranges)
    total = sum(part.row_count for part in ranges)
    if not total:
        return []
    count = min(cores, math.ceil(total / ROWS_WORTH_A_TASK))
    if min_partitions is not None:
        count = max(1, min(min_partitions, total))
    if max_records is not None:
        count = max(count, math.ceil(total / max_records))
    return _cut(ranges, total, count)


def _cut(ranges: Sequence[Range], total: int, count: int) -> list[list[Range]]:
    """Divide ranges into this many tasks, filled one after another in queue order."""
    share, remainder = divmod(total, count)
    groups: list[list[Range]] = []
    room = 0
    for queue, position, end in sorted(ranges):
        while position < end:
            if not room:
                room = share + (len(groups) < remainder)
                groups.append([])
            stop = min(position + room, end)
            groups[-1].append(Range(queue, position, stop))
            room -= stop - position
            position = stop
    return groups


class RocketMQSource(DataSource):
    """The data source that Spark looks up as `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        freeze_loaded_modules()
        # Columns outside the schema are not decoded.
        return ddl({name: COLUMNS[name] for name in SourceOptions.parse(self.options).columns})

    def reader(self, schema: "StructType") -> "QueuesReader":
        options = SourceOptions.parse(self.options)
        options.check_batch()
        kind = FilteredQueuesReader if options.pushdown else QueuesReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: "StructType") -> "QueuesStreamReader":
        options = SourceOptions.parse(self.options)
        options.check_stream()
        return QueuesStreamReader(options, columns_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> "MessagesWriter":
        from libramq.spark.writing.sink import MessagesWriter

        if overwrite:
            raise ConfigError('messages can only be added: mode("append")')
        return MessagesWriter(self._sink_options(schema))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "MessagesStreamWriter":
        from libramq.spark.writing.sink import MessagesStreamWriter

        if overwrite:
            raise ConfigError('messages can only be added: outputMode("append") or ("update")')
        return MessagesStreamWriter(self._sink_options(schema))

    def _sink_options(self, schema: "StructType") -> "SinkOptions":
        from libramq.spark.writing.sink_options import SinkOptions

        options = SinkOptions.parse(self.options)
        options.check_columns(schema)
        return options


_frozen_in: set[int] = set()


def freeze_loaded_modules() -> None:
    """Exclude everything a worker process has loaded so far from garbage collection.

    PySpark's daemon collects after every task, which costs 12 to 28 ms of processor time for the modules
    alone.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is None or module.name != "pyspark.daemon" or os.getpid() in _frozen_in:
        return  # The process is the user's, or has already frozen.
    _frozen_in.add(os.getpid())
    gc.freeze()


class TaskInput(InputPartition):
    """The input of one task: ranges of queues, or spans of a store directory."""

    def __init__(self, parts: "Sequence[Range] | Sequence[Span]") -> None:
        super().__init__(None)
        self.parts: Any = tuple(parts)


class QueuesReader(DataSourceReader):
    """Reads topics from one boundary to another, once."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._wanted: ReadRange | None = None

    def partitions(self) -> list[InputPartition]:
        from libramq.spark.reading.worker import log_to_spark, new_queue_reader

        freeze_loaded_modules()
        options = self._options
        log_to_spark(options.subscription)
        # At least one task: without partitions, Spark would add one that read() cannot handle.
        if options.store is not None:
            from libramq.spark.reading.store_queues import StoreQueues

            with closing(StoreQueues(options.store, options.store_broker, options.store_commit_log)) as store:
                groups = _groups(options, self._ranges(store))
                return [TaskInput(store.spans(group)) for group in groups] or [TaskInput(())]
        with closing(new_queue_reader(options.connection)) as queues:
            ranges = self._ranges(queues)
            if ranges and options.connection.sql is not None:
                queues.probe(ranges[0].queue)  # Brokers that cannot filter refuse before a task starts.
        return _partitions(options, ranges) or [TaskInput(())]

    def _ranges(self, source: "Queues") -> list[Range]:
        from libramq.spark.reading.planner import batch_ranges

        ranges = batch_ranges(self._options, source)
        return ranges if self._wanted is None else self._wanted.cut(ranges, source.offsets_at)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, self._columns, partition)


class FilteredQueuesReader(QueuesReader):
    """A reader with push-down. Spark fails every query on such a reader while its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from libramq.spark.reading.pushdown import ReadRange

        self._wanted = ReadRange.of(filters)
        return filters  # Spark checks all again: push-down limits the ranges but does not filter rows.


class QueuesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: Planner | None = None
        self._mirror: LagMirror | None = None
        self._queues: QueueReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        # These hold sockets, and tasks do not plan.
        return {**self.__dict__, "_planner": None, "_mirror": None, "_queues": None}

    @property
    def planner(self) -> "Planner":
        if self._planner is None:
            from libramq.spark.reading.lag_mirror import LagMirror
            from libramq.spark.reading.planner import Planner
            from libramq.spark.reading.worker import log_to_spark, new_queue_reader

            freeze_loaded_modules()
            log_to_spark(self._options.subscription)
            self._queues = queues = new_queue_reader(self._options.connection)
            self._planner = Planner(self._options, queues)
            if self._options.commit_group is not None:
                self._mirror = LagMirror(queues, self._options.commit_group)
        return self._planner

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.fix_target()

    def initialOffset(self) -> dict[str, Any]:
        initial = self.planner.initial()
        if initial and self._options.connection.sql is not None and self._queues is not None:
            self._queues.probe(min(initial))  # Brokers that cannot filter refuse before a task starts.
        return StreamOffset(initial).encode()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        planner, start_offset = self.planner, StreamOffset.decode(start)
        if self._mirror is not None:
            self._mirror.show(start_offset.positions)
        # Follow Spark's limit: with Trigger.Once it asks for everything despite the options.
        row_limit = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        options, is_limited = self._options, not isinstance(limit, ReadAllAvailable)
        row_minimum = options.min_offsets_per_trigger if is_limited else None
        byte_limit = options.max_bytes_per_trigger if is_limited else None
        limits = Limits(row_limit, byte_limit, row_minimum)
        end = planner.next_end(start_offset.positions, limits, start_offset.since)
        since = planner.since(start_offset.since)
        if start_offset.began is None and planner.is_initial(start_offset.positions):
            return StreamOffset(end, began=start_offset.positions, since=since).encode()
        if end == start_offset.positions:
            return dict(start)
        return StreamOffset(end, since=since).encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return StreamOffset(self.planner.latest).encode()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        ending = StreamOffset.decode(end)
        begin = ending.began if ending.began is not None else StreamOffset.decode(start).positions
        return _partitions(self._options, self.planner.ranges(begin, ending.positions))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, self._columns, partition)

    def stop(self) -> None:
        if self._queues is not None:
            self._queues.close()


def _partitions(options: SourceOptions, ranges: Sequence[Range]) -> list[InputPartition]:
    return [TaskInput(group) for group in _groups(options, ranges)]


def _groups(options: SourceOptions, ranges: Sequence[Range]) -> list[list[Range]]:
    return tasks(
        ranges,
        cores=os.cpu_count() or 1,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )


def _read(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    from libramq.spark.reading.worker import log_to_spark, read_ranges

    assert isinstance(partition, TaskInput)
    freeze_loaded_modules()
    log_to_spark(options.subscription)
    if options.store is None:
        return read_ranges(options, columns, partition.parts)
    from libramq.spark.reading.store_queues import read_spans

    return read_spans(options, columns, partition.parts)
