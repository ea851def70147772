"""Tests of the detection of duplicates."""

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from libramq.spark.pipeline.ingest import without_duplicates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "topic string, broker string, queueId int, offset bigint, timestamp timestamp, key string, msgId string"
)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR_MS = 3_600_000


def row(
    offset: int, minute: float, *, key: str | None = "k", topic: str = "T", msg_id: str = "u"
) -> tuple[Any, ...]:
    return (topic, "broker-a", 0, offset, NOON + timedelta(minutes=minute), key, msg_id)


class Rows:
    """A table that records the days for which it is read."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self._rows = rows
        self.asked: tuple[date, date] | None = None

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        self.asked = (first, last)
        return spark.createDataFrame(list(self._rows), SCHEMA) if self._rows else None


def kept(
    spark: "SparkSession", batch: list[tuple[Any, ...]], table: Rows, identity: Any = "key"
) -> list[int]:
    frame = without_duplicates(spark.createDataFrame(batch, SCHEMA), table, identity, HOUR_MS)
    assert frame.columns == spark.createDataFrame(batch, SCHEMA).columns
    return sorted(found.offset for found in frame.collect())


def test_the_message_stored_first_is_kept(spark: "SparkSession"):
    batch = [row(2, 5), row(1, 0), row(3, 59), row(4, 300), row(5, 1, topic="U"), row(6, 1, key="other")]
    assert kept(spark, batch, Rows()) == [1, 4, 5, 6]


def test_a_message_without_a_key_is_no_duplicate_by_key(spark: "SparkSession"):
    batch = [row(1, 0, key=None), row(2, 0, key=None), row(3, 0, key=""), row(4, 0, key="")]
    assert kept(spark, batch, Rows()) == [1, 2, 3, 4]
    assert kept(spark, batch, Rows(), "unique_id") == [1]


def test_duplicates_are_searched_before_and_after_in_the_table(spark: "SparkSession"):
    """A queue that is read late has messages older than those in the table."""
    table = Rows(row(1, 0))
    assert kept(spark, [row(2, -30), row(3, -90, key="k"), row(4, 200)], table) == [3, 4]
    assert table.asked == (date(2026, 4, 30), date(2026, 5, 2))
