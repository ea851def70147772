"""The tables of the laboratory: a row for each step, history and strategy, and which columns they have.

steps         a step of a history under a strategy
histories     a history under a strategy
strategies    a strategy under all histories of a kind, and under all there are (kind = all)
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

#: The kind of the rows over all kinds together.
ALL: Final = "all"

STEPS: Final[Columns] = MappingProxyType(
    {
        "kind": "string",
        "group": "string",
        "strategy": "string",
        "allocator": "string",  # clients or coordinator: who computes the shares.
        "step": "int",
        "at_ms": "bigint",  # Since the history began.
        "what": "string",
        "members": "int",
        "queues": "int",
        "moved": "int",  # Queues whose reader is another than before.
        "minimum": "int",  # What balanced_sticky moves: the fewest that keep loads as even as can be.
        "least": "int",  # Queues of the member with the fewest, and the most,
        "most": "int",
        "fair_most": "int",  # and of the fullest where loads are as even as can be.
        "unowned": "int",  # Queues that nobody was given.
        "doubled": "int",  # Queues that several were given.
        "still_ms": "double",  # How long queues that moved stood still, together.
        "worst_pause_ms": "double",
        "idle_ms": "bigint",  # How long queues that nobody has stand until the next step, together.
        "repeated": "double",  # Messages that come twice.
        "rounds": "int",  # How often the strategy was asked: more than once where it withholds queues.
        "assignor_ms": "double",  # How long all shares took to compute; the one column no seed fixes.
    }
)
TABLES: Final = ("steps", "histories", "strategies")


def step_row(
    history: History, entrant: Entrant, number: int, outcome: StepOutcome, fair: StepOutcome
) -> tuple[Any, ...]:
    """Return a row of steps; fair: the same step with the fewest moves and the most even loads."""
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
    """Compute all tables from the rows of steps."""
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

    # The fullest member's load over that where loads are as even as can be; without members there is none.
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
        # In one history, of the mean queue.
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
