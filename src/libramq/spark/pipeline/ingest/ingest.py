"""`ingest`: topics into a Parquet or Delta table, each (broker, topic, queue, offset) once.

        find a batch's end ─► read it ─► drop duplicates ─► write with the batch's number ─► mark it as done

Spark's checkpoint does the first and the last. A run killed between the last two finds the number in the
table and writes nothing.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from libramq.errors import ConfigError
from libramq.spark.bodies.bodies import from_message
from libramq.spark.options import ACCESS_PREFIX
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.failure import failures_in_one_line
from libramq.spark.pipeline.ingest.checkpoint import Checkpoint
from libramq.spark.pipeline.messages import waiting
from libramq.spark.pipeline.plan import OnProgress, Plan, Progress, RunResult, TablePlan
from libramq.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from libramq.spark.pipeline.ingest.delta_table import DeltaTable
    from libramq.spark.pipeline.ingest.parquet_table import ParquetTable

#: Ours: 20 MB of small messages, which Spark's driver can hold for Delta; 0.5 s of reading.
BATCH_MESSAGES: Final = 200_000
LOOK_SECONDS: Final = 0.2  # How often Spark's progress is polled.
DAY_MS: Final = 86_400_000


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ingest's file.

    topics: names. table: a directory. namesrv: as `-n`. access: credentials and TLS, as in $LIBRA_ACCESS.
    format: of the table. checkpoint: a directory for this table alone, by default TABLE.checkpoint.
    starting: where a new table begins. batch_messages: how many messages a batch reads at most.
    body: string if bodies are UTF-8 text; one that is not is in the column corrupt, unchanged.
    properties: whether the table has them, as a map.
    dedup: drop messages of a topic whose unique_id or key came within `dedup_within` of each other.
    every: run continuously and look this often ("10s"); otherwise a run reads the existing messages and ends.
    compact: merge a Delta table's small files when a run ends.
    source: further options of format("rocketmq").
    """

    topics: list[str]
    table: str
    namesrv: str | None = None
    access: dict[str, str] = {}
    format: Literal["parquet", "delta"] = "parquet"
    checkpoint: str | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    batch_messages: int = BATCH_MESSAGES
    body: Literal["binary", "string"] = "binary"
    properties: bool = False
    dedup: Literal["none", "unique_id", "key"] = "none"
    dedup_within: str = "1h"
    every: str | None = None
    compact: bool = False
    source: dict[str, str] = {}


class Ingest:
    """One table and its topics. Raises ConfigError for an inconsistent configuration."""

    name = "ingest"

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._every_ms = None if config.every is None else duration_ms("every", config.every)
        self._within_ms = duration_ms("dedup_within", config.dedup_within)
        if config.batch_messages < 1:
            raise ConfigError(f"batch_messages={config.batch_messages}: give a whole number from 1 on")
        if config.compact and config.format != "delta":
            raise ConfigError("compact is for Delta tables: in Parquet a batch is what can be written again")
        if "://" in config.table or "://" in (config.checkpoint or ""):
            raise ConfigError(f"table={config.table!r}: give a directory that Spark's workers have too")
        self._path = Path(config.table).absolute()
        checkpoint = config.checkpoint or f"{self._path}.checkpoint"
        self._checkpoint = Checkpoint(Path(checkpoint).absolute())
        self._options = {
            "subscribe": ",".join(config.topics),
            "startingOffsets": config.starting,
            "maxOffsetsPerTrigger": str(config.batch_messages),
            "includeHeaders": str(config.properties).lower(),
            **({"namesrv": config.namesrv} if config.namesrv else {}),
            **{f"{ACCESS_PREFIX}{name}": text for name, text in config.access.items()},
            **config.source,
        }
        self._rows_written = 0
        self._binding = {
            "table": str(self._path),
            "format": config.format,
            "body": config.body,
            "properties": str(config.properties).lower(),
        }

    def plan(self) -> Plan:
        """Plan what a run would read and write; nothing is changed."""
        self._checkpoint.check(self._binding, table_has_rows=self._table().has_rows())
        remarks = []
        if self._config.dedup != "none":
            remarks.append(
                f"messages of a topic with the same {self._config.dedup} within {self._config.dedup_within} "
                "are left out"
            )
        return Plan(
            pipeline=self.name,
            reads=waiting(self._options, self._checkpoint.positions()),
            tables=[
                TablePlan(
                    name=self._path.name,
                    path=str(self._path),
                    format=self._config.format,
                    columns=self._columns(),
                    partitioned_by=("date",) if self._config.format == "delta" else ("batch", "date"),
                )
            ],
            remarks=[*remarks, f"checkpoint: {self._checkpoint.directory}"],
        )

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> RunResult:
        """Read the existing messages, or continuously with `every`; raises PipelineFailed."""
        self.plan()  # Of what is wrong nothing is made.
        with self._checkpoint.locked():
            return self._run(spark, on_progress, self.plan())

    def _run(self, spark: "SparkSession", on_progress: OnProgress, plan: Plan) -> RunResult:
        self._checkpoint.bind(self._binding)
        with failures_in_one_line(self.name):
            query = self._start(spark)
            try:
                done = _follow(query, on_progress, None if self._every_ms is not None else plan.message_count)
            finally:
                query.stop()
        sentence = (
            f"{done:,} messages of {', '.join(self._config.topics)} read, "
            f"{self._rows_written:,} rows written to {self._path}"
        )
        if self._config.compact:
            from libramq.spark.pipeline.ingest.delta_table import DeltaTable

            count = DeltaTable(self._path).compact()
            sentence += f"; {count} small files were merged"
        return RunResult(sentence=sentence)

    def _start(self, spark: "SparkSession") -> "StreamingQuery":
        messages = spark.readStream.format("rocketmq").options(**self._options).load()
        writer = (
            messages.writeStream.queryName(f"ingest {self._path.name}")
            .option("checkpointLocation", str(self._checkpoint.directory))
            .foreachBatch(self._write)
        )
        if self._every_ms is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._every_ms} milliseconds").start()

    def _write(self, batch: "DataFrame", number: int) -> None:
        """Write one batch to the table, unless it is there."""
        from libramq.spark.pipeline.ingest.duplicates import without_duplicates

        table = self._table(self._checkpoint.query_id())
        if table.has_batch(number):
            return
        if self._config.dedup == "none":
            self._rows_written += table.write(self._as_table(batch), number)
            return
        batch.persist()  # It is used twice, and would be read twice.
        try:
            rows = without_duplicates(batch, table, self._config.dedup, self._within_ms)
            self._rows_written += table.write(self._as_table(rows), number)
        finally:
            batch.unpersist()

    def _as_table(self, rows: "DataFrame") -> "DataFrame":
        """Return the table's columns."""
        from pyspark.sql import functions as f

        dated = rows.withColumn("date", f.to_date("timestamp"))
        if self._config.body == "string":
            text = from_message("body", "string")
            dated = dated.withColumns({"body": text["value"], "corrupt": text["corrupt"]})
        return dated.select(*(f.col(name).cast(kind).alias(name) for name, kind in self._columns().items()))

    def _columns(self) -> dict[str, str]:
        return {
            **{
                name: kind
                for name, kind in COLUMNS.items()
                if name != "properties" or self._config.properties
            },
            "body": self._config.body,
            **({"corrupt": "binary"} if self._config.body == "string" else {}),
            "date": "date",
        }

    def _table(self, query_id: str = "") -> "ParquetTable | DeltaTable":
        if self._config.format == "delta":
            from libramq.spark.pipeline.ingest.delta_table import DeltaTable

            return DeltaTable(self._path, query_id=query_id)
        from libramq.spark.pipeline.ingest.parquet_table import ParquetTable

        return ParquetTable(self._path)


def _follow(query: "StreamingQuery", on_progress: OnProgress, total: int | None) -> int:
    """Report every batch until the query ends; return how many messages were read."""
    done, seen = 0, -1
    is_over = False
    while not is_over:
        is_over = not query.isActive
        for progress in query.recentProgress:
            if progress.batchId > seen and progress.numInputRows:
                seen, done = progress.batchId, done + progress.numInputRows
                on_progress(Progress(done=done, total=total, text=f"batch {seen}"))
        if not is_over:
            time.sleep(LOOK_SECONDS)  # Not in a call to Java, which Ctrl-C would interrupt.
    query.awaitTermination()  # Raises the query's failure.
    return done
