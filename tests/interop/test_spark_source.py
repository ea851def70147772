"""The Spark source reads what Apache's Java producer sent, from Apache's broker and from ours."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.client.queue_reader import QueueReader
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from tests.interop.cluster import Cluster
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.spark]

QUEUES = 4
MESSAGES = 300  # More than one pull of each queue brings from Apache's broker.
WAIT_SECONDS = 60


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """300 messages over 4 queues, and one that its producer compressed."""
    name = cluster.fresh_name("Spark")
    cluster.create_topic(name, QUEUES)
    for first in range(0, MESSAGES, 100):
        messages = [
            {"body": f"message {i}", "tags": f"Tag{i % 3}", "keys": f"key-{i}"}
            for i in range(first, first + 100)
        ]
        cluster.send(kind="batch", topic=name, messages=messages)
    cluster.send(kind="queue", queueId=1, topic=name, body="compressed ", repeat=1_000, keys="large")
    return name


def test_queue_reader_gives_exactly_the_stretches_asked_for(cluster: Cluster, topic: str) -> None:
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


def test_batch(cluster: Cluster, topic: str, spark: "SparkSession") -> None:
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


def test_stream_goes_on_where_it_ended(
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
        assert query.awaitTermination(WAIT_SECONDS)
        assert len(seen) == len(set(seen)) == MESSAGES + 1 + run
        cluster.send(kind="queue", queueId=2, topic=topic, body="one more")
