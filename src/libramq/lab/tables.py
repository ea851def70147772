"""The tables of the laboratory and their columns.

steps         a row for each step of a history under a strategy
histories     a row for each history under a strategy
strategies    a row for each strategy and kind of history, and for all kinds together (kind = all)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from libramq.lab.entrant import Entrant
from libramq.lab.histories import History
from libramq.lab.replay import StepOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Columns = Mapping[str, str]

#: The kind of rows over all kinds together.
ALL: Final = "all"

STEPS: Final[Columns] = MappingProxyType(
    {
        "kind": "string",
        "group": "string",
        "strategy": "string",
        "allocator": "string",  # clients or coordinator.
        "step": "int",
        "at_ms": "bigint",  # Since the history began.
        "what": "string",
        "members": "int",
        "queues": "int",
        "moved": "int",  # Queues with a new reader.
        "minimum": "int",  # Moves of balanced_sticky: the fewest for the most even loads.
        "least": "int",  # Queues of the member with the fewest.
        "most": "int",  # Queues of the member with the most.
        "fair_most": "int",  # The same under the most even loads.
        "unowned": "int",  # Queues assigned to no member.
        "doubled": "int",  # Queues assigned to several members.
        "still_ms": "double",  # Total pause of the moved queues.
        "worst_pause_ms": "double",
        "idle_ms": "bigint",  # Total time that unowned queues wait until the next step.
        "repeated": "double",  # Messages delivered twice.
        "rounds": "int",  # Calls of the strategy; several if it withholds queues.
        "assignor_ms": "double",  # Computation time of the strategy; the only column not fixed by the seed.
    }
)
TABLES: Final = ("steps", "histories", "strategies")


def step_row(
    history: History, entrant: Entrant, number: int, outcome: StepOutcome, fair: StepOutcome
) -> tuple[Any, ...]:
    """Return a row of `steps`. fair: the same step with the fewest moves for the most even loads."""
    values = {
        "kind": history.kind,
        "group": history.group,
        "strategy": entrant.name,
        "allocator": entrant.allocator.value,
        "step": number,
        "at_ms": outcome.step.at_ms,
        "what": outcome.step.what,
        "members": outcome.member_count,
        "queues": history.queue_count,
        "minimum": fair.moved,
        "fair_most": fair.most,
    }
    return tuple(values[name] if name in values else getattr(outcome, name) for name in STEPS)


def lab_tables(steps: "DataFrame") -> "dict[str, DataFrame]":
    """Compute all tables from the rows of `steps`."""
    from pyspark.sql import functions as f

    of_history = f.max("members").alias("members_most"), f.max("queues").alias("queues")
    histories = steps.groupBy("kind", "group", "strategy", "allocator").agg(*of_history, *_sums())
    counted = f.count_distinct("kind", "group").alias("histories")
    by_kind = steps.groupBy("kind", "strategy", "allocator").agg(counted, *_sums())
    overall = steps.groupBy("strategy", "allocator").agg(counted, *_sums()).withColumn("kind", f.lit(ALL))
    return {
        "steps": steps.orderBy("kind", "group", "strategy", "step"),
        "histories": histories.orderBy("kind", "group", "strategy"),
        "strategies": by_kind.unionByName(overall).orderBy("kind", "strategy"),
    }


def _sums() -> list[Any]:
    from pyspark.sql import functions as f

    # The largest load, divided by the largest under the most even loads; null without members.
    fullest = f.when(f.col("fair_most") > 0, f.col("most") / f.col("fair_most"))
    return [
        f.count("*").alias("steps"),
        f.sum("moved").alias("moved"),
        f.sum("minimum").alias("minimum"),
        f.avg(fullest).alias("fullest_mean"),
        f.max(fullest).alias("fullest_worst"),
        f.max("unowned").alias("unowned_most"),
        f.max("doubled").alias("doubled_most"),
        (f.sum("still_ms") / 1000).alias("still_s"),
        # Per history, mean over queues.
        (f.sum(f.col("still_ms") / f.col("queues")) / 1000 / f.count_distinct("kind", "group")).alias(
            "still_s_a_queue"
        ),
        f.max("worst_pause_ms").alias("worst_pause_ms"),
        (f.sum("idle_ms") / 1000).alias("idle_s"),
        f.sum("repeated").alias("repeated"),
        f.percentile("assignor_ms", 0.5).alias("assignor_p50_ms"),
        f.percentile("assignor_ms", 0.95).alias("assignor_p95_ms"),
        f.max("assignor_ms").alias("assignor_max_ms"),
    ]
