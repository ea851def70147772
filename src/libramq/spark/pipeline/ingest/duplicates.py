"""Business duplicates: messages of one topic with the same id, stored soon after each other.

They are found by comparing with the batch and the table, not with Spark's state: a streaming state drops what
is older than its watermark, and a queue that is read later than the others is older than theirs. Here nothing
is lost whatever the order, and a batch that is written again after a crash gives the same result.
"""

from datetime import date, timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from pyspark.sql import functions as f
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Identity = Literal["unique_id", "key"]


class Table(Protocol):
    """The table with the earlier rows."""

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None": ...


def without_duplicates(batch: "DataFrame", table: Table, identity: Identity, within_ms: int) -> "DataFrame":
    """Return a batch's rows whose id came neither earlier in it nor in the table, within a time.

    Of several in one batch, the one stored first stays. A message without a key is never a duplicate by key.
    """
    known = batch.withColumn("_id", _id(identity))
    same = Window.partitionBy("topic", "_id").orderBy("timestamp", "broker", "queueId", "offset")
    since = f.unix_millis("timestamp") - f.unix_millis(f.lag("timestamp").over(same))
    first = known.withColumn("_since", since).where(f"_since is null or _since > {within_ms}").drop("_since")
    before = _rows_around(batch, table, within_ms)
    if before is None:
        return first.drop("_id")
    there = before.select(
        f.col("topic").alias("_topic"), _id(identity).alias("_there"), f.unix_millis("timestamp").alias("_at")
    )
    is_again = (
        (f.col("topic") == f.col("_topic"))
        & (f.col("_id") == f.col("_there"))
        & (f.abs(f.unix_millis("timestamp") - f.col("_at")) <= within_ms)
    )
    return first.join(there, is_again, "left_anti").drop("_id")


def _id(identity: Identity) -> "Column":
    if identity == "unique_id":
        return f.col("msgId")
    place = f.concat_ws(":", f.lit("\0"), "broker", "queueId", "offset")  # No key begins with it.
    return f.coalesce(f.nullif("key", f.lit("")), place)


def _rows_around(batch: "DataFrame", table: Table, within_ms: int) -> "DataFrame | None":
    """Return the table's rows of the days in which duplicates of the batch may lie."""
    bounds = batch.select(f.to_date(f.min("timestamp")), f.to_date(f.max("timestamp"))).first()
    if bounds is None or bounds[0] is None:
        return None
    around = timedelta(days=within_ms // 86_400_000 + 1)
    return table.rows_of(batch.sparkSession, bounds[0] - around, bounds[1] + around)
