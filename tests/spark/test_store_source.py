"""Tests of `option("store", DIR)` in a real Spark session: a store as a table, without its broker."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.spark.reading.store_queues import StoreQueues

from ..store.stores import copy_as_killed, message, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = tuple[str, str, int, int, bytes, str | None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Return a closed store with 900 messages of two topics, and its contents."""
    root = tmp_path_factory.mktemp("store")
    store = open_store(root)
    rows: list[Row] = []
    for number in range(900):
        topic, queue_id = ("T", number % 2) if number % 3 else ("U", 0)
        body, tag = b"%d" % number, f"tag{number % 5}"
        (result,) = store.append_batch([message(body, topic, queue_id, tag)])
        rows.append((topic, "broker-a", queue_id, result.queue_offset, body, tag))
    store.close()
    return root, sorted(rows)


def table(spark: "SparkSession", root: Path, **more: str) -> "DataFrame":
    given = {"store": str(root), "storeBroker": "broker-a", "subscribe": "T,U", **more}
    return spark.read.format("rocketmq").options(**given).load()


def rows_of(frame: "DataFrame") -> list[Row]:
    return sorted(
        (row.topic, row.broker, row.queueId, row.offset, bytes(row.body), row.tag) for row in frame.collect()
    )


def test_every_message_is_read_once(spark: "SparkSession", written: tuple[Path, list[Row]]):
    root, rows = written
    assert rows_of(table(spark, root, minPartitions="3")) == rows


def test_the_store_of_a_killed_broker_is_read(
    spark: "SparkSession", written: tuple[Path, list[Row]], tmp_path: Path
):
    """The planner rebuilds the consume queue from the log and sends its units to the tasks."""
    root, rows = written
    copy = copy_as_killed(root, tmp_path / "copy")
    (copy / "checkpoint").unlink()
    assert rows_of(table(spark, copy)) == rows


def test_a_log_with_a_directory_of_its_own_is_read(
    spark: "SparkSession", written: tuple[Path, list[Row]], tmp_path: Path
):
    """For a broker with storePathCommitLog, planner and tasks receive both directories."""
    root, rows = written
    copy, log = tmp_path / "copy", tmp_path / "other disk"
    shutil.copytree(root, copy)
    (copy / "commitlog").rename(log)
    assert rows_of(table(spark, copy, storeCommitLog=str(log))) == rows
    with pytest.raises(Exception, match="storeCommitLog is the log of a store"):
        spark.read.format("rocketmq").options(storeCommitLog=str(log), subscribe="T").load().count()


def test_offsets_and_filters_are_applied(spark: "SparkSession", written: tuple[Path, list[Row]]):
    root, rows = written
    frame = table(
        spark,
        root,
        subscribe="T",
        startingOffsets='{"T": {"broker-a": {"1": 10}}}',
        pushdown="true",
    )
    wanted = [row for row in rows if row[0] == "T" and row[2] == 1 and 10 <= row[3] < 20]
    assert rows_of(frame.where("queueId = 1 and offset < 20")) == wanted


def test_an_empty_range_is_an_empty_table(spark: "SparkSession", written: tuple[Path, list[Row]]):
    ends = '{"T": {"broker-a": {"0": 300, "1": 300}}}'
    assert rows_of(table(spark, written[0], subscribe="T", startingOffsets=ends)) == []


def test_invalid_options_are_named(spark: "SparkSession", written: tuple[Path, list[Row]], tmp_path: Path):
    root, _ = written
    with pytest.raises(Exception, match="has no topic V; there are T, U"):
        table(spark, root, subscribe="V").count()
    with pytest.raises(Exception, match="is no store directory"):
        table(spark, tmp_path).count()
    stream = spark.readStream.format("rocketmq").options(store=str(root), subscribe="T").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="store is for batch queries"):
        query.awaitTermination()


def test_the_queues_of_a_store_are_listed(written: tuple[Path, list[Row]]):
    queues = StoreQueues(str(written[0]), "b")
    assert queues.topics() == ["T", "U"]
    assert [queue.queue_id for queue in queues.queues("T")] == [0, 1]
    queues.close()
