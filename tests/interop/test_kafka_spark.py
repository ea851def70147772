"""Spark's own Kafka source and sink against our Kafka port, on PySpark 4.2.0 (`bench/spark_kafka`).

That is the last Spark whose Kafka source is whole on Maven Central.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.spark_kafka import kafka

from tests.interop.kafka_programs import KafkaUp
from tests.interop.process import Program

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not kafka.has_environment(),
        reason="0.5 GB; fetch it with python -c 'from bench.spark_kafka import kafka; kafka.set_up()'",
    ),
]

PROGRAM = Path(__file__).with_name("kafka_spark.py")
ANSWER_S = 300.0
PARTITIONS = 4


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaUp]:
    up = KafkaUp(tmp_path_factory.mktemp("kafka"))
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()


class Spark:
    """A Spark driver in a process; it can be killed and started again."""

    def __init__(self, address: str, home: Path) -> None:
        self._address = address
        python = str(kafka.PYTHON)
        (home_of_spark,) = (kafka.CACHE / "venv" / "lib").glob("python*/site-packages/pyspark")
        self.program = Program(
            "spark-kafka",
            [python, str(PROGRAM), kafka.source_jars()],
            directory=home,
            env={"PYSPARK_PYTHON": python, "SPARK_HOME": str(home_of_spark), "PYTHONPATH": ""},
        )
        self.program.wait_event("ready", within_s=ANSWER_S)

    def ask(self, what: str, **question: Any) -> dict[str, Any]:
        """Make a request of the driver and return its answer."""
        asked = {"ask": what, "servers": self._address, **question}
        return self.program.ask("done", asked, within_s=ANSWER_S)

    def values(self, topic: str, **options: str) -> list[int]:
        """Return the values of a topic, sorted."""
        return sorted(int(value) for _, _, value in self.ask("read", topic=topic, options=options)["rows"])


@pytest.fixture
def spark(servers: KafkaUp, tmp_path: Path) -> Iterator[Spark]:
    spark = Spark(servers.kafka, tmp_path)
    try:
        yield spark
    finally:
        spark.program.stop()


def create(servers: KafkaUp, *topics: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": servers.kafka})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(ANSWER_S)


def test_batches_are_written_and_read(servers: KafkaUp, spark: Spark):
    create(servers, "batches")
    spark.ask("write", topic="batches", start=0, end=1_000, partitions=PARTITIONS)
    rows = spark.ask("read", topic="batches", options={})["rows"]
    assert sorted(int(value) for _, _, value in rows) == list(range(1_000))
    assert [(partition, offset) for partition, offset, _ in rows] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(250)
    ]
    assert all(int(value) % PARTITIONS == partition for partition, _, value in rows)
    start = '{"batches": {"0": 10, "1": 0, "2": 0, "3": 0}}'
    end = '{"batches": {"0": 12, "1": 0, "2": 0, "3": 1}}'
    part = spark.ask("read", topic="batches", options={"startingOffsets": start, "endingOffsets": end})
    places = ([0, 10], [0, 11], [3, 0])
    assert part["rows"] == [row for row in rows if row[:2] in places]


def test_a_stream_continues_where_its_killed_driver_stopped(servers: KafkaUp, spark: Spark, tmp_path: Path):
    """It copies one topic into another with a checkpoint; no message is lost or read again."""
    create(servers, "orders", "copies")
    copy = {"topic": "orders", "into": "copies", "checkpoint": str(tmp_path / "checkpoint"), "most": 200}
    spark.ask("write", topic="orders", start=0, end=1_000, partitions=PARTITIONS)
    assert spark.ask("copy", **copy)["batches"] == 5
    assert spark.values("copies") == list(range(1_000))
    spark.ask("write", topic="orders", start=1_000, end=1_400, partitions=PARTITIONS)
    spark.program.kill()
    again = Spark(servers.kafka, tmp_path / "again")
    try:
        assert again.ask("copy", **copy)["batches"] == 2
        assert again.values("copies") == list(range(1_400))
    finally:
        again.program.stop()


def test_a_real_time_query_answers_within_its_batch(servers: KafkaUp, spark: Spark, tmp_path: Path):
    """Each order is sent when the one before has come out, and the batch lasts five minutes."""
    create(servers, "live", "alerts", partitions=1)  # Real-time mode takes a core for each partition.
    spark.ask("follow", topic="live", into="alerts", checkpoint=str(tmp_path / "checkpoint"))
    producer = Producer({"bootstrap.servers": servers.kafka, "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": servers.kafka, "group.id": "alerts", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["alerts"])
    try:
        for number in range(20):
            producer.produce("live", b"%d" % number)
            producer.flush(ANSWER_S)
            (message,) = consumer.consume(1, timeout=ANSWER_S)
            assert message.value() == b"%d" % number
    finally:
        consumer.close()
    assert spark.ask("leave")["batches"] == 0
