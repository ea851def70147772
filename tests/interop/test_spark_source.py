"""The Spark source reads messages of Apache's Java producer from Apache's broker and from ours."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.client.queue_reader import QueueReader
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.spark]

QUEUES = 4
MESSAGES = 300  # More than one pull per queue gets from Apache's broker.


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with 300 messages in 4 queues, and one that its producer compressed."""
    name = cluster.fresh_name("Spark")
    cluster.create_topic(name, QUEUES)
    for first in range(0, MESSAGES, 100):
        messages = [
            {"body": f"message {i}", "tags": f"Tag{i % 3}", "keys": f"key-{i}"}
            for i in range(first, first + 100)
        ]
        cluster.send(kind="batch", topic=name, messages=messages)
    cluster.send(kind="queue", queueId=1, topic=name, body="compressed ", repeat=1_000, keys="large")
    cluster.wait_stored(name, MESSAGES + 1)
    return name


def test_queue_reader_returns_exactly_the_requested_ranges(cluster: Cluster, topic: str) -> None:
    reader = QueueReader([cluster.namesrv], group="TOOLS_CONSUMER")
    queues = reader.queues(topic)
    assert queues == [MessageQueue(topic, cluster.broker_name, number) for number in range(QUEUES)]
    ends = reader.max_offsets(queues)
    assert sum(ends.values()) == MESSAGES + 1
    for queue, end in ends.items():
        stretches = list(reader.read(queue, min(3, end), end))
        offsets = [message.queue_offset for part in stretches for message in decode_records(part.body)]
        assert offsets == list(range(min(3, end), end))
    reader.close()


def test_a_batch_query_reads_every_message(cluster: Cluster, topic: str, spark: "SparkSession") -> None:
    options = {"subscribe": topic, "namesrv": cluster.namesrv, "includeHeaders": "true"}
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    by_key = {row.key: row for row in rows}
    assert len(rows) == len(by_key) == MESSAGES + 1
    for number in range(MESSAGES):
        row = by_key[f"key-{number}"]
        assert bytes(row.body) == b"message %d" % number
        assert row.tag == f"Tag{number % 3}"
        assert row.broker == cluster.broker_name
        assert row.msgId == row.properties["UNIQ_KEY"]
    assert bytes(by_key["large"].body) == b"compressed " * 1_000


def test_a_restarted_stream_resumes_where_it_ended(
    cluster: Cluster, topic: str, spark: "SparkSession", tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def take(frame: "DataFrame", _: int) -> None:
        seen.extend((row.queueId, row.offset) for row in frame.select("queueId", "offset").collect())

    options = {
        "subscribe": topic,
        "namesrv": cluster.namesrv,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "120",
    }
    for run in range(2):
        stream = spark.readStream.format("rocketmq").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        assert len(seen) == len(set(seen)) == MESSAGES + 1 + run
        cluster.send(kind="queue", queueId=2, topic=topic, body="one more")
        cluster.wait_stored(topic, MESSAGES + 2 + run)


def test_the_broker_filters_tags(cluster: Cluster, topic: str, spark: "SparkSession") -> None:
    given = {"subscribe": topic, "namesrv": cluster.namesrv, "tags": "Tag0 || Tag2"}
    rows = spark.read.format("rocketmq").options(**given).load().select("key", "tag").collect()
    assert sorted(row.key for row in rows) == sorted(f"key-{i}" for i in range(MESSAGES) if i % 3 != 1)
    assert {row.tag for row in rows} == {"Tag0", "Tag2"}


def test_sql_filters_are_applied_by_the_broker(cluster: Cluster, topic: str, spark: "SparkSession") -> None:
    given = {"subscribe": topic, "namesrv": cluster.namesrv, "sql": "TAGS = 'Tag1' AND KEYS <> 'key-1'"}
    table = spark.read.format("rocketmq").options(**given).load()
    keys = sorted(row.key for row in table.select("key").collect())
    assert keys == sorted(f"key-{i}" for i in range(4, MESSAGES, 3))


def test_timestamps_bound_a_query(cluster: Cluster, topic: str, spark: "SparkSession") -> None:
    """If a time is between messages, reading starts at the later one."""
    given = {"subscribe": topic, "namesrv": cluster.namesrv}
    table = spark.read.format("rocketmq").options(**given).load()
    times = table.selectExpr("queueId", "offset", "unix_millis(timestamp) as stored").collect()
    middle = sorted(row.stored for row in times)[len(times) // 2]
    for option, is_wanted in (
        ({"startingTimestamp": str(middle), "startingOffsetsByTimestampStrategy": "latest"}, middle.__le__),
        ({"endingTimestamp": str(middle)}, middle.__gt__),
    ):
        found = spark.read.format("rocketmq").options(**given, **option).load().select("queueId", "offset")
        wanted = sorted((row.queueId, row.offset) for row in times if is_wanted(row.stored))
        assert sorted((row.queueId, row.offset) for row in found.collect()) == wanted


def test_a_store_directory_is_read_without_its_broker(
    cluster: Cluster, topic: str, spark: "SparkSession", tmp_path: Path
) -> None:
    """The broker writes during the copy, which no process has open: the log is read past the checkpoint."""
    (directory,) = {path.parent for path in cluster.home.rglob("commitlog")}
    shutil.copytree(directory, tmp_path / "store", copy_function=copy_if_there)
    columns = ("queueId", "offset", "key", "tag", "msgId", "body", "timestamp")
    wire = {"subscribe": topic, "namesrv": cluster.namesrv}
    store = {"subscribe": topic, "store": str(tmp_path / "store")}
    expected, found = (
        sorted(spark.read.format("rocketmq").options(**given).load().select(*columns).collect())
        for given in (wire, store)
    )
    assert len(found) == MESSAGES + 1
    assert found == expected


def copy_if_there(source: str, target: str) -> None:
    """Copy a file unless it is gone: every 5 s brokers write tables to temporary files and rename them."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_the_sink_writes_messages_that_java_reads(cluster: Cluster, spark: "SparkSession") -> None:
    name = cluster.fresh_name("SparkSink")
    cluster.create_topic(name, QUEUES)
    rows = spark.range(MESSAGES).selectExpr("concat('body ', id) as body", "concat('key-', id % 7) as key")
    given = {"namesrv": cluster.namesrv, "topic": name, "queueBy": "key"}
    rows.write.format("rocketmq").options(**given).mode("append").save()
    cluster.wait_stored(name, MESSAGES)
    stored = spark.read.format("rocketmq").options(namesrv=cluster.namesrv, subscribe=name).load().collect()
    assert sorted(bytes(row.body) for row in stored) == sorted(b"body %d" % i for i in range(MESSAGES))
    assert len({row.msgId for row in stored}) == MESSAGES
    assert len({(row.key, row.queueId) for row in stored}) == 7
