"""The Spark job: every history in a partition, under every entrant.

        synthetic groups ─ generated in their task by seed ──┐
                                                             ├─► replay under each entrant ─► rows of steps
        events by group ── assembled in their task ──────────┘

Rows are plain tuples: Spark's Arrow functions require pandas, which nothing else here needs.
"""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from libramq.lab.config import SyntheticGroup
from libramq.lab.cost import Costs
from libramq.lab.entrant import BASELINE, Entrant
from libramq.lab.histories import History, synthetic
from libramq.lab.recorded import broker_events, recorded_history
from libramq.lab.replay import replay
from libramq.lab.tables import STEPS, step_row
from libramq.spark.pipeline.plan import OnProgress, Progress
from libramq.spark.schema import ddl

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

#: Ours: how often a progress display is updated.
WATCH_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The job that runs on every history. It is sent to the workers."""

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
        """Generate a group's history, and replay it."""
        return self.rows(synthetic(group.kind, group.name, group.size, group.seed))

    def recorded(self, row: tuple[str, Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        """Assemble a group's history from its events, and replay it; some events make none."""
        group, rows = row
        history = recorded_history(group, broker_events(rows))
        return iter(()) if history is None else self.rows(history)


def steps_of(
    spark: "SparkSession", bench: Bench, groups: Sequence[SyntheticGroup], recorded: "RDD[Any] | None"
) -> "DataFrame":
    """Return the rows of steps, not computed yet."""
    _send_modules(bench.entrants)
    parts = []
    if groups:
        parts.append(spark.sparkContext.parallelize(groups, len(groups)).flatMap(bench.synthetic))
    if recorded is not None:
        parts.append(recorded.flatMap(bench.recorded))
    return spark.createDataFrame(spark.sparkContext.union(parts), ddl(STEPS), verifySchema=False)


def _send_modules(entrants: Sequence[Entrant]) -> None:
    """Send the user's own strategies by value: workers need not have their modules."""
    from pyspark import cloudpickle

    for entrant in entrants:
        if ":" in entrant.rule:
            module = sys.modules[entrant.rule.partition(":")[0]]
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def watched(spark: "SparkSession", total: int, on_progress: OnProgress) -> Iterator[None]:
    """Report how many histories are done, while the context lasts."""
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
