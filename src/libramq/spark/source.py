"""`format("rocketmq")`: topics of RocketMQ as a table and as a stream, from any broker that speaks it.

Spark asks for the schema in one process, plans in a second and reads in others, so a reader is plain
values; what holds a socket is made where it is used and left behind when the reader travels. Modules
that plan and read are imported there too: each process that only asks for the schema starts sooner.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from libramq.spark.options import SourceOptions
from libramq.spark.positions import Boundary, Range, from_offset, tasks, to_offset
from libramq.spark.schema import columns_of, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from libramq.spark.planner import Planner


class RocketMQSource(DataSource):
    """The data source Spark finds under `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return ddl(SourceOptions.parse(self.options))

    def reader(self, schema: "StructType") -> "QueuesReader":
        return QueuesReader(SourceOptions.parse(self.options), columns_of(schema))

    def streamReader(self, schema: "StructType") -> "QueuesStreamReader":
        return QueuesStreamReader(SourceOptions.parse(self.options), columns_of(schema))


class QueueRanges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class QueuesReader(DataSourceReader):
    """Reads topics from one boundary to another, once."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        from libramq.spark.planner import Planner

        options = self._options
        ranges = Planner(options).batch_ranges()
        return [QueueRanges(group) for group in tasks(ranges, parallelism=options.parallelism)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from libramq.spark.worker import read_ranges

        assert isinstance(partition, QueueRanges)
        return read_ranges(self._options, self._columns, partition.ranges)


class QueuesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # It holds sockets, and tasks do not plan.

    @property
    def planner(self) -> "Planner":
        if self._planner is None:
            from libramq.spark.planner import Planner

            self._planner = Planner(self._options)
        return self._planner

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.fix_target()

    def initialOffset(self) -> dict[str, int]:
        return to_offset(self.planner.initial(Boundary(default="latest", by_queue={})))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        # Obeyed as given: with Trigger.Once Spark asks for everything in spite of the option.
        row_limit = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_offset(self.planner.next_end(from_offset(start), row_limit))

    def reportLatestOffset(self) -> dict[str, int] | None:
        return to_offset(self.planner.latest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        ranges = self.planner.ranges(from_offset(start), from_offset(end))
        return [QueueRanges(group) for group in tasks(ranges, parallelism=self._options.parallelism)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from libramq.spark.worker import read_ranges

        assert isinstance(partition, QueueRanges)
        return read_ranges(self._options, self._columns, partition.ranges)
