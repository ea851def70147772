"""Measurements of any source through its options; needs PySpark but nothing of LibraMQ."""

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

WAIT_SECONDS = 600


class Source(NamedTuple):
    """A table to read. body: the column with the message's bytes; columns: those to select, or all."""

    format: str
    options: dict[str, str]
    body: str
    columns: str | None = None


class Streamed(NamedTuple):
    """The time of a streaming run, and of its batches after the first."""

    seconds: float
    later_rows: int
    later_seconds: float

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Streamed":
        return cls(*(fields[name] for name in cls._fields))


def batch_seconds(spark: Any, source: Source, count: int) -> float:
    """Time count(*), sum(length(body)), max(offset), max(timestamp) of a table; check its count."""
    from pyspark.sql import functions as f

    began = time.perf_counter()
    reader = spark.read.format(source.format).options(**source.options)
    table = (reader if source.columns is None else reader.schema(source.columns)).load()
    measures = f.count("*"), f.sum(f.length(source.body)), f.max("offset"), f.max("timestamp")
    (row,) = table.agg(*measures).collect()
    if row[0] != count:
        raise SystemExit(f"{source}: {row[0]} rows instead of {count}")
    return time.perf_counter() - began


def stream_seconds(spark: Any, source: Source, count: int, home: Path) -> Streamed:
    """Time one AvailableNow run from the beginning into a sink that discards rows."""
    reader = spark.readStream.format(source.format).options(**source.options)
    table = reader.option("startingOffsets", "earliest").load()
    began = time.perf_counter()
    writer = table.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp(dir=home))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(WAIT_SECONDS)
    taken = time.perf_counter() - began
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    if rows != count:
        raise SystemExit(f"{source}: {rows} rows instead of {count}")
    later = [each for each in query.recentProgress[1:] if each["numInputRows"]]
    spent = sum(each["durationMs"]["triggerExecution"] for each in later) / 1000
    return Streamed(taken, sum(each["numInputRows"] for each in later), spent)
