"""A kept topic: its messages in a table, beyond the brokers' retention."""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from libramq.errors import RouteNotFound
from libramq.spark.pipeline.ingest.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.plan import OnProgress, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KeptTopic:
    """One topic and its table, filled by ingest. The table may outlive the topic."""

    def __init__(self, config: IngestConfig) -> None:
        self._table = Path(config.table)
        self._ingest = Ingest(config)

    def plan(self) -> Plan | None:
        """Plan what a run would read; None if no broker has the topic."""
        try:
            return self._ingest.plan()
        except RouteNotFound:
            return None

    def read(self, spark: "SparkSession", on_progress: OnProgress) -> None:
        """Read new messages."""
        if self.plan() is not None:
            self._ingest.run(spark, on_progress)

    def has_rows(self) -> bool:
        """Return whether anything was ever read."""
        return any(self._table.glob("batch=*/*/*.parquet"))

    def rows(self, spark: "SparkSession", since_ms: int | None) -> "DataFrame":
        """Return the rows stored since then; only where has_rows."""
        rows = spark.read.parquet(str(self._table))
        return rows if since_ms is None else rows.where(f.unix_millis("timestamp") >= since_ms)
