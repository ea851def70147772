"""`rebalance_report`: brokers' rebalance events and clients' message traces, as tables and an HTML page.

    LIBRA_REBALANCE_EVENTS ─ ingest ─► events ─► rebalances, moves, hourly, reasons, members ─┐
                                                     │ periods around them                    ├─► report.html
    message trace topic ──── ingest ─► traces ─► duplicates, deliveries, clients, effects ────┘

Either may be missing: Apache's brokers record no rebalances, and clients trace only if configured. The tables
of events and traces outlive the brokers' retention; each run computes all other tables from them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from pyspark.sql import functions as f

from libramq.clock import Clock, SystemClock, WallMs
from libramq.errors import ConfigError, RouteNotFound
from libramq.message.names import REBALANCE_EVENTS_TOPIC, TRACE_TOPIC
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.deliveries import deliveries
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.lag_report import SAMPLES
from libramq.spark.pipeline.plan import OnProgress, Plan, Progress, RunResult, TablePlan, failures_in_one_line
from libramq.spark.pipeline.rebalance_page import rebalance_page
from libramq.spark.pipeline.rebalance_tables import TABLES as OF_EVENTS
from libramq.spark.pipeline.rebalance_tables import rebalance_tables
from libramq.spark.pipeline.small_table import replace_table
from libramq.spark.pipeline.trace_tables import DUPLICATES, period_rows, periods, trace_tables
from libramq.spark.pipeline.trace_tables import TABLES as OF_TRACES
from libramq.spark.schema import ddl

if TYPE_CHECKING:
    import pyarrow as pa
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
        """Return whether the table has rows."""
        return any(self._table.glob("batch=*/*/*.parquet"))

    def rows(self, spark: "SparkSession", since_ms: int | None) -> "DataFrame":
        """Return the rows stored since `since_ms`, or all; the table must have rows."""
        rows = spark.read.parquet(str(self._table))
        return rows if since_ms is None else rows.where(f.unix_millis("timestamp") >= since_ms)


class RebalanceReportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of rebalance_report's file.

    directory: for tables and report. namesrv: as `-n`. access: credentials and TLS, as in $LIBRA_ACCESS.
    since: how far back to report ("7d").
    trace_topic: the clients' trace topic. broadcasting: groups in which every member gets each message.
    producers_zone: the producers' time zone ("Asia/Shanghai"), because times in unique ids count from the
    start of a month; by default this machine's. lag_report: the directory of a lag_report, for lag around
    rebalances.
    """

    directory: str = "rebalance_report"
    namesrv: str | None = None
    access: dict[str, str] = {}
    since: str | None = None
    trace_topic: str = TRACE_TOPIC
    broadcasting: list[str] = []
    producers_zone: str | None = None
    lag_report: str | None = None


class RebalanceReport:
    """Collects the history of a cluster's groups in one directory."""

    name = "rebalance_report"

    def __init__(self, config: RebalanceReportConfig, *, clock: Clock | None = None) -> None:
        self._config = config
        self._directory = Path(config.directory).absolute()
        self._since_ms = None if config.since is None else duration_ms("since", config.since)
        self._zone = None if config.producers_zone is None else _zone(config.producers_zone)
        self._samples = None if config.lag_report is None else Path(config.lag_report).absolute() / "samples"
        if self._samples is not None and not self._samples.is_dir():
            raise ConfigError(
                f"lag_report={config.lag_report!r} has no samples: give a lag_report's directory"
            )
        self._clock = clock or SystemClock()
        self._events = self._kept(REBALANCE_EVENTS_TOPIC, "events", "string")
        self._traces = self._kept(config.trace_topic, "traces", "binary")

    def plan(self) -> Plan:
        """Plan what a run would read and write; ConfigError if there is nothing to read."""
        events, traces = self._events.plan(), self._traces.plan()
        has_events = events is not None or self._events.has_rows()
        has_traces = traces is not None or self._traces.has_rows()
        if not has_events and not has_traces:
            raise ConfigError(
                f"no broker records rebalances in {REBALANCE_EVENTS_TOPIC}, only LibraMQ's do, and no client "
                f"traces to {self._config.trace_topic}; of any broker libra pipeline run lag_report tells "
                "the lag of each group, topic and queue over time"
            )
        columns = {
            **(OF_EVENTS if has_events else {}),
            **({"duplicates": DUPLICATES, **OF_TRACES} if has_traces else {}),
        }
        tables = [
            TablePlan(name=name, path=str(self._file(name)), format="parquet", columns=kinds)
            for name, kinds in columns.items()
        ]
        plans = [plan for plan in (events, traces) if plan is not None]
        return Plan(
            pipeline=self.name,
            reads=[part for plan in plans for part in plan.reads],
            tables=[*(table for plan in plans for table in plan.tables), *tables],
            remarks=[
                *(remark for plan in plans for remark in plan.remarks),
                *self._missing(has_events=has_events, has_traces=has_traces),
                f"report: {self._directory / 'report.html'}",
            ],
        )

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> RunResult:
        """Read new messages, compute the tables and the report."""
        self.plan()
        for topic in (self._events, self._traces):
            topic.read(spark, on_progress)
        has_events, has_traces = self._events.has_rows(), self._traces.has_rows()
        if not has_events and not has_traces:
            raise ConfigError(
                f"{REBALANCE_EVENTS_TOPIC} holds no rebalance yet; one begins with a consumer; and no client "
                f"has traced to {self._config.trace_topic}"
            )
        wall_ms = self._clock.wall_ms()
        remarks = self._missing(has_events=has_events, has_traces=has_traces)
        rows: dict[str, pa.Table] = {}
        with failures_in_one_line(self.name):
            if has_events:
                rows |= rebalance_tables(self._events.rows(spark, self._since(wall_ms)), wall_ms=wall_ms)
            if has_traces:
                tables, more = self._trace_tables(spark, rows.get("rebalances"), self._since(wall_ms))
                rows |= tables
                remarks += more
        for done, (name, table) in enumerate(rows.items(), 1):
            replace_table(self._file(name), table)
            on_progress(Progress(done=done, total=len(rows), text=f"table {name}"))
        listed = {name: table.to_pylist() for name, table in rows.items()}
        page = self._directory / "report.html"
        page.write_text(rebalance_page(listed, wall_ms, remarks))
        names = [*rows, *(["duplicates"] if has_traces else [])]
        return RunResult(
            sentence="; ".join([_sentence(listed), *remarks]),
            files=[str(page), *(str(self._file(name)) for name in names)],
        )

    def _trace_tables(
        self, spark: "SparkSession", rebalances: "pa.Table | None", since_ms: int | None
    ) -> tuple["dict[str, pa.Table]", list[str]]:
        found = deliveries(
            self._traces.rows(spark, since_ms), broadcasting=self._config.broadcasting, zone=self._zone
        )
        around = periods(rebalances.to_pylist() if rebalances is not None else ())
        samples = None
        if self._samples is not None:
            samples = spark.read.schema(ddl(SAMPLES)).parquet(str(self._samples))
        return trace_tables(found, period_rows(spark, around), samples, duplicates=self._file("duplicates"))

    def _missing(self, *, has_events: bool, has_traces: bool) -> list[str]:
        """List the missing data, and why it is missing."""
        missing = []
        if not has_events:
            missing.append(
                f"no broker records rebalances in {REBALANCE_EVENTS_TOPIC}, only LibraMQ's do: reasons, "
                "pauses and moves of queues are unknown (traces name no queue), as is which rebalance caused "
                "a redelivery"
            )
        if not has_traces:
            missing.append(
                f"no client traces to {self._config.trace_topic} (in Java by setEnableTrace, in Python by "
                "libramq.integrations.message_traces): delays, and which messages were redelivered, are "
                "unknown"
            )
        return missing

    def _kept(self, topic: str, table: str, body: Literal["binary", "string"]) -> KeptTopic:
        return KeptTopic(
            IngestConfig(
                topics=[topic],
                table=str(self._directory / table),
                namesrv=self._config.namesrv,
                access=self._config.access,
                body=body,
                source={"failOnDataLoss": "false"},  # Messages deleted by age leave a gap in the history.
            )
        )

    def _since(self, wall_ms: WallMs) -> int | None:
        return None if self._since_ms is None else int(wall_ms) - self._since_ms

    def _file(self, name: str) -> Path:
        return self._directory / (name if name == "duplicates" else f"{name}.parquet")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(f"producers_zone={name!r}: give a zone's name, as Asia/Shanghai or UTC") from None


def _sentence(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    parts = []
    if "rebalances" in tables:
        rows = tables["rebalances"]
        parts.append(f"rebalances: {len(rows):,}, of groups: {len({row['group'] for row in rows}):,}")
    if "deliveries" in tables:
        rows = tables["deliveries"]
        again, caused = (sum(row[name] for row in rows) for name in ("duplicates", "by_rebalance"))
        parts.append(
            f"deliveries traced: {sum(row['deliveries'] for row in rows):,}, of redelivered messages: "
            f"{again:,}, because of rebalances: {caused:,}"
        )
    return "; ".join(parts)
