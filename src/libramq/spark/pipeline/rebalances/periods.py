"""The periods around rebalances: for how long before and after one a row of a table counts to it.

    ───────────── calm ──│ started ──── settled ── caused ──│── after ──│ the next one's start

Periods of a group's rebalances do not overlap: an overlap belongs to the later one.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from libramq.groups.rebalance import SETTLE_MS_MAX
from libramq.spark.pipeline.rebalances.deliveries import CLOCKS_APART_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Ours, each. How long before a rebalance a group is observed, to learn what is usual.
CALM_MS: Final = 60_000
#: Redeliveries are at the beginning of a new owner's reading: clients commit every 5 s.
CAUSED_MS: Final = 30_000
#: For how long the return to normal is looked for.
AFTER_MS: Final = 300_000
#: Rows and periods are joined by group and time slice: a slice has few periods, so no group is a single
#: task's.
STRETCH_MS: Final = 300_000


class Period(NamedTuple):
    """A rebalance and the times around it, each up to but without its end."""

    group: str
    rebalance_ms: int
    reason: str
    calm_from_ms: int
    from_ms: int
    caused_until_ms: int
    until_ms: int


_DDL: Final = (
    "`group` string, rebalance_ms bigint, reason string, calm_from_ms bigint, from_ms bigint, "
    "caused_until_ms bigint, until_ms bigint"
)


def periods(rebalances: Iterable[Mapping[str, Any]]) -> list[Period]:
    """Compute the periods from the rows of the table of rebalances."""
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
    return spark.createDataFrame(list(found), _DDL)


def with_periods(rows: "DataFrame", time: str, found: "DataFrame") -> "DataFrame":
    """Add to rows of a `group` and a time in ms the period after a rebalance, and the calm before one.

    Adds rebalance_ms, reason and caused_until_ms (null if there was none before), and calm_before_ms: the
    next rebalance.
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
        # Its rows come from the driver: small enough to be broadcast.
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
