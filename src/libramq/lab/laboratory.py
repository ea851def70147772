"""The laboratory: how an experiment is planned, run on Spark and written as tables and a page.

events ─► costs, recorded histories ─┐
seed ───► synthetic histories ───────┴─► steps ─► histories, strategies ─► report.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError
from libramq.lab.config import Experiment
from libramq.lab.cost import COSTS, Costs
from libramq.lab.job import Bench, steps_of, watched
from libramq.lab.page import lab_page
from libramq.lab.recorded import Events, costs_of
from libramq.lab.tables import TABLES, lab_tables
from libramq.spark.pipeline.failure import failures_in_one_line
from libramq.spark.pipeline.plan import OnProgress, Progress
from libramq.spark.pipeline.small_table import computed, replace_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """The plan of a run. recorded: a description of the recorded events."""

    experiment: Experiment
    recorded: str | None
    files: Sequence[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run. strategies: the rows of that table. costs: the costs used."""

    strategies: Sequence[Mapping[str, Any]]
    costs: Costs
    sentence: str
    files: Sequence[Path]


class Laboratory:
    """One experiment and its directory."""

    def __init__(
        self, experiment: Experiment, *, access: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self._experiment = experiment
        self._clock = clock or SystemClock()
        self._events = Events(experiment.events, access or {}) if experiment.events is not None else None

    def plan(self) -> LabPlan:
        """Plan a run; raises ConfigError and name servers' errors."""
        return LabPlan(
            experiment=self._experiment,
            recorded=self._events.check() if self._events is not None else None,
            files=self._files(),
        )

    def run(self, spark: "SparkSession", on_progress: OnProgress) -> Result:
        """Run it; the tables and the page are replaced."""
        self.plan()
        with failures_in_one_line("the laboratory", then="nothing was written"):
            tables, costs = self._run(spark, on_progress)
        if not tables["steps"].num_rows:
            raise ConfigError(
                "the events show no group whose members joined or left; there is nothing to compare"
            )
        self._experiment.output.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            replace_table(self._file(name), table)
        rows = {name: table.to_pylist() for name, table in tables.items()}
        page = self._experiment.output / "report.html"
        page.write_text(lab_page(rows, costs, self._clock.wall_ms()), encoding="utf-8")
        histories = {(row["kind"], row["group"]) for row in rows["histories"]}
        return Result(
            strategies=rows["strategies"],
            costs=costs,
            sentence=f"histories: {len(histories):,}, steps: {len(rows['steps']):,}",
            files=self._files(),
        )

    def _run(self, spark: "SparkSession", on_progress: OnProgress) -> tuple[dict[str, Any], Costs]:
        experiment, costs, recorded = self._experiment, COSTS, None
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
        # From here on in few partitions: with one per history, sums would take longer than the histories.
        few = spark.createDataFrame(played_steps)
        tables = computed(few, lab_tables(few))
        return tables, costs

    def _files(self) -> list[Path]:
        return [self._experiment.output / "report.html", *map(self._file, TABLES)]

    def _file(self, name: str) -> Path:
        return self._experiment.output / f"{name}.parquet"
