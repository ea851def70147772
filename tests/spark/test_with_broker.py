"""Tests of the source with our own broker as a process, for behaviour that a fake would not reveal."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.sync import Admin, Producer

from ..interop.cluster import SEND_TIMEOUT_MS
from ..interop.libra import LibraUp
from .conftest import QUEUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WAIT_SECONDS = 150


def send(up: LibraUp, topic: str, count: int, size: int = 10) -> list[bytes]:
    """Send messages to each queue in turn."""
    bodies = [b"%06d" % number + b"x" * size for number in range(count)]
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number, body in enumerate(bodies):
            queue = MessageQueue(topic, "broker-a", number % QUEUES)
            producer.send_nowait(Message(topic, body), queue=queue)
        producer.flush()
    return bodies


def test_an_empty_topic_is_an_empty_table(spark: "SparkSession", up: LibraUp, topic: str):
    table = spark.read.format("rocketmq").options(namesrv=up.namesrv, subscribe=topic).load()
    assert table.count() == 0


def test_lag_is_shown_by_the_broker_and_the_last_batch_is_in_it(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path
):
    send(up, topic, 100)
    stream = spark.readStream.format("rocketmq").options(
        namesrv=up.namesrv,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="40",
        commitGroupId="spark-lag",
    )
    query = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    assert query.trigger(availableNow=True).start().awaitTermination(WAIT_SECONDS)
    send(up, topic, 8)
    with Admin(namesrv=up.namesrv) as admin:
        stats = admin.consume_stats("spark-lag", topic)
    assert {(each.consumer_offset, each.broker_offset) for each in stats.values()} == {(25, 27)}


def test_pulls_of_a_mebibyte(spark: "SparkSession", up: LibraUp, topic: str):
    """One queue holds more than a frame can, and bodies travel compressed."""
    bodies = send(up, topic, 400, size=50_000)
    table = spark.read.format("rocketmq").options(namesrv=up.namesrv, subscribe=topic).load()
    from pyspark.sql import functions as f

    found = table.select(f.sha2("body", 256).alias("sum"), "queueId", "offset").collect()
    import hashlib

    sums = {hashlib.sha256(body).hexdigest() for body in bodies}
    assert {row.sum for row in found} == sums
    assert len(found) == len(sums) == len(bodies)


def test_sql_is_applied_by_the_broker_and_its_faults_are_passed_on(
    spark: "SparkSession", up: LibraUp, topic: str
):
    table = spark.read.format("rocketmq").options(namesrv=up.namesrv, subscribe=topic)
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number in range(8):
            producer.send(Message(topic, b"%d" % number, properties={"a": str(number)}))
    bodies = table.options(sql="a > 3 AND a <> 6").load().select("body").collect()
    assert sorted(bytes(row.body) for row in bodies) == [b"4", b"5", b"7"]
    with pytest.raises(Exception, match="SQL92 filter, column 4: a value is missing"):
        table.options(sql="a >").load().count()
