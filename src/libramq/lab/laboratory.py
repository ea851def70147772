"""The laboratory: plans an experiment, runs it on Spark, and writes tables and a page.

events ─► costs, recorded histories ─┐
seed ───► synthetic histories ───────┴─► steps ─► histories, strategies ─► report.html

Each history is a partition of the Spark job. Its task generates it from its seed or assembles it from its
events, and replays it under every entrant. Rows are plain tuples: Spark's Arrow functions require pandas,
which is needed nowhere else here.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError
from libramq.lab.config import Experiment, SyntheticGroup
from libramq.lab.cost import COSTS, Costs
from libramq.lab.entrant import BASELINE, Entrant
from libramq.lab.histories import History, synthetic
from libramq.lab.recorded import Events, costs_of, events_of, recorded_history
from libramq.lab.replay import replay
from libramq.lab.tables import STEPS, TABLES, lab_tables, step_row
from libramq.spark.pipeline.plan import OnProgress, Progress, failures_in_one_line
from libramq.spark.pipeline.small_table import computed, replace_table
from libramq.spark.schema import ddl

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. strategies: the rows of the table `strategies`. costs: the costs used."""

    strategies: Sequence[Mapping[str, Any]]
    costs: Costs
    sentence: str
    files: Sequence[Path]


class Laboratory:
    """One experiment and its directory."""

    def __init__(
        self, experiment: Experiment, *, access: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self.experiment = experiment
        self.files = [experiment.output / "report.html", *map(self._file, TABLES)]
        self._clock = clock or SystemClock()
        self._events = Events(experiment.events, access or {}) if experiment.events is not None else None

    def check(self) -> str | None:
        """Describe the recorded events, if a run uses any; raises ConfigError or a name server's error."""
        return self._events.check() if self._events is not None else None

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> Result:
        """Run the experiment, and replace the tables and the page."""
        from libramq.lab.page import lab_page  # Here, because workers may lack what pages need.

        self.check()
        with failures_in_one_line("the laboratory", then="nothing was written"):
            tables, costs = self._run(spark, on_progress)
        if not tables["steps"].num_rows:
            raise ConfigError(
                "the events show no group whose members joined or left; there is nothing to compare"
            )
        self.experiment.output.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            replace_table(self._file(name), table)
        rows = {name: table.to_pylist() for name, table in tables.items()}
        page = self.experiment.output / "report.html"
        page.write_text(lab_page(rows, costs, self._clock.wall_ms()), encoding="utf-8")
        histories = {(row["kind"], row["group"]) for row in rows["histories"]}
        return Result(
            strategies=rows["strategies"],
            costs=costs,
            sentence=f"histories: {len(histories):,}, steps: {len(rows['steps']):,}",
            files=self.files,
        )

    def _run(self, spark: "SparkSession", on_progress: OnProgress) -> tuple[dict[str, Any], Costs]:
        experiment, costs, recorded = self.experiment, COSTS, None
        if self._events is not None:
            on_progress(Progress(done=0, total=None, text="events"))
            recorded = self._events.by_group(spark)
            costs = costs_of(spark, recorded, self._clock.wall_ms())
        bench = Bench(entrants=experiment.entrants, costs=costs)
        played = recorded if experiment.with_recorded else None
        steps = steps_of(spark, bench, experiment.groups, played)
        total = len(experiment.groups) + (played.getNumPartitions() if played is not None else 0)
        with watched(spark, total, on_progress):
            played_steps = steps.toArrow()
        # Continue with few partitions: with one per history, sums would take longer than the replays.
        few = spark.createDataFrame(played_steps)
        tables = computed(few, lab_tables(few))
        return tables, costs

    def _file(self, name: str) -> Path:
        return self.experiment.output / f"{name}.parquet"


#: Ours: the interval for updates of the progress display.
WATCH_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The job for every history, sent to the workers."""

    entrants: Sequence[Entrant]
    costs: Costs

    def rows(self, history: History) -> Iterator[tuple[Any, ...]]:
        """Yield the steps of a history under each entrant."""
        fair = replay(history, BASELINE, self.costs, time.perf_counter_ns)
        assert fair is not None, "the baseline needs nothing"
        for entrant in self.entrants:
            is_fair = entrant.name == BASELINE.name
            outcomes = fair if is_fair else replay(history, entrant, self.costs, time.perf_counter_ns)
            for number, outcome in enumerate(outcomes or ()):
                yield step_row(history, entrant, number, outcome, fair[number])

    def synthetic(self, group: SyntheticGroup) -> Iterator[tuple[Any, ...]]:
        """Generate a group's history and replay it."""
        return self.rows(synthetic(*group))

    def recorded(self, row: tuple[str, Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        """Assemble a group's history from its events, if possible, and replay it."""
        group, rows = row
        history = recorded_history(group, events_of(rows))
        return iter(()) if history is None else self.rows(history)


def steps_of(
    spark: "SparkSession", bench: Bench, groups: Sequence[SyntheticGroup], recorded: "RDD[Any] | None"
) -> "DataFrame":
    """Return the rows of `steps`, not yet computed."""
    _send_modules(bench.entrants)
    parts = []
    if groups:
        parts.append(spark.sparkContext.parallelize(groups, len(groups)).flatMap(bench.synthetic))
    if recorded is not None:
        parts.append(recorded.flatMap(bench.recorded))
    return spark.createDataFrame(spark.sparkContext.union(parts), ddl(STEPS), verifySchema=False)


def _send_modules(entrants: Sequence[Entrant]) -> None:
    """Send the user's own strategies by value, because workers may lack their modules."""
    from pyspark import cloudpickle

    for entrant in entrants:
        if ":" in entrant.rule:
            module = sys.modules[entrant.rule.partition(":")[0]]
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def watched(spark: "SparkSession", total: int, on_progress: OnProgress) -> Iterator[None]:
    """Report how many histories are done while the context lasts."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        last_done = 0
        while not ended.wait(WATCH_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = max((stage.numCompletedTasks for stage in stages if stage is not None), default=0)
            if last_done < min(done, total):
                last_done = min(done, total)
                on_progress(Progress(done=last_done, total=total, text="histories"))

    watcher = threading.Thread(target=watch, name="laboratory-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
