"""`ingest`: copies topics into a Parquet, Delta or Iceberg table, each message once. Handles options,
partitions, rejected rows, duplicates and compaction.

`libramq.spark.pipeline.batches` explains how each batch is written only once.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from libramq.errors import ConfigError
from libramq.spark.bodies.bodies import from_message
from libramq.spark.options import ACCESS_PREFIX
from libramq.spark.pipeline.batches import Batch, run_batches, start_batches, waiting
from libramq.spark.pipeline.body_columns import EVENT_TIME_TYPES, BodyColumns
from libramq.spark.pipeline.checkpoint import Checkpoint
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.object_store import SCHEME, ObjectStore, stored_directory
from libramq.spark.pipeline.plan import (
    OnProgress,
    PipelineFailed,
    Plan,
    RunResult,
    TablePlan,
    failures_in_one_line,
)
from libramq.spark.pipeline.table_columns import arrow_schema, check_kinds, gained_columns
from libramq.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from libramq.spark.pipeline.delta_table import DeltaTable
    from libramq.spark.pipeline.iceberg_table import IcebergTable
    from libramq.spark.pipeline.parquet_table import ParquetTable

#: Ours: about 20 MB of small messages, 0.5 s of reading.
BATCH_MESSAGES: Final = 200_000
#: Ours: the number of batches between compactions. A batch adds one file per task and day.
COMPACT_EVERY: Final = 50
#: Suffix of the table of bodies that do not fit: TABLE_rejected.
REJECTED: Final = "_rejected"
PARTITION_TYPES: Final = ("string", "int", "bigint", "boolean", "date")


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ingest's file.

    topics: names. table: a directory or s3://BUCKET/PATH, or NAMESPACE.NAME in Iceberg. storage: endpoint and
    region of S3; credentials are in the environment. namesrv: as `-n`. access: credentials and TLS, as in
    $LIBRA_ACCESS. format: of the table. catalog: pyiceberg's properties of the Iceberg catalog.
    checkpoint: a directory for this table alone, by default TABLE.checkpoint.
    starting: where a new table begins. batch_messages: the most messages that a batch reads.
    body: string if bodies are UTF-8 text; any other body goes unchanged to the column corrupt. json, avro or
    protobuf: the body's fields become columns, given by `columns` (JSON: names and types) or `schema` (a
    file, with `message` as the type of Protocol Buffers bodies). Bodies that do not fit go to TABLE_rejected.
    event_time: the body column whose day becomes `date`. partitioned_by: columns.
    properties: whether the table has the message properties, as a map.
    dedup: drop messages of a topic that repeat a unique_id or key within `dedup_within`.
    every: run continuously and poll this often ("10s"); otherwise a run reads the existing messages and ends.
    compact: merge a Delta or Iceberg table's small files from time to time and at the end of a run.
    source: further options of format("rocketmq").
    """

    topics: list[str]
    table: str
    namesrv: str | None = None
    access: dict[str, str] = {}
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    catalog: dict[str, str] = {}
    storage: dict[str, str] = {}
    checkpoint: str | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    batch_messages: int = BATCH_MESSAGES
    body: Literal["binary", "string", "json", "avro", "protobuf"] = "binary"
    columns: dict[str, str] = {}
    schema: str | None = None
    message: str | None = None
    event_time: str | None = None
    partitioned_by: list[str] = msgspec.field(default_factory=lambda: ["date"])
    properties: bool = False
    dedup: Literal["none", "unique_id", "key"] = "none"
    dedup_within: str = "1h"
    every: str | None = None
    compact: bool = False
    source: dict[str, str] = {}


class Ingest:
    """Ingests topics into one table. Raises ConfigError for an inconsistent configuration."""

    name = "ingest"

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._every_ms = None if config.every is None else duration_ms("every", config.every)
        self._within_ms = duration_ms("dedup_within", config.dedup_within)
        if config.batch_messages < 1:
            raise ConfigError(f"batch_messages={config.batch_messages}: give a whole number from 1 on")
        if config.compact and config.format == "parquet":
            raise ConfigError(
                "compact is for Delta and Iceberg tables: in Parquet each batch must keep its own files"
            )
        if bool(config.catalog) != (config.format == "iceberg"):
            raise ConfigError('format = "iceberg" needs a table [catalog], and no other format takes one')
        self._check_places()
        is_directory = config.format != "iceberg" and not config.table.startswith(SCHEME)
        self._place = str(Path(config.table).absolute()) if is_directory else config.table.rstrip("/")
        self._name = Path(self._place).name
        checkpoint = config.checkpoint or f"{self._place if is_directory else self._name}.checkpoint"
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
        self._rows_written = self._files_merged = self._rejected = 0
        self._bodies = _body_columns(config)
        self._check_days()
        partitions = ",".join(config.partitioned_by)
        self._binding = {"table": self._place, "format": config.format, "partitioned_by": partitions}
        if config.format == "iceberg":  # Not the columns: more may be added, and the table records its own.
            self._binding["catalog"] = config.catalog.get("uri", "").rpartition("@")[2]  # Without a password.
        else:
            self._binding |= {"body": config.body, "properties": str(config.properties).lower()}

    def _check_places(self) -> None:
        """Raise ConfigError for an impossible place of the table or the checkpoint."""
        config, is_s3 = self._config, self._config.table.startswith(SCHEME)
        if "://" in config.table and (config.format == "iceberg" or not is_s3):
            raise ConfigError(
                f"table={config.table!r}: give a directory of Spark's workers too, or {SCHEME}BUCKET/PATH"
                ' with format = "parquet" or "delta"; an Iceberg table lies in the warehouse of its catalog'
            )
        if "://" in (config.checkpoint or ""):
            raise ConfigError(
                f"checkpoint={config.checkpoint!r}: give a directory, on a disk of the driver's"
            )
        if config.storage and not is_s3 and config.format != "iceberg":
            raise ConfigError(f"[storage] is for tables in S3; table={config.table!r} is a directory")
        stored_directory(config.table, config.storage)
        if is_s3 and config.dedup != "none":
            raise ConfigError(
                "dedup has Spark read the table, which needs Hadoop's jars for S3: keep the table on a disk"
            )

    def _check_days(self) -> None:
        """Raise ConfigError for invalid partition columns or event time."""
        config, columns = self._config, self._columns()
        for name in config.partitioned_by or [""]:
            if (kind := columns.get(name)) not in PARTITION_TYPES:
                reason = f"{name} is not a column; " if kind is None else f"{name} is a {kind}; "
                raise ConfigError(
                    f"partitioned_by={config.partitioned_by!r}: {reason if name else ''}give columns of the "
                    f"types {', '.join(PARTITION_TYPES)}"
                )
        kinds = self._bodies.columns if self._bodies is not None else {}
        if config.event_time is not None and kinds.get(config.event_time) not in EVENT_TIME_TYPES:
            raise ConfigError(
                f"event_time={config.event_time!r}: give a column of the body with the type timestamp or date"
            )
        if config.dedup != "none" and (config.event_time or config.partitioned_by != ["date"]):
            raise ConfigError("dedup looks into the days of storing: leave out event_time and partitioned_by")

    def plan(self) -> Plan:
        """Plan what a run would read and write, without changing anything."""
        self._check_table()
        remarks = []
        if self._config.dedup != "none":
            remarks.append(
                f"messages of a topic with the same {self._config.dedup} within {self._config.dedup_within} "
                "are left out"
            )
        positions = self._checkpoint.positions()
        reads = waiting(self._options, positions)
        # With starting = "latest", a first run is needed to record the current end.
        is_needed = (
            self._every_ms is not None or self._config.compact or any(read.row_count for read in reads)
        )
        is_needed = is_needed or (positions is None and self._config.starting == "latest")
        return Plan(
            pipeline=self.name,
            reads=reads,
            nothing_to_do="" if is_needed else f"no message of {', '.join(self._config.topics)} is new",
            tables=[
                self._table_plan("", self._columns(), self._config.partitioned_by),
                *(
                    [self._table_plan(REJECTED, self._rejected_columns(), ["date"])]
                    if self._bodies is not None
                    else []
                ),
            ],
            remarks=[*remarks, f"checkpoint: {self._checkpoint.directory}"],
        )

    def _table_plan(
        self, suffix: str, columns: Mapping[str, str], partitioned_by: Sequence[str]
    ) -> TablePlan:
        batch = ("batch",) if self._config.format == "parquet" else ()
        return TablePlan(
            name=self._name + suffix,
            path=self._binding.get("catalog") or self._place + suffix,
            format=self._config.format,
            columns=columns,
            partitioned_by=(*batch, *partitioned_by),
        )

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> RunResult:
        """Ingest the existing messages, or run continuously with `every`; raises PipelineFailed."""
        self.plan()  # Raises before anything is created.
        with self._checkpoint.locked(), self._directory_locked():
            return self._run(spark, on_progress, self.plan())

    @contextmanager
    def _directory_locked(self) -> Iterator[None]:
        """Lock a table's directory, even a new one, against runs with other checkpoints."""
        if self._config.format == "iceberg" or self._place.startswith(SCHEME):
            yield
            return
        Path(self._place).mkdir(parents=True, exist_ok=True)
        directory = os.open(self._place, os.O_RDONLY)
        try:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another run, with another checkpoint, writes to {self._place}; give its checkpoint, or "
                    "another table"
                ) from None
            yield
        finally:
            os.close(directory)

    def _claim(self) -> None:
        """Claim a new table for this checkpoint; ConfigError if a run with another one has begun."""
        owner = self._checkpoint.owner
        if self._config.format == "iceberg":
            self._iceberg_table("").create(arrow_schema(self._columns()), owner)
        elif (directory := stored_directory(self._config.table, self._config.storage)) is not None:
            other = directory.claim(owner)
            if other is not None:
                raise ConfigError(
                    f"another run, with another checkpoint, has begun to write to {self._place}; give its "
                    f"checkpoint, or another table, or delete {other} if there is no such run"
                )

    def _run(self, spark: "SparkSession", on_progress: OnProgress, plan: Plan) -> RunResult:
        total = None if self._every_ms is not None else plan.message_count
        with failures_in_one_line(self.name):
            gained = self._gained_columns()
            if not self._checkpoint.is_bound:
                self._claim()
            self._checkpoint.bind(self._binding, gained)
            query = start_batches(
                spark,
                self._options,
                self._checkpoint,
                self._write,
                every_ms=self._every_ms,
                name=f"ingest {self._name}",
            )
            done = run_batches(query, on_progress, total)
        sentence = (
            f"{done:,} messages of {', '.join(self._config.topics)} read, "
            f"{self._rows_written:,} rows written to {self._place}"
        )
        if self._rejected:
            sentence += f"; {self._rejected:,} bodies did not fit, see {self._place}{REJECTED}"
        if self._config.compact:
            try:
                self._compact()
            except Exception as error:  # From the table's library, its catalog or its store.
                reason = str(error).strip().partition("\n")[0]
                raise PipelineFailed(
                    f"{sentence}; small files were not merged: {type(error).__name__}: {reason}; run it "
                    "again and it tries again"
                ) from error
            sentence += f"; {self._files_merged} small files were merged"
        return RunResult(sentence=sentence)

    def _write(self, messages: "DataFrame", batch: Batch) -> None:
        """Write one batch to the table, unless the table has it."""
        table = self._table()
        if self._config.dedup == "none" and self._bodies is None:
            self._rows_written += table.write_once(self._as_table(messages), batch)
        elif not table.has_batch(batch):
            messages.persist()  # Used twice: read from the brokers only once.
            try:
                rows = messages
                if self._config.dedup != "none":
                    rows = without_duplicates(messages, table, self._config.dedup, self._within_ms)
                if self._bodies is not None:
                    rows = self._decode(rows, self._bodies, batch)
                self._rows_written += table.write_once(self._as_table(rows), batch)
            finally:
                messages.unpersist()
        if self._config.compact and batch.number % COMPACT_EVERY == COMPACT_EVERY - 1:
            self._compact()

    def _decode(self, rows: "DataFrame", bodies: BodyColumns, batch: Batch) -> "DataFrame":
        """Return the rows with their body columns; write rows that do not fit to the table of rejected rows.

        The rejected rows come first, because a batch in the main table counts as done.
        """
        from pyspark.sql import functions as f

        read = rows.withColumn("_read", bodies.decoded())
        read = read.withColumn("reason", bodies.reason(f.col("_read"), self._config.partitioned_by))
        misfits = read.where("reason is not null")
        if not misfits.isEmpty():
            rejected = misfits.withColumn("date", f.to_date("timestamp"))
            columns = self._rejected_columns()
            chosen = rejected.select(*(f.col(name).cast(kind).alias(name) for name, kind in columns.items()))
            self._rejected += self._table(REJECTED).write_once(chosen, batch)
        return read.where("reason is null").select(*rows.columns, "_read.value.*")

    def _compact(self) -> None:
        self._files_merged += self._table().compact()
        if self._bodies is not None:
            self._files_merged += self._table(REJECTED).compact()

    def _as_table(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows with the table's columns."""
        from pyspark.sql import functions as f

        day = f.to_date("timestamp")
        if self._config.event_time is not None:
            day = f.coalesce(f.to_date(f.col(f"`{self._config.event_time}`")), day)
        dated = rows.withColumn("date", day)
        if self._config.body == "string":
            text = from_message("body", "string")
            dated = dated.withColumns({"body": text["value"], "corrupt": text["corrupt"]})
        return dated.select(
            *(f.col(f"`{name}`").cast(kind).alias(name) for name, kind in self._columns().items())
        )

    def _columns(self) -> dict[str, str]:
        columns = self._message_columns()
        if self._bodies is not None:
            del columns["body"]
            columns |= self._bodies.columns
        elif self._config.body == "string":
            columns |= {"body": "string", "corrupt": "binary"}
        return {**columns, "date": "date"}

    def _rejected_columns(self) -> dict[str, str]:
        return {**self._message_columns(), "reason": "string", "date": "date"}

    def _message_columns(self) -> dict[str, str]:
        return {
            name: kind for name, kind in COLUMNS.items() if name != "properties" or self._config.properties
        }

    def _check_table(self) -> None:
        """Raise ConfigError if the table belongs to another checkpoint or cannot take these columns."""
        if self._config.format == "iceberg":
            has_rows = self._iceberg_table("").has_rows(self._checkpoint.owner)
        else:
            has_rows = self._table().has_rows()
        has_rows = has_rows or (self._bodies is not None and self._table(REJECTED).has_rows())
        self._checkpoint.check(self._binding, table_has_rows=has_rows)
        if self._config.format == "iceberg":
            self._iceberg_table("").check(self._columns())
        else:  # The checkpoint has the columns; an Iceberg table has its own, as other programs may add some.
            check_kinds(self._place, self._checkpoint.columns(), self._columns())

    def _gained_columns(self) -> dict[str, str]:
        """Return new columns and columns with new fields; ConfigError if other columns differ.

        Parsing nested types needs a Spark session, so a plan compares them less closely.
        """
        columns = self._columns()
        if self._config.format == "iceberg":
            return columns
        gained = gained_columns(self._place, arrow_schema(self._checkpoint.columns()), arrow_schema(columns))
        return {field.name: columns[field.name] for field in gained}

    def _table(self, suffix: str = "") -> "ParquetTable | DeltaTable | IcebergTable":
        """Return the table, or with REJECTED the table of bodies that do not fit."""
        if self._config.format == "iceberg":
            return self._iceberg_table(suffix)
        place = self._place + suffix
        partitioned_by, storage = self._partitioned_by(suffix), self._config.storage
        if self._config.format == "delta":
            from libramq.spark.pipeline.delta_table import DeltaTable

            return DeltaTable(place, partitioned_by=partitioned_by, storage=storage)
        from libramq.spark.pipeline.parquet_table import ParquetTable

        return ParquetTable(place, partitioned_by=partitioned_by, storage=storage)

    def _iceberg_table(self, suffix: str) -> "IcebergTable":
        from libramq.spark.pipeline.iceberg_table import IcebergTable

        catalog = {**ObjectStore.of(self._config.storage).iceberg_properties(), **self._config.catalog}
        return IcebergTable(self._config.table + suffix, catalog, partitioned_by=self._partitioned_by(suffix))

    def _partitioned_by(self, suffix: str) -> list[str]:
        return ["date"] if suffix else self._config.partitioned_by


def _body_columns(config: IngestConfig) -> BodyColumns | None:
    if config.body in ("binary", "string"):
        if config.columns or config.schema is not None or config.message is not None:
            raise ConfigError(f"body = {config.body!r} takes no columns, schema or message")
        return None
    return BodyColumns(config.body, config.columns, config.schema, config.message)


Identity = Literal["unique_id", "key"]


class Table(Protocol):
    """The table with the earlier rows."""

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None": ...


def without_duplicates(batch: "DataFrame", table: Table, identity: Identity, within_ms: int) -> "DataFrame":
    """Return a batch's rows, except repetitions of an id in the batch or the table within a time.

    Of several duplicates in one batch, the one stored first stays. A message without a key is never a
    duplicate by key. Spark's own deduplication is not used: it drops rows older than its watermark, and a
    queue that lags behind the others has such rows. This one loses no rows in any order, and gives the same
    result when a batch is written again after a crash.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    known = batch.withColumn("_id", _id(identity))
    same = Window.partitionBy("topic", "_id").orderBy("timestamp", "broker", "queueId", "offset")
    since = f.unix_millis("timestamp") - f.unix_millis(f.lag("timestamp").over(same))
    first = known.withColumn("_since", since).where(f"_since is null or _since > {within_ms}").drop("_since")
    before = _rows_around(batch, table, within_ms)
    if before is None:
        return first.drop("_id")
    there = before.select(
        f.col("topic").alias("_topic"), _id(identity).alias("_there"), f.unix_millis("timestamp").alias("_at")
    )
    is_again = (
        (f.col("topic") == f.col("_topic"))
        & (f.col("_id") == f.col("_there"))
        & (f.abs(f.unix_millis("timestamp") - f.col("_at")) <= within_ms)
    )
    return first.join(there, is_again, "left_anti").drop("_id")


def _id(identity: Identity) -> "Column":
    from pyspark.sql import functions as f

    if identity == "unique_id":
        return f.col("msgId")
    place = f.concat_ws(":", f.lit("\0"), "broker", "queueId", "offset")  # No key begins with this character.
    return f.coalesce(f.nullif("key", f.lit("")), place)


def _rows_around(batch: "DataFrame", table: Table, within_ms: int) -> "DataFrame | None":
    """Return the table's rows from the days that may hold duplicates of the batch."""
    from pyspark.sql import functions as f

    bounds = batch.select(f.to_date(f.min("timestamp")), f.to_date(f.max("timestamp"))).first()
    if bounds is None or bounds[0] is None:
        return None
    around = timedelta(days=within_ms // 86_400_000 + 1)
    return table.rows_of(batch.sparkSession, bounds[0] - around, bounds[1] + around)
