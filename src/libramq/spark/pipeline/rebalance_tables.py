"""The tables of rebalances, computed from events group by group, and hourly statistics of each group.

events ─ by group, in Python ─► rebalances ─► moves
                                      └─────► hourly, reasons, members
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from libramq.clock import WallMs
from libramq.groups.rebalance_history import Rebalance, broker_events, rebalances
from libramq.spark.pipeline.small_table import computed
from libramq.spark.schema import ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Columns = Mapping[str, str]

REBALANCES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "at": "timestamp",  # Its first event.
        "state": "string",  # settled, moving, or interrupted (the broker never reported its end).
        "reason": "string",  # The first cause's.
        "causes": "array<struct<reason:string,who:string>>",
        "brokers": "array<string>",
        "member_count": "int",
        "moved": "int",  # Queues that changed hands.
        "minimum": "int",  # Queues that had to change hands.
        "time_to_stable_ms": "bigint",
        "worst_pause_ms": "bigint",
        "redelivered_upper_bound": "bigint",  # Upper bound of redelivered messages; null: unknown.
        "duplicates_reported": "bigint",  # By the clients that report duplicates.
        "peak_catch_up_rate": "bigint",  # Backlog read by new owners, messages per second.
        "unowned": "int",
        "least_load": "int",  # Queues of the member with the fewest.
        "most_load": "int",  # Queues of the member with the most.
    }
)
MOVES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "at": "timestamp",  # The rebalance's.
        "topic": "string",
        "broker": "string",
        "queueId": "int",
        "from": "string",  # Null if the queue had no owner.
        "to": "string",
        "pause_ms": "bigint",
        "redelivered": "bigint",  # Upper bound; null: unknown.
        "double_owner_ms": "bigint",
    }
)
HOURLY: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "hour": "timestamp",
        "rebalances": "bigint",
        "interrupted": "bigint",
        "moved": "bigint",
        "minimum": "bigint",
        "stable_p50_ms": "double",
        "stable_p95_ms": "double",
        "stable_max_ms": "bigint",
        "pause_p50_ms": "double",  # Only queues that moved from one member to another.
        "pause_p95_ms": "double",
        "pause_max_ms": "bigint",
        "redelivered_upper_bound": "bigint",  # Sum over the rebalances with a known bound.
        "redelivered_unknown": "bigint",  # Rebalances without a known bound.
        "duplicates_reported": "bigint",
        "unevenness_max": "int",  # The largest difference between two members' queue counts.
        "peak_catch_up_rate": "bigint",
    }
)
REASONS: Final[Columns] = MappingProxyType(
    {"group": "string", "hour": "timestamp", "reason": "string", "rebalances": "bigint"}
)
MEMBERS: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "hour": "timestamp",
        "member": "string",
        "joined": "bigint",
        "gone": "bigint",
        "is_flapping": "boolean",
    }
)
TABLES: Final[Mapping[str, Columns]] = MappingProxyType(
    {"rebalances": REBALANCES, "moves": MOVES, "hourly": HOURLY, "reasons": REASONS, "members": MEMBERS}
)

#: Ours: a member that leaves this often within an hour is flapping. A deployment is one leave, a deployment
#: and its fix are two.
FLAPS_MIN: Final = 3
_GONE: Final = ("member_left", "connection_closed", "session_expired", "processing_timeout")
_MOVE: Final = ddl({name: kind for name, kind in MOVES.items() if name not in ("group", "at")})


def rebalance_tables(events: "DataFrame", *, wall_ms: WallMs) -> "dict[str, pa.Table]":
    """Compute all tables from the events: ingested rows with body, broker, queueId and offset."""
    columns = {**REBALANCES, "at": "bigint", "moves": f"array<struct<{_MOVE}>>"}
    rows = f.sort_array(f.collect_list(f.struct("broker", "offset", "body")))
    # A plain row-by-row function: Arrow functions require pandas, which is needed nowhere else here.
    history = f.udf(_history(wall_ms), f"array<struct<{ddl(columns)}>>", useArrow=False)
    by_group = events.groupBy("key").agg(rows.alias("rows")).select(f.explode(history("rows")).alias("one"))
    whole = by_group.select("one.*").withColumn("at", f.timestamp_millis("at"))
    moved = whole.select("group", "at", f.explode("moves").alias("move"))
    moves = moved.select("group", "at", "move.*")
    tables = {
        "rebalances": whole.drop("moves").orderBy("at", "group"),
        "moves": moves.orderBy("at", "group", "topic", "broker", "queueId"),
        "hourly": _hourly(whole, moves),
        "reasons": _reasons(whole),
        "members": _members(whole),
    }
    return computed(whole, tables)


def _history(wall_ms: WallMs) -> Callable[[list[Any]], list[dict[str, Any]]]:
    """Return the function that Spark runs for each group over its events, sorted by broker and offset."""

    def history(events: list[Any]) -> list[dict[str, Any]]:
        recorded = broker_events((broker, body) for broker, _, body in events)
        return [_row(one) for one in rebalances(recorded, wall_ms=wall_ms)]

    return history


def _row(one: Rebalance) -> dict[str, Any]:
    loads = one.loads.values()
    row = {
        "at": one.at_ms,
        "state": one.state.value,
        "reason": one.causes[0].reason,
        "causes": [cause._asdict() for cause in one.causes],
        "brokers": list(one.brokers),
        "least_load": min(loads, default=None),
        "most_load": max(loads, default=None),
        "moves": [
            {
                "topic": move.topic,
                "broker": move.broker,
                "queueId": move.queue,
                "from": move.from_,
                "to": move.to,
                "pause_ms": move.pause_ms,
                "redelivered": move.redelivered_bound,
                "double_owner_ms": move.double_owner_ms,
            }
            for move in one.moves
        ],
    }
    return row | {name: getattr(one, name) for name in REBALANCES if name not in row}


def _hourly(found: "DataFrame", moves: "DataFrame") -> "DataFrame":
    hour = f.date_trunc("hour", "at").alias("hour")
    sums = found.groupBy("group", hour).agg(
        f.count("*").alias("rebalances"),
        f.count_if(f.col("state") == "interrupted").alias("interrupted"),
        f.sum("moved").alias("moved"),
        f.sum("minimum").alias("minimum"),
        f.percentile("time_to_stable_ms", 0.5).alias("stable_p50_ms"),
        f.percentile("time_to_stable_ms", 0.95).alias("stable_p95_ms"),
        f.max("time_to_stable_ms").alias("stable_max_ms"),
        f.sum("redelivered_upper_bound").alias("redelivered_upper_bound"),
        f.count_if(f.col("redelivered_upper_bound").isNull()).alias("redelivered_unknown"),
        f.sum("duplicates_reported").alias("duplicates_reported"),
        f.max(f.col("most_load") - f.col("least_load")).alias("unevenness_max"),
        f.max("peak_catch_up_rate").alias("peak_catch_up_rate"),
    )
    # A queue without a former owner did not pause.
    pauses = (
        moves.where(f.col("from").isNotNull())
        .groupBy("group", hour)
        .agg(
            f.percentile("pause_ms", 0.5).alias("pause_p50_ms"),
            f.percentile("pause_ms", 0.95).alias("pause_p95_ms"),
            f.max("pause_ms").alias("pause_max_ms"),
        )
    )
    return sums.join(pauses, ["group", "hour"], "left").select(*HOURLY).orderBy("hour", "group")


def _reasons(found: "DataFrame") -> "DataFrame":
    """Count rebalances by their first reason, so that the counts add up to the number of rebalances."""
    by_hour = found.groupBy("group", f.date_trunc("hour", "at").alias("hour"), "reason")
    return by_hour.agg(f.count("*").alias("rebalances")).orderBy("hour", "group", "reason")


def _members(found: "DataFrame") -> "DataFrame":
    causes = found.select(
        "group", f.date_trunc("hour", "at").alias("hour"), f.explode("causes").alias("cause")
    ).where("cause.who is not null")
    gone = f.count_if(f.col("cause.reason").isin(*_GONE))
    return (
        causes.groupBy("group", "hour", f.col("cause.who").alias("member"))
        .agg(
            f.count_if(f.col("cause.reason") == "member_joined").alias("joined"),
            gone.alias("gone"),
            (gone >= FLAPS_MIN).alias("is_flapping"),
        )
        .where("joined + gone > 0")
        .orderBy("hour", "group", "member")
    )
