"""Spark's expressions, delays and pipelines with Apache's broker; tests/spark has the tests of ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from libramq.client import ConsumeFrom
from libramq.message import Message, MessageQueue
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.lag_report import LagReport, LagReportConfig
from libramq.spark.pipeline.plan import Progress
from libramq.sync import Producer, PushConsumer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.process import PATIENCE_S
from tests.interop.test_our_client import Inbox
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["spark"]

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.parametrize("_cluster", ["apache"], indirect=True, scope="session"),
]

QUEUES = 4


def fresh_topic(cluster: Cluster, what: str) -> str:
    name = cluster.fresh_name(what)
    cluster.create_topic(name, QUEUES)
    return name


def send(cluster: Cluster, topic: str, numbers: range, **properties: str) -> None:
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number in numbers:
            given = {"number": str(number), **properties}
            producer.send_nowait(Message(topic, b"%d" % number, keys=f"k{number}", properties=given))
        producer.flush()
    # Apache's broker acknowledges a message before its queues have it.
    cluster.wait_stored(topic, numbers.stop)


def ignore(_: Progress) -> None:
    """Ignore progress."""


def test_filter_expressions_of_a_stream_run_on_the_broker(
    cluster: Cluster, spark: "SparkSession", tmp_path: Path
) -> None:
    """The batches have exactly the messages that match."""
    topic = fresh_topic(cluster, "Sql")
    send(cluster, topic, range(300))
    seen: list[tuple[str, str]] = []

    def take(frame: "DataFrame", _: int) -> None:
        seen.extend((row.key, row.properties["number"]) for row in frame.collect())

    stream = spark.readStream.format("rocketmq").options(
        subscribe=topic,
        namesrv=cluster.namesrv,
        sql="number BETWEEN 100 AND 199 OR number = 7",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="70",
        includeHeaders="true",
    )
    query = (
        stream.load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    wanted = [7, *range(100, 200)]
    assert sorted(seen) == sorted((f"k{number}", str(number)) for number in wanted)


def test_an_invalid_expression_is_refused_by_the_broker(cluster: Cluster, spark: "SparkSession") -> None:
    topic = fresh_topic(cluster, "Sql")
    send(cluster, topic, range(4))
    given = {"subscribe": topic, "namesrv": cluster.namesrv, "sql": "number BETWEEN"}
    with pytest.raises(Exception, match="SUBSCRIPTION_PARSE_FAILED"):
        spark.read.format("rocketmq").options(**given).load().count()


def test_the_sink_sets_delay_levels(cluster: Cluster, spark: "SparkSession") -> None:
    """A column has the levels 0 to 2: no delay, one second, five."""
    topic = fresh_topic(cluster, "Delay")
    rows = spark.range(30).selectExpr("concat('b', id) as body", "cast(id % 3 as int) as delayLevel")
    rows.write.format("rocketmq").options(topic=topic, namesrv=cluster.namesrv).mode("append").save()
    cluster.wait_stored(topic, 30)
    table = spark.read.format("rocketmq").options(subscribe=topic, namesrv=cluster.namesrv).load()
    waited_ms: dict[int, list[int]] = {0: [], 1: [], 2: []}
    found: list[Row] = table.selectExpr(
        "int(substring(string(body), 2)) as id",
        "unix_millis(timestamp) - unix_millis(bornTimestamp) as waited",
    ).collect()
    for row in found:
        waited_ms[row.id % 3].append(row.waited)
    assert [len(each) for each in waited_ms.values()] == [10, 10, 10]
    # A broker rounds times to the ticks of its clock.
    assert min(waited_ms[1]) >= 900
    assert min(waited_ms[2]) >= 4_900


def test_ingest_resumes_where_it_ended(cluster: Cluster, spark: "SparkSession", tmp_path: Path) -> None:
    topic = fresh_topic(cluster, "Ingest")
    given = IngestConfig(
        topics=[topic], table=str(tmp_path / "t"), namesrv=cluster.namesrv, batch_messages=70, body="string"
    )
    for first in (0, 200):
        send(cluster, topic, range(first, first + 200))
        assert Ingest(given).run(spark, ignore).sentence.startswith("200 messages of")
    rows = ds.dataset(tmp_path / "t", format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted(int(row["body"]) for row in rows) == list(range(400))
    assert len({(row["broker"], row["queueId"], row["offset"]) for row in rows}) == 400


def test_the_lag_of_a_group_is_recorded(cluster: Cluster, spark: "SparkSession", tmp_path: Path) -> None:
    topic, group = fresh_topic(cluster, "Lag"), cluster.fresh_name("lag_group")
    inbox = Inbox()
    send(cluster, topic, range(40))
    cluster.begin_offsets(group, topic)
    member = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    member.subscribe(topic, "*", inbox)
    with member:
        inbox.wait_count(40)
    queue = MessageQueue(topic, cluster.broker_name, 1)
    given = LagReportConfig(
        directory=str(tmp_path / "lag"), namesrv=cluster.namesrv, groups=[group], topics=[topic], samples=3
    )
    sent = 40
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:

        def send_between(seconds: float) -> None:
            nonlocal sent
            for _ in range(2):
                producer.send(Message(topic, b"more"), queue=queue)
            sent += 2
            cluster.wait_stored(topic, sent)

        outcome = LagReport(given, wait=send_between).run(spark, ignore)
    assert all(Path(file).is_file() for file in outcome.files)
    groups: list[dict[str, Any]] = pq.read_table(tmp_path / "lag" / "groups.parquet").to_pylist()
    assert [row["lag"] for row in groups] == [2, 4, 6]
    lags = pq.read_table(tmp_path / "lag" / "lag.parquet").to_pylist()
    assert {row["queueId"] for row in lags if row["lag"]} == {1}
