"""`lag_report`: the lag of groups over time, and their time to catch up. Works with any broker.

        repeated consume stats ─► samples ─► lag, groups ─► report.html

    DIRECTORY/samples/at=1777629600000.parquet      written elsewhere, then renamed: complete or absent

Samples of earlier runs are kept, one file for each past day. Each run computes the other tables from all
samples: `lag` with the rates between two samples of a queue, and `groups` with the sums.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from markupsafe import Markup
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from libramq.clock import Clock, SystemClock, WallMs
from libramq.errors import BrokerError, ConfigError, RemoteError, RouteNotFound
from libramq.filesystem import LocalFileSystem
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.report import svg
from libramq.report.page import html_table, note, page, section, tiles
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.plan import OnProgress, Plan, Progress, RunResult, TablePlan, failures_in_one_line
from libramq.spark.pipeline.small_table import computed, replace_table
from libramq.spark.pipeline.table_columns import arrow_schema
from libramq.spark.schema import ddl
from libramq.sync import Admin
from libramq.transport.access import access_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


SAMPLES_DEFAULT: Final = 12  # Ours: one minute.


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
    """Samples the lag of a cluster's groups into one directory."""

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
        """Plan what a run would query and write, without changing anything."""
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
        self._take_samples(on_progress)
        compact_days(self._samples, self._clock.wall_ms())
        with failures_in_one_line(self.name):
            rows = lag_tables(spark.read.schema(ddl(SAMPLES)).parquet(str(self._samples)))
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

    def _take_samples(self, on_progress: OnProgress) -> None:
        schema, count = arrow_schema(SAMPLES), self._config.samples
        with self._admin() as admin:
            groups = groups_to_sample(admin, self._config.groups)
            due_ms = self._clock.monotonic_ms()
            for number in range(1, count + 1):
                self._wait(max(0, due_ms - self._clock.monotonic_ms()) / 1000)
                due_ms += self._every_ms
                at_ms = int(self._clock.wall_ms())
                try:
                    rows = sample(admin, groups, self._config.topics, at_ms)
                except RemoteError as error:  # Brokers may come back; the report shows the gap.
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


Row = Mapping[str, Any]
Sample = dict[str, Any]


class GroupOffsets(Protocol):
    """The part of an admin client (libramq.sync.Admin) that is used."""

    def groups(self) -> list[str]: ...
    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]: ...


def groups_to_sample(admin: GroupOffsets, wanted: Sequence[str]) -> list[str]:
    """Return the wanted groups, or all; ConfigError for a wanted group that does not exist."""
    there = admin.groups()
    for group in wanted:
        if group not in there:
            raise ConfigError(f"no broker knows group {group}; there are: {', '.join(there) or 'none'}")
    return sorted(wanted) if wanted else there


def sample(admin: GroupOffsets, groups: Iterable[str], topics: Sequence[str], at_ms: int) -> list[Sample]:
    """Return the groups' current offsets in these topics, or in all except retry topics.

    Leaves out queues for which the group's start is unknown.
    """
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    rows = []
    for group in groups:
        try:
            stats = admin.consume_stats(group)
        except (BrokerError, RouteNotFound):
            continue  # The group never committed, or is being deleted.
        for queue, ends in sorted(stats.items()):
            is_chosen = queue.topic in topics if topics else not queue.topic.startswith(RETRY_PREFIX)
            if is_chosen and not ends.is_unknown:
                rows.append(
                    {
                        "group": group,
                        "topic": queue.topic,
                        "broker": queue.broker_name,
                        "queueId": queue.queue_id,
                        "at": at,
                        "broker_offset": ends.broker_offset,
                        "consumer_offset": ends.consumer_offset,
                    }
                )
    return rows


def write_sample(directory: Path, rows: Sequence[Sample], at_ms: int, schema: "pa.Schema") -> None:
    """Add one sample."""
    import pyarrow as pa

    directory.mkdir(parents=True, exist_ok=True)
    replace_table(directory / f"at={at_ms}.parquet", pa.Table.from_pylist(list(rows), schema))


DAY: Final = "day="
SAMPLE: Final = "at="
SUFFIX: Final = ".parquet"
LOCK: Final = ".compaction"  # Spark ignores names that begin with a dot.


def compact_days(directory: Path, wall_ms: WallMs) -> list[Path]:
    """Merge the samples of each day before today (UTC) into one file; return the files that were written.

    Does nothing while another process is merging.

    DIRECTORY/samples/at=1777629600000.parquet … ─► DIRECTORY/samples/day=2026-05-01.parquet

    A day's file appears complete, by a rename; only then are the sample files removed. A run killed between
    the two leaves both: readers count a duplicate sample once (`lag_tables`), and the next run continues.
    """
    if not directory.is_dir():
        return []
    # Two concurrent merges could lose samples.
    lock = LocalFileSystem().lock(directory / LOCK)
    if lock is None:
        return []
    try:
        today = _day(int(wall_ms))
        days: dict[date, list[Path]] = {}
        for path in directory.glob(f"{SAMPLE}*{SUFFIX}"):
            day = _day(int(path.name.removeprefix(SAMPLE).removesuffix(SUFFIX)))
            if day < today:
                days.setdefault(day, []).append(path)
        return [_compact(directory, day, samples) for day, samples in sorted(days.items())]
    finally:
        os.close(lock)


def _compact(directory: Path, day: date, samples: list[Path]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = directory / f"{DAY}{day.isoformat()}{SUFFIX}"
    earlier = [path] if path.exists() else []
    rows = pa.concat_tables(pq.read_table(file, partitioning=None) for file in [*earlier, *samples])
    columns = rows.column_names
    once = (
        rows.group_by(columns, use_threads=False)
        .aggregate([])
        .sort_by([(name, "ascending") for name in columns])
    )
    draft = directory / f".{path.name}.draft"
    pq.write_table(once.cast(rows.schema), draft)
    _to_disk(draft)
    draft.replace(path)
    _to_disk(directory)
    for sample in samples:
        sample.unlink()
    return path


def _day(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Columns = Mapping[str, str]

SAMPLES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "topic": "string",
        "broker": "string",
        "queueId": "int",
        "at": "timestamp",
        "broker_offset": "bigint",  # The queue's end.
        "consumer_offset": "bigint",  # What the group has committed.
    }
)
LAG: Final[Columns] = MappingProxyType(
    {
        **SAMPLES,
        "lag": "bigint",
        "produced_per_s": "double",  # Since the previous sample; null if offsets went back.
        "consumed_per_s": "double",
        "caught_up_in_s": "double",  # At these rates; null if the lag does not shrink.
    }
)
GROUPS: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "topic": "string",
        "at": "timestamp",
        "queues": "bigint",
        "lag": "bigint",
        "produced_per_s": "double",
        "consumed_per_s": "double",
        "caught_up_in_s": "double",  # The last queue's; null if the lag of any queue does not shrink.
    }
)
TABLES: Final[Mapping[str, Columns]] = MappingProxyType({"lag": LAG, "groups": GROUPS})


def lag_tables(samples: "DataFrame") -> "dict[str, pa.Table]":
    """Compute the tables `lag` and `groups`; a duplicate sample counts once."""
    queue = ["group", "topic", "broker", "queueId"]
    in_time = Window.partitionBy(*queue).orderBy("at")
    seconds = (f.unix_millis("at") - f.unix_millis(f.lag("at").over(in_time))) / 1000

    def rate(offset: str) -> "Column":
        gained = f.col(offset) - f.lag(offset).over(in_time)
        return f.when(gained >= 0, gained / seconds)

    lag = (
        samples.dropDuplicates([*queue, "at"])
        .withColumn("lag", f.greatest(f.col("broker_offset") - f.col("consumer_offset"), f.lit(0)))
        .withColumn("produced_per_s", rate("broker_offset"))
        .withColumn("consumed_per_s", rate("consumer_offset"))
        .withColumn("nearer", f.col("consumed_per_s") - f.col("produced_per_s"))
        .withColumn(
            "caught_up_in_s",
            f.when(f.col("lag") == 0, f.lit(0.0)).when(f.col("nearer") > 0, f.col("lag") / f.col("nearer")),
        )
        .select(*LAG)
    )
    groups = (
        lag.groupBy("group", "topic", "at")
        .agg(
            f.count("*").alias("queues"),
            f.sum("lag").alias("lag"),
            f.sum("produced_per_s").alias("produced_per_s"),
            f.sum("consumed_per_s").alias("consumed_per_s"),
            f.when(f.count("caught_up_in_s") == f.count("*"), f.max("caught_up_in_s")).alias(
                "caught_up_in_s"
            ),
        )
        .select(*GROUPS)
    )
    return computed(lag, {"lag": lag.orderBy("at", *queue), "groups": groups.orderBy("at", "group", "topic")})


#: Ours: one colour for each line of the plot.
LINES_MAX: Final = svg.COLOURS
#: Ours: points of a line in the plot.
POINTS_MAX: Final = 600
#: Ours: rows in the table of queues.
QUEUES_MAX: Final = 20


def lag_page(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the HTML page of these tables; neither may be empty."""
    groups = tables["groups"]
    first, last = groups[0]["at"], groups[-1]["at"]
    now = [row for row in groups if row["at"] == last]
    return page(
        "Lag",
        f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC. Figures are for the end.",
        [
            tiles(_facts(now)),
            _over_time(groups),
            section(
                "Groups and topics",
                "Caught up: at the rates of the last two samples. A dash: not at these rates.",
                _groups(now),
            ),
            section(
                "Queues that are furthest behind",
                "One far behind the others has a slow member, or a key that many messages share.",
                _queues([row for row in tables["lag"] if row["at"] == last and row["lag"]]),
            ),
        ],
    )


def _facts(now: Sequence[Row]) -> list[tuple[str, str]]:
    return [
        (f"{sum(row['lag'] for row in now):,}", "messages are behind"),
        (f"{len({row['group'] for row in now}):,}", "groups"),
        (f"{sum(_produced(now).values()):,.0f}", "produced a second"),
        (f"{sum(row['consumed_per_s'] or 0 for row in now):,.0f}", "consumed a second"),
    ]


def _over_time(groups: Sequence[Row]) -> Markup:
    series = _series(groups)
    more = f" The {LINES_MAX} with the most are shown." if len(_names(groups)) > LINES_MAX else ""
    return section(
        "Lag over time",
        f"Messages that are stored and not yet committed, by group and topic.{more}",
        svg.lines(series, label="Lag of each group and topic over time"),
        svg.legend(name for name, _ in series),
    )


def _groups(now: Sequence[Row]) -> Markup:
    return html_table(
        ("group", "topic", "queues", "lag", "produced /s", "consumed /s", "caught up in"),
        [
            (
                row["group"],
                row["topic"],
                row["queues"],
                row["lag"],
                row["produced_per_s"],
                row["consumed_per_s"],
                _duration(row["caught_up_in_s"]),
            )
            for row in sorted(now, key=lambda row: (-row["lag"], row["group"], row["topic"]))
        ],
    )


def _queues(behind: Sequence[Row]) -> Markup:
    if not behind:
        return note("None.")
    ordered = sorted(
        behind, key=lambda row: (-row["lag"], row["group"], row["topic"], row["broker"], row["queueId"])
    )
    return html_table(
        ("group", "topic", "broker", "queue", "lag", "consumed /s", "caught up in"),
        [
            (
                row["group"],
                row["topic"],
                row["broker"],
                str(row["queueId"]),
                row["lag"],
                row["consumed_per_s"],
                _duration(row["caught_up_in_s"]),
            )
            for row in ordered[:QUEUES_MAX]
        ],
    )


def _produced(groups: Sequence[Row]) -> dict[str, float]:
    """Return the messages produced to each topic, counted once however many groups read it."""
    rates: dict[str, float] = {}
    for row in groups:
        rates[row["topic"]] = max(rates.get(row["topic"], 0), row["produced_per_s"] or 0)
    return rates


def _names(groups: Sequence[Row]) -> list[tuple[str, str]]:
    """Return pairs of group and topic, the largest lag first."""
    most: dict[tuple[str, str], int] = {}
    for row in groups:
        name = (row["group"], row["topic"])
        most[name] = max(most.get(name, 0), row["lag"])
    return sorted(most, key=lambda name: (-most[name], name))


def _series(groups: Sequence[Row]) -> list[tuple[str, list[tuple[datetime, float]]]]:
    """Return a line for each group and topic, with every n-th point if there are many."""
    found = []
    for group, topic in _names(groups)[:LINES_MAX]:
        points = [(row["at"], row["lag"]) for row in groups if (row["group"], row["topic"]) == (group, topic)]
        found.append((f"{group} · {topic}", points[:: -(-len(points) // POINTS_MAX)]))
    return found


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
