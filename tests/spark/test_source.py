"""Tests of `format("rocketmq")` in a real Spark session, with a broker that returns 32 messages a pull.

They cover the parts of the readers that need Spark; test_batch_reader.py and test_stream_reader.py cover the
rest.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from libramq.columns.records import FIELDS, arrow_schema
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import StreamOffset
from libramq.spark.schema import COLUMNS

from ..client.fake_broker import FIRST_STORED_MS, FakeBroker, serving
from .conftest import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

WAIT_SECONDS = 150
Key = tuple[str, str, int, int]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serving(FakeBroker()) as started:
        started.fill("T", 4, 100)
        yield started


def options(broker: FakeBroker, **more: str) -> dict[str, str]:
    return {"subscribe": "T", "namesrv": broker.address, **more}


def table(spark: "SparkSession", broker: FakeBroker, **more: str) -> "DataFrame":
    return spark.read.format("rocketmq").options(**options(broker, **more)).load()


def keys(frame: "DataFrame") -> list[Key]:
    return sorted((row.topic, row.broker, row.queueId, row.offset) for row in frame.collect())


def all_keys(broker: FakeBroker, topic: str = "T") -> list[Key]:
    return sorted(
        (topic, queue.broker_name, queue.queue_id, offset)
        for queue, held in broker.queues.items()
        if queue.topic == topic
        for offset in held
    )


class Sink:
    """A sink that records each batch of foreachBatch, and fails when the test says so."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Key]] = {}
        self.break_at: int | None = None

    def __call__(self, frame: "DataFrame", batch_id: int) -> None:
        self.batches[batch_id] = keys(frame)
        if batch_id == self.break_at:
            raise RuntimeError("broken on purpose")

    @property
    def rows(self) -> list[Key]:
        return sorted(row for batch in self.batches.values() for row in batch)


def stream(
    spark: "SparkSession",
    broker: FakeBroker,
    sink: Sink,
    checkpoint: Path,
    *,
    live: bool = False,
    **more: str,
) -> "StreamingQuery":
    source = spark.readStream.format("rocketmq").options(**options(broker, **more)).load()
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(processingTime="0 seconds") if live else writer.trigger(availableNow=True)).start()


def finish(query: "StreamingQuery") -> None:
    assert query.awaitTermination(WAIT_SECONDS)


class TestTypes:
    def test_arrow_types_are_those_spark_expects(self, spark: "SparkSession"):
        """Spark strictly checks the types, order and nullability of the first batch."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        expected = to_arrow_schema(
            StructType.fromDDL(", ".join(f"{n} {k}" for n, k in COLUMNS.items())), timezone="UTC"
        )
        assert arrow_schema(tuple(COLUMNS)) == expected
        assert [name for name, _ in FIELDS] == list(COLUMNS)


class TestBatch:
    def test_every_message_is_read_once(self, spark: "SparkSession", broker: FakeBroker):
        assert keys(table(spark, broker)) == all_keys(broker)

    def test_every_column_has_its_value(self, spark: "SparkSession", broker: FakeBroker):
        from pyspark.sql import functions as f

        frame = table(spark, broker, includeHeaders="true").where("queueId = 2 and offset = 7")
        (row,) = frame.select(
            "*", f.unix_millis("timestamp").alias("stored"), f.unix_millis("bornTimestamp").alias("born")
        ).collect()
        assert (row.topic, row.broker, row.key, row.tag, row.reconsumeTimes) == ("T", "broker-a", "k", "t", 0)
        assert bytes(row.body) == b"2/7"
        assert (row.stored, row.born) == (1_700_000_000_008, 1_700_000_000_007)
        assert row.properties == {"TAGS": "t", "KEYS": "k"}
        assert row.msgId == "0000000000000000" + f"{7000:016X}"

    def test_only_selected_columns_are_read(self, spark: "SparkSession", broker: FakeBroker):
        reader: DataFrameReader = spark.read.format("rocketmq").options(**options(broker))
        frame = reader.schema("offset bigint, tag string").load()
        assert frame.count() == 400
        assert frame.where("offset = 3").first().asDict() == {"offset": 3, "tag": "t"}
        assert table(spark, broker, columns="tag, offset").where("offset = 3").first() == ("t", 3)

    def test_sql_reads_views_and_tables_say_that_spark_cannot(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        """Spark keeps a table's options, but passes none to a Python source that reads it."""
        given = f"USING rocketmq OPTIONS (subscribe 'T', namesrv '{broker.address}')"
        says = "CREATE TEMPORARY VIEW NAME USING rocketmq"
        spark.sql(f"CREATE TEMPORARY VIEW messages {given}")
        assert spark.sql("SELECT count(*) FROM messages").first() == (400,)
        with pytest.raises(Exception, match=says):
            spark.sql(f"CREATE TABLE kept {given}")
        spark.sql(f"CREATE TABLE kept (key STRING) {given}")
        try:
            with pytest.raises(Exception, match=says):
                spark.sql("SELECT * FROM kept").collect()
        finally:
            spark.sql("DROP TABLE kept")
            spark.catalog.dropTempView("messages")

    def test_filters_are_pushed_down_where_option_and_setting_allow_it(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        """A reader that offers pushdown makes Spark fail every query while its setting is off."""
        from pyspark.sql import functions as f

        where = (
            (f.col("queueId") == 2)
            & (f.col("offset") >= 10)
            & (f.col("timestamp") < f.timestamp_millis(f.lit(FIRST_STORED_MS + 20)))
        )
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        with pytest.raises(Exception, match=r"filterPushdown\.enabled"):
            table(spark, broker, pushdown="true").where(where).collect()
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        assert [key[2:] for key in keys(table(spark, broker, pushdown="true").where(where))] == [
            (2, offset) for offset in range(10, 20)
        ]
        assert broker.pulls == [(10, 10)]
        assert table(spark, broker).where(where).count() == 10

    def test_an_unreadable_topic_fails_a_query(self, spark: "SparkSession", broker: FakeBroker):
        with pytest.raises(Exception, match="knows no topic Nowhere; create it"):
            table(spark, broker, subscribe="Nowhere").count()

    def test_the_source_is_found_without_registration(self):
        """Spark imports modules named pyspark_…, so users need no call in their own sessions."""
        import pyspark_rocketmq
        from libramq.spark.source import RocketMQSource

        assert pyspark_rocketmq.DefaultSource is RocketMQSource
        assert RocketMQSource.name() == "rocketmq"


class TestStream:
    def test_available_now_in_batches_of_the_limit(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        sink = Sink()
        finish(stream(spark, broker, sink, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="100"))
        assert sink.rows == all_keys(broker)
        assert [len(batch) for _, batch in sorted(sink.batches.items())] == [100] * 4
        written = (tmp_path / "offsets" / "3").read_text().splitlines()[-1]
        assert set(StreamOffset.decode(json.loads(written)).positions.values()) == {100}

    def test_crash_in_a_batch_replays_exactly_that_batch(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        broken, after = Sink(), Sink()
        broken.break_at = 1
        query = stream(
            spark, broker, broken, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="100"
        )
        with pytest.raises(Exception, match="broken on purpose"):
            query.awaitTermination(WAIT_SECONDS)
        broker.fill("T", 4, 50)
        finish(stream(spark, broker, after, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="64"))
        assert after.batches[1] == broken.batches[1]
        assert sorted(broken.batches[0] + after.rows) == all_keys(broker)

    def test_crash_in_the_first_batch_of_a_stream_from_the_latest(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        """Its start is not in the checkpoint yet, so `latest` must be remembered elsewhere."""
        idle, broken, after = Sink(), Sink(), Sink()
        broken.break_at = 0
        query = stream(spark, broker, broken, tmp_path)
        with pytest.raises(Exception, match="broken on purpose"):
            query.awaitTermination(WAIT_SECONDS)
        before = all_keys(broker)
        broker.fill("T", 4, 25)
        finish(stream(spark, broker, after, tmp_path))
        assert after.rows == sorted(set(all_keys(broker)) - set(before))
        finish(stream(spark, broker, idle, tmp_path))
        assert idle.rows == []

    @pytest.mark.parametrize(("trigger", "runs"), [("once", 1), ("availableNow", 3)])
    def test_bounded_queries_end_although_queues_appear_and_the_next_resumes(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path, trigger: str, runs: int
    ):
        class Growing(Sink):
            def __call__(self, frame: "DataFrame", batch_id: int) -> None:
                super().__call__(frame, batch_id)
                broker.fill("T", 5 + batch_id, 50)

        def run(sink: Sink) -> None:
            given = options(broker, startingOffsets="earliest", maxOffsetsPerTrigger="150")
            source = spark.readStream.format("rocketmq").options(**given).load()
            writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
            finish(writer.trigger(**{trigger: True}).start())

        sink, rest = Growing(), Sink()
        before = all_keys(broker)
        run(sink)
        assert sink.rows == before
        for _ in range(runs - 1):  # A new queue enters with one batch and is read with the next.
            run(rest)
        assert runs == 1 or sorted(sink.rows + rest.rows) == all_keys(broker)

    def test_missing_queues_fail_a_query_unless_allowed(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        """The queues disappear between two runs."""
        sink, failed, after = Sink(), Sink(), Sink()
        finish(stream(spark, broker, sink, tmp_path, startingOffsets="earliest"))
        del broker.queues[MessageQueue("T", "broker-a", 3)]
        broker.fill("T", 3, 10)
        query = stream(spark, broker, failed, tmp_path)
        with pytest.raises(Exception, match=r"queue T:broker-a:3 is gone.*failOnDataLoss=false continues"):
            query.awaitTermination(WAIT_SECONDS)
        finish(stream(spark, broker, after, tmp_path, failOnDataLoss="false"))
        assert failed.rows == []
        assert sorted({*sink.rows, *after.rows} - set(sink.rows)) == after.rows
        assert set(all_keys(broker)) <= {*sink.rows, *after.rows}

    def test_lost_messages_are_in_sparks_log_with_time_level_and_query(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        """A batch is identified by its plan, a stream by its task."""
        broker.minimum[MessageQueue("T", "broker-a", 0)] = 50
        given = {"startingOffsets": '{"T:broker-a:0": 10}', "failOnDataLoss": "false"}
        assert table(spark, broker, **given).count() == 350
        query = stream(spark, broker, Sink(), tmp_path, **given)
        finish(query)
        time_level = r"(?m)^\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING RocketMQ: "
        wanted = (
            "query of subscribe=T: queue T@broker-a:0 no longer holds the messages from offset 10 to 50 ",
            f"query {query.id}, batch 0: messages 10 to 50 of queue T:broker-a:0 are lost; continuing after",
        )
        end_s = time.monotonic() + WAIT_SECONDS
        while missing := [line for line in wanted if not re.search(time_level + line, LOG.read_text())]:
            assert time.monotonic() < end_s, (missing, LOG.read_text())
            time.sleep(0.05)  # A Java thread passes on what workers print.

    def test_an_unreadable_topic_fails_a_stream(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        query = stream(spark, broker, Sink(), tmp_path, subscribe="Nowhere")
        with pytest.raises(Exception, match="knows no topic Nowhere; create it"):
            query.awaitTermination(WAIT_SECONDS)

    def test_a_live_stream_starts_at_the_latest(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        sink = Sink()
        query = stream(spark, broker, sink, tmp_path, live=True)
        try:
            query.processAllAvailable()
            before = all_keys(broker)
            for rows in (100, 200):
                broker.fill("T", 4, 25)
                # A trigger in progress may have fetched the ends before, and then reports nothing new.
                while len(sink.rows) < rows:
                    query.processAllAvailable()
            progress: Any = query.lastProgress
        finally:
            query.stop()
        assert sink.rows == sorted(set(all_keys(broker)) - set(before))
        assert progress is not None
