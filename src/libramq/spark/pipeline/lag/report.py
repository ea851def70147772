"""`lag_report`: the lag of groups over time, and how long they need to catch up. Works with any broker.

        repeated consume stats ─► samples ─► lag, groups ─► report.html

Samples of earlier runs are kept, each past day's in one file; the other tables are computed from all of them.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError, RemoteError
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.failure import failures_in_one_line
from libramq.spark.pipeline.lag.page import lag_page
from libramq.spark.pipeline.lag.samples import compact_days, groups_to_sample, sample, write_sample
from libramq.spark.pipeline.lag.tables import SAMPLES, TABLES, lag_tables
from libramq.spark.pipeline.plan import OnProgress, Plan, Progress, RunResult, TablePlan
from libramq.spark.pipeline.small_table import replace_table, table_ddl
from libramq.sync import Admin
from libramq.transport.access import access_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLES_DEFAULT: Final = 12  # Ours: a minute.


class LagReportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of lag_report's file.

    directory: for tables and report. namesrv: as `-n`. groups, topics: names; by default all.
    every: how often to sample. samples: how many in one run.
    access: credentials and TLS, as in $LIBRA_ACCESS.
    """

    directory: str = "lag_report"
    namesrv: str | None = None
    access: dict[str, str] = {}
    groups: list[str] = []
    topics: list[str] = []
    every: str = "5s"
    samples: int = SAMPLES_DEFAULT


class LagReport:
    """One directory with the lag of a cluster's groups."""

    name = "lag_report"

    def __init__(
        self,
        config: LagReportConfig,
        *,
        clock: Clock | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._directory = Path(config.directory).absolute()
        self._every_ms = duration_ms("every", config.every)
        if config.samples < 1:
            raise ConfigError(f"samples={config.samples}: give a whole number from 1 on")
        self._access = access_of(config.access)
        self._clock = clock or SystemClock()
        self._wait = wait

    def plan(self) -> Plan:
        """Plan what a run would query and write; nothing is changed."""
        with self._admin() as admin:
            groups = groups_to_sample(admin, self._config.groups)
        tables = [
            TablePlan(name="samples", path=str(self._samples), format="parquet", columns=SAMPLES),
            *(
                TablePlan(name=name, path=str(self._file(name)), format="parquet", columns=columns)
                for name, columns in TABLES.items()
            ),
        ]
        return Plan(
            pipeline=self.name,
            reads=[],
            tables=tables,
            remarks=[
                f"groups: {', '.join(groups) or 'none yet'}",
                f"{self._config.samples} samples, one every {self._config.every}",
                f"report: {self._directory / 'report.html'}",
            ],
        )

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> RunResult:
        """Sample, then compute tables and report; raises ConfigError if no group has committed anything."""
        self._take_samples(spark, on_progress)
        compact_days(self._samples, self._clock.wall_ms())
        with failures_in_one_line(self.name):
            rows = lag_tables(spark.read.schema(table_ddl(SAMPLES)).parquet(str(self._samples)))
        if not rows["lag"].num_rows:
            raise ConfigError("no group has committed an offset yet; its lag is known from then on")
        for name, table in rows.items():
            replace_table(self._file(name), table)
        page = self._directory / "report.html"
        page.write_text(lag_page({name: table.to_pylist() for name, table in rows.items()}))
        return RunResult(
            sentence=f"{rows['lag'].num_rows:,} samples of queues",
            files=[str(page), *(str(self._file(name)) for name in TABLES)],
        )

    def _take_samples(self, spark: "SparkSession", on_progress: OnProgress) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(spark.createDataFrame([], table_ddl(SAMPLES)).schema, timezone="UTC")
        count = self._config.samples
        with self._admin() as admin:
            groups = groups_to_sample(admin, self._config.groups)
            due_ms = self._clock.monotonic_ms()
            for number in range(1, count + 1):
                self._wait(max(0, due_ms - self._clock.monotonic_ms()) / 1000)
                due_ms += self._every_ms
                at_ms = int(self._clock.wall_ms())
                try:
                    rows = sample(admin, groups, self._config.topics, at_ms)
                except RemoteError as error:  # Brokers return; the report shows the gap.
                    on_progress(Progress(done=number, total=count, text=f"no sample: {error}"))
                    continue
                write_sample(self._samples, rows, at_ms, schema)
                behind = sum(max(0, row["broker_offset"] - row["consumer_offset"]) for row in rows)
                on_progress(Progress(done=number, total=count, text=f"groups {len(groups)}, lag {behind:,}"))

    def _admin(self) -> Admin:
        return Admin(
            namesrv=self._config.namesrv or None,
            credentials=self._access.credentials,
            tls=self._access.tls,
        )

    @property
    def _samples(self) -> Path:
        return self._directory / "samples"

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.parquet"
