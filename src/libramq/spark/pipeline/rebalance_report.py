"""`rebalance_report`: what LibraMQ's brokers recorded about rebalances, as tables and as a page to look at.

    LIBRA_REBALANCE_EVENTS ─ ingest ─► events ─► rebalances, moves, hourly, reasons, members ─► report.html

The table of events outlives the brokers' retention; all others are made from it anew by each run.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError, RouteNotFound
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.failure import told_in_one_line
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.plan import Outcome, Plan, Progress, TablePlan, Tell
from libramq.spark.pipeline.rebalance_page import rebalance_page
from libramq.spark.pipeline.rebalance_tables import TABLES, rebalance_tables
from libramq.spark.pipeline.small_table import replace_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class RebalanceReportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of rebalance_report's file.

    directory: where tables and report go. namesrv: as `-n`. since: only the last so long ("7d").
    """

    directory: str = "rebalance_report"
    namesrv: str | None = None
    since: str | None = None


class RebalanceReport:
    """One directory with the history of a cluster's groups."""

    name = "rebalance_report"

    def __init__(self, config: RebalanceReportConfig, *, clock: Clock | None = None) -> None:
        self._directory = Path(config.directory).absolute()
        self._since_ms = None if config.since is None else duration_ms("since", config.since)
        self._clock = clock or SystemClock()
        self._events = self._directory / "events"
        self._ingest = Ingest(
            IngestConfig(
                topics=[REBALANCE_EVENTS_TOPIC],
                table=str(self._events),
                namesrv=config.namesrv,
                body="string",
                source={"failOnDataLoss": "false"},  # Events that were deleted by age: the history has a gap.
            )
        )

    def plan(self) -> Plan:
        """What a run would read and write; ConfigError where no broker records rebalances."""
        try:
            events = self._ingest.plan()
        except RouteNotFound:
            raise ConfigError(
                f"no broker records rebalances in {REBALANCE_EVENTS_TOPIC}, only LibraMQ's do; of any broker "
                "libra pipeline run lag_report tells the lag of each group, topic and queue over time"
            ) from None
        tables = [
            TablePlan(name=name, path=str(self._file(name)), format="parquet", columns=columns)
            for name, columns in TABLES.items()
        ]
        return Plan(
            pipeline=self.name,
            reads=events.reads,
            tables=[*events.tables, *tables],
            remarks=[*events.remarks, f"report: {self._directory / 'report.html'}"],
        )

    def run(self, spark: "SparkSession", tell: Tell) -> Outcome:
        """Read the new events, make the tables and the report."""
        self.plan()
        self._ingest.run(spark, tell)
        now_ms = self._clock.wall_ms()
        with told_in_one_line(self.name):
            rows = self._tables(spark, now_ms, tell)
        page = self._directory / "report.html"
        page.write_text(rebalance_page({name: table.to_pylist() for name, table in rows.items()}, now_ms))
        count, groups = rows["rebalances"].num_rows, len(set(rows["rebalances"]["group"].to_pylist()))
        return Outcome(
            sentence=f"rebalances: {count:,}, of groups: {groups:,}",
            files=[str(page), *(str(self._file(name)) for name in TABLES)],
        )

    def _tables(self, spark: "SparkSession", now_ms: int, tell: Tell) -> "dict[str, pa.Table]":
        from pyspark.sql import functions as f

        if not any(self._events.glob("batch=*/*/*.parquet")):
            raise ConfigError(f"{REBALANCE_EVENTS_TOPIC} holds no rebalance yet; one begins with a consumer")
        events = spark.read.parquet(str(self._events))
        if self._since_ms is not None:
            events = events.where(f.unix_millis("timestamp") >= now_ms - self._since_ms)
        rows = rebalance_tables(events, now_ms=now_ms)
        for done, (name, table) in enumerate(rows.items(), 1):
            replace_table(self._file(name), table)
            tell(Progress(done=done, total=len(rows), text=f"table {name}"))
        return rows

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.parquet"
