"""The tables of traces: redeliveries with their causes, delays, and the effects of rebalances on both.

deliveries ─┬─ with the periods around rebalances ─┬─► duplicates, deliveries (by hour), clients
                                                   └─► effects (by rebalance) ◄─ samples of lag

The times around a rebalance, and how rows in them are counted:

    ───────────── calm ──│ started ──── settled ── caused ──│── after ──│ the next one's start

Periods of a group's rebalances do not overlap: an overlap belongs to the later one.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from libramq.groups.rebalance import SETTLE_MS_MAX
from libramq.spark.pipeline.deliveries import CLOCKS_APART_MS
from libramq.spark.schema import ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


Columns = Mapping[str, str]

DUPLICATES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "topic": "string",  # Null if its producer does not trace.
        "msgId": "string",
        "at": "timestamp",  # The repeated delivery.
        "client": "string",
        "succeeded": "boolean",  # Null if never reported.
        "retry_times": "int",
        "before_at": "timestamp",  # The previous delivery.
        "before_client": "string",
        "before_succeeded": "boolean",
        "cause": "string",  # rebalance, retry, or unknown.
        "rebalance_at": "timestamp",
        "reason": "string",  # The rebalance's.
    }
)
DELIVERIES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "hour": "timestamp",
        "deliveries": "bigint",
        "messages": "bigint",  # First deliveries.
        "clients": "bigint",
        "failed": "bigint",
        "delay_p50_ms": "bigint",  # From a message's creation to its first delivery.
        "delay_p95_ms": "bigint",
        "delay_max_ms": "bigint",
        "duplicates": "bigint",
        "by_rebalance": "bigint",
        "by_retry": "bigint",
        "unknown": "bigint",
        "succeeded_twice": "bigint",
    }
)
CLIENTS: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "hour": "timestamp",
        "client": "string",
        "deliveries": "bigint",
        "duplicates": "bigint",
        "first_at": "timestamp",
        "last_at": "timestamp",
    }
)
EFFECTS: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "at": "timestamp",
        "reason": "string",
        "duplicates": "bigint",  # Null if the group does not trace.
        "succeeded_twice": "bigint",
        "before_p50_ms": "bigint",  # Delays in the minute before the rebalance.
        "before_max_ms": "bigint",
        "after_p50_ms": "bigint",
        "after_max_ms": "bigint",
        "back_to_normal_ms": "bigint",  # Until no delay exceeded before_max_ms.
        "lag_before": "bigint",
        "lag_peak": "bigint",
        "lag_back_ms": "bigint",  # Until the lag was back at lag_before.
    }
)
TABLES: Final[Mapping[str, Columns]] = MappingProxyType(
    {"deliveries": DELIVERIES, "clients": CLIENTS, "effects": EFFECTS}
)


def with_causes(found: "DataFrame", periods: "DataFrame") -> "DataFrame":
    """Add periods to deliveries, and a cause to repeated ones."""
    caused = f.col("began_ms") < f.col("caused_until_ms")
    cause = f.when(f.col("is_retry"), "retry").when(caused, "rebalance").otherwise("unknown")
    twice = f.col("succeeded") & f.col("before_succeeded")
    return (
        with_periods(found, "began_ms", periods)
        .withColumn("cause", f.when(f.col("attempt") > 1, cause))
        .withColumn("is_twice", f.coalesce(twice, f.lit(False)))
    )


def trace_tables(
    found: "DataFrame", periods: "DataFrame", samples: "DataFrame | None", *, duplicates: Path
) -> tuple["dict[str, pa.Table]", list[str]]:
    """Compute the small tables from all deliveries; return them, and remarks for their readers.

    samples: from lag_report. duplicates: the directory of the table of duplicates.
    """
    caused = with_causes(found, periods).persist()
    try:
        deliveries = caused.where("msgId is not null")
        _write_duplicates(deliveries, duplicates)
        tables = {
            "deliveries": _by_hour(deliveries).toArrow(),
            "clients": _by_client(deliveries).toArrow(),
            "effects": _effects(deliveries, periods, samples).toArrow(),
        }
        ((unreadable, too_soon),) = caused.agg(f.sum("unreadable"), f.count_if("is_too_soon")).collect()
    finally:
        caused.unpersist()
    remarks = []
    if unreadable:
        remarks.append(f"trace records that could not be read: {unreadable:,}")
    if too_soon:
        remarks.append(f"messages handled before they were made: {too_soon:,}; give producers_zone")
    return tables, remarks


def _write_duplicates(deliveries: "DataFrame", directory: Path) -> None:
    """Replace the table through Spark: it may be larger than the driver's memory."""
    of_rebalance = f.col("cause") == "rebalance"
    draft = directory.with_name(f".{directory.name}.draft")
    (
        deliveries.where("cause is not null")
        .withColumn("at", f.timestamp_millis("began_ms"))
        .withColumn("before_at", f.timestamp_millis("before_ms"))
        .withColumn("rebalance_at", f.when(of_rebalance, f.timestamp_millis("rebalance_ms")))
        .withColumn("reason", f.when(of_rebalance, f.col("reason")))
        .select(*DUPLICATES)
        .write.mode("overwrite")
        .parquet(str(draft))
    )
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)


def _hour() -> "Column":
    return f.date_trunc("hour", f.timestamp_millis("began_ms")).alias("hour")


def _by_hour(deliveries: "DataFrame") -> "DataFrame":
    delays = [
        f.percentile_approx("delay_ms", share).alias(name)
        for share, name in ((0.5, "delay_p50_ms"), (0.95, "delay_p95_ms"))
    ]
    return (
        deliveries.groupBy("group", _hour())
        .agg(
            f.count("*").alias("deliveries"),
            f.count_if(f.col("attempt") == 1).alias("messages"),
            f.count_distinct("client").alias("clients"),
            f.count_if(~f.col("succeeded")).alias("failed"),
            *delays,
            f.max("delay_ms").alias("delay_max_ms"),
            f.count("cause").alias("duplicates"),
            f.count_if(f.col("cause") == "rebalance").alias("by_rebalance"),
            f.count_if(f.col("cause") == "retry").alias("by_retry"),
            f.count_if(f.col("cause") == "unknown").alias("unknown"),
            f.count_if("is_twice").alias("succeeded_twice"),
        )
        .select(*DELIVERIES)
        .orderBy("hour", "group")
    )


def _by_client(deliveries: "DataFrame") -> "DataFrame":
    return (
        deliveries.where("client is not null")
        .groupBy("group", _hour(), "client")
        .agg(
            f.count("*").alias("deliveries"),
            f.count("cause").alias("duplicates"),
            f.timestamp_millis(f.min("began_ms")).alias("first_at"),
            f.timestamp_millis(f.max("began_ms")).alias("last_at"),
        )
        .select(*CLIENTS)
        .orderBy("hour", "group", "client")
    )


def _effects(deliveries: "DataFrame", periods: "DataFrame", samples: "DataFrame | None") -> "DataFrame":
    """Return a row for each rebalance."""
    key = ["group", "rebalance_ms"]
    calm = (
        deliveries.where("calm_before_ms is not null")
        .groupBy("group", f.col("calm_before_ms").alias("rebalance_ms"))
        .agg(
            f.percentile_approx("delay_ms", 0.5).alias("before_p50_ms"),
            f.max("delay_ms").alias("before_max_ms"),
        )
    )
    since = deliveries.where("rebalance_ms is not null").join(calm, key, "left")
    is_after = (f.col("began_ms") >= f.col("rebalance_ms")) & f.col("delay_ms").isNotNull()
    is_late = is_after & (f.col("delay_ms") > f.col("before_max_ms"))
    last_late, last = f.max(f.when(is_late, f.col("began_ms"))), f.max(f.when(is_after, f.col("began_ms")))
    back = (
        f.when(last_late.isNull(), f.when(f.max("before_max_ms").isNotNull() & last.isNotNull(), f.lit(0)))
        .when(last_late < last, last_late - f.col("rebalance_ms"))
    )  # fmt: skip
    of_rebalance = f.col("cause") == "rebalance"
    after = since.groupBy(*key).agg(
        f.count_if(of_rebalance).alias("duplicates"),
        f.count_if(of_rebalance & f.col("is_twice")).alias("succeeded_twice"),
        f.percentile_approx(f.when(is_after, f.col("delay_ms")), 0.5).alias("after_p50_ms"),
        f.max(f.when(is_after, f.col("delay_ms"))).alias("after_max_ms"),
        back.alias("back_to_normal_ms"),
    )
    traced = deliveries.select("group").distinct().withColumn("is_traced", f.lit(True))
    effects = periods.join(after, key, "left").join(calm, key, "left")
    if samples is None:
        unknown = f.lit(None).cast("bigint")
        effects = effects.withColumns(dict.fromkeys(("lag_before", "lag_peak", "lag_back_ms"), unknown))
    else:
        effects = effects.join(_lag_effects(samples, periods), key, "left")
    return (
        effects.join(f.broadcast(traced), "group", "left")
        .withColumn("duplicates", f.when(f.col("is_traced"), f.coalesce("duplicates", f.lit(0))))
        .withColumn("succeeded_twice", f.when(f.col("is_traced"), f.coalesce("succeeded_twice", f.lit(0))))
        .withColumn("at", f.timestamp_millis("rebalance_ms"))
        .select(*EFFECTS)
        .orderBy("at", "group")
    )


def _lag_effects(samples: "DataFrame", periods: "DataFrame") -> "DataFrame":
    """Return the lag around each rebalance: the last before, the peak after, and its return to normal."""
    behind = f.greatest(f.col("broker_offset") - f.col("consumer_offset"), f.lit(0))
    once = samples.dropDuplicates(["group", "topic", "broker", "queueId", "at"])  # As in lag_report.
    whole = once.groupBy("group", f.unix_millis("at").alias("at_ms")).agg(f.sum(behind).alias("lag"))
    placed = with_periods(whole, "at_ms", periods)
    calm = (
        placed.where("calm_before_ms is not null")
        .groupBy("group", f.col("calm_before_ms").alias("rebalance_ms"))
        .agg(f.max_by("lag", "at_ms").alias("lag_before"))
    )
    key = ["group", "rebalance_ms"]
    since = placed.where("at_ms >= rebalance_ms").join(calm, key, "left")
    peaks = since.groupBy(*key).agg(
        f.max("lag").alias("lag_peak"),
        f.max_by("at_ms", f.struct("lag", -f.col("at_ms"))).alias("peak_ms"),
        f.first("lag_before").alias("lag_before"),
    )
    is_back = (f.col("at_ms") >= f.col("peak_ms")) & (f.col("lag") <= f.col("lag_before"))
    back = (
        placed.join(peaks, key)
        .where(is_back)
        .groupBy(*key)
        .agg((f.min("at_ms") - f.col("rebalance_ms")).alias("lag_back_ms"))
    )
    return peaks.join(back, key, "left").select(*key, "lag_before", "lag_peak", "lag_back_ms")


#: Ours: the time before a rebalance that shows a group's usual delay and lag.
CALM_MS: Final = 60_000
#: Ours: redeliveries this soon after a rebalance count as caused by it. They occur when a new owner begins to
#: read, because clients commit every 5 s.
CAUSED_MS: Final = 30_000
#: Ours: how long after a rebalance to look for the return to normal.
AFTER_MS: Final = 300_000
#: Ours: rows and periods are joined by group and time slice. A slice has few periods, and no group ends up in
#: a single task.
STRETCH_MS: Final = 300_000


class Period(NamedTuple):
    """A rebalance and the times around it; each end is exclusive."""

    group: str
    rebalance_ms: int
    reason: str
    calm_from_ms: int
    from_ms: int
    caused_until_ms: int
    until_ms: int


def periods(rebalances: Iterable[Mapping[str, Any]]) -> list[Period]:
    """Compute the periods from rows of the table `rebalances`."""
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for row in rebalances:
        by_group.setdefault(row["group"], []).append(row)
    return [period for group, rows in by_group.items() for period in _of_group(group, rows)]


def _of_group(group: str, rows: list[Mapping[str, Any]]) -> Iterable[Period]:
    rows.sort(key=lambda row: row["at"])
    starts = [round(row["at"].timestamp() * 1000) for row in rows]
    previous, following_starts = [0, *starts], [*starts[1:], None]
    for row, start, before, following in zip(rows, starts, previous, following_starts, strict=False):
        took = row["time_to_stable_ms"]
        settled = start + (SETTLE_MS_MAX if took is None else took)
        until = (
            settled + AFTER_MS if following is None else min(settled + AFTER_MS, following - CLOCKS_APART_MS)
        )
        yield Period(
            group=group,
            rebalance_ms=start,
            reason=row["reason"],
            calm_from_ms=max(before, start - CALM_MS),
            from_ms=max(before, start - CLOCKS_APART_MS),  # Clients' clocks differ from the broker's.
            caused_until_ms=min(settled + CAUSED_MS, until),
            until_ms=until,
        )


def period_rows(spark: "SparkSession", found: Iterable[Period]) -> "DataFrame":
    """Return the periods as a table."""
    kinds = {str: "string", int: "bigint"}
    columns = {name: kinds[kind] for name, kind in Period.__annotations__.items()}
    return spark.createDataFrame(list(found), ddl(columns))


def with_periods(rows: "DataFrame", time: str, found: "DataFrame") -> "DataFrame":
    """Add the period after a rebalance and the calm before one to rows with a `group` and a time in ms.

    Adds rebalance_ms, reason and caused_until_ms (null without a recent rebalance), and calm_before_ms: the
    next rebalance (null unless it is near).
    """
    after = _stretched(found, "from_ms", "until_ms", "rebalance_ms", "reason", "caused_until_ms")
    calm = _stretched(
        found.withColumn("calm_before_ms", f.col("rebalance_ms")),
        "calm_from_ms",
        "rebalance_ms",
        "calm_before_ms",
    )
    stretched = rows.withColumn("_stretch", f.floor(f.col(time) / STRETCH_MS))
    for one in (after, calm):
        inside = (
            (stretched["group"] == one["_group"])
            & (stretched["_stretch"] == one["_at"])
            & (stretched[time] >= one["_first"])
            & (stretched[time] < one["_last"])
        )
        # The periods come from the driver, so they are small enough to broadcast.
        stretched = stretched.join(f.broadcast(one), inside, "left").drop("_group", "_at", "_first", "_last")
    return stretched.drop("_stretch")


def _stretched(found: "DataFrame", first: str, last: str, *columns: str) -> "DataFrame":
    """Return a row for each time slice that a period touches."""
    stretches = f.sequence(f.floor(f.col(first) / STRETCH_MS), f.floor((f.col(last) - 1) / STRETCH_MS))
    return found.where(f.col(first) < f.col(last)).select(
        f.col("group").alias("_group"),
        f.col(first).alias("_first"),
        f.col(last).alias("_last"),
        f.explode(stretches).alias("_at"),
        *columns,
    )
