"""Tests of `format("rocketmq")` in a real Spark session, with a broker that returns 32 messages a pull."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from libramq.columns.records import FIELDS, arrow_schema
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import StreamOffset
from libramq.spark.schema import COLUMNS, ddl
from libramq.spark.source_options import SourceOptions

from ..client.fake_broker import FIRST_STORED_MS, FakeBroker, serving

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
        """Spark checks types, order and nullability of the first batch strictly."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        expected = to_arrow_schema(
            StructType.fromDDL(", ".join(f"{n} {k}" for n, k in COLUMNS.items())), timezone="UTC"
        )
        assert arrow_schema(tuple(COLUMNS)) == expected
        assert [name for name, _ in FIELDS] == list(COLUMNS)

    def test_unselected_columns_are_not_in_the_schema(self):
        assert "`body`" in ddl(SourceOptions.parse({"subscribe": "T"}))
        assert "properties" not in ddl(SourceOptions.parse({"subscribe": "T"}))
        assert "body" not in ddl(SourceOptions.parse({"subscribe": "T", "includeBody": "false"}))
        assert "properties" in ddl(SourceOptions.parse({"subscribe": "T", "includeHeaders": "true"}))


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

    def test_a_query_reads_from_offset_to_offset(self, spark: "SparkSession", broker: FakeBroker):
        frame = table(
            spark,
            broker,
            startingOffsets='{"T:broker-a:0": 90}',
            endingOffsets='{"T:broker-a:0": 95, "T:broker-a:1": 2}',
        )
        in_0_and_1 = [key for key in keys(frame) if key[2] < 2]
        assert [key[2:] for key in in_0_and_1] == [*((0, offset) for offset in range(90, 95)), (1, 0), (1, 1)]

    def test_deleted_messages_fail_the_query_unless_allowed(self, spark: "SparkSession", broker: FakeBroker):
        broker.minimum[MessageQueue("T", "broker-a", 0)] = 50
        start = '{"T:broker-a:0": 10}'
        with pytest.raises(Exception, match="no longer holds the messages from offset 10 to 50"):
            table(spark, broker, startingOffsets=start).count()
        assert table(spark, broker, startingOffsets=start, failOnDataLoss="false").count() == 350

    def test_tags_are_filtered_by_the_broker_and_compared_exactly(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        broker.fill("Tagged", 2, 200, tags=[b"red", b"rose", b"blue", b"green"])
        frame = table(spark, broker, subscribe="Tagged", tags="red || blue")
        assert {row.tag: row["count"] for row in frame.groupBy("tag").count().collect()} == {
            "red": 100,
            "blue": 100,
        }
        assert ("TAG", "red || blue") in broker.subscriptions

    def test_refusal_of_sql_is_passed_on_before_a_task_starts(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        broker.refuses_sql = True
        with pytest.raises(Exception, match="no filter by SQL92"):
            table(spark, broker, sql="colour = 'red'").count()
        assert len(broker.pulls) == 1

    def test_topics_by_pattern_and_assigned_queues_are_read(self, spark: "SparkSession", broker: FakeBroker):
        broker.fill("T2", 1, 7)
        given = options(broker)
        del given["subscribe"]
        read = spark.read.format("rocketmq").options(**given)
        assert read.option("subscribePattern", "T.?").load().count() == 407
        read = spark.read.format("rocketmq").options(**given)
        assert read.option("assign", '{"T": {"broker-a": [1, 3]}}').load().count() == 200

    def test_filters_are_pushed_down_where_option_and_setting_allow_it(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        """A reader that offers it makes Spark fail every query while its setting is off."""
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

    def test_an_invalid_option_is_named(self, spark: "SparkSession", broker: FakeBroker):
        with pytest.raises(Exception, match="did you mean startingOffsets"):
            table(spark, broker, startingOffset="earliest").count()

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"subscribe": "Nowhere"}, "knows no topic Nowhere; create it"),
            ({"namesrv": "127.0.0.1:1"}, "no name server answered: cannot connect to 127.0.0.1:1"),
            (
                {"startingOffsets": '{"T": {"broker-a": {"0": 101}}}'},
                "startingOffsets: .* ends at 100, 101 is",
            ),
            ({"endingOffsets": '{"T": {"broker-a": {"9": 1}}}'}, "endingOffsets names T:broker-a:9"),
            ({"startingOffsets": '{"T": {'}, "startingOffsets=.*give earliest, latest, or JSON"),
            ({"endingOffsetsByTimestamp": "[7]"}, r"endingOffsetsByTimestamp='\[7\]': give JSON"),
            ({"startingTimestamp": "4000000000000"}, "startingTimestamp: .* no message stored at"),
        ],
    )
    def test_unreadable_topics_are_reported_before_a_task_starts(
        self, spark: "SparkSession", broker: FakeBroker, given: dict[str, str], says: str
    ):
        with pytest.raises(Exception, match=says):
            table(spark, broker, **given).count()
        assert broker.pulls == []

    def test_the_second_name_server_is_used_when_the_first_is_away(
        self, spark: "SparkSession", broker: FakeBroker
    ):
        frame = table(spark, broker, namesrv=f"127.0.0.1:1;{broker.address}")
        assert keys(frame) == all_keys(broker)

    def test_the_source_is_found_without_registration(self, spark: "SparkSession"):
        """Spark imports modules named pyspark_…, so users need no call in their own sessions."""
        import pyspark_rocketmq
        from libramq.spark.reading.source import RocketMQSource

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

    def test_a_second_run_resumes_where_the_first_ended(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        first, second, third = Sink(), Sink(), Sink()
        finish(stream(spark, broker, first, tmp_path, startingOffsets="earliest"))
        broker.fill("T", 4, 10)
        broker.fill("T", 6, 5)  # Two more queues, and five more messages in all.
        finish(stream(spark, broker, second, tmp_path, startingOffsets="earliest"))
        assert sorted(first.rows + second.rows) == all_keys(broker)
        finish(stream(spark, broker, third, tmp_path, startingOffsets="earliest"))
        assert third.rows == []

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

    def test_trigger_once_reads_everything_and_ends(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        sink = Sink()
        source = spark.readStream.format("rocketmq").options(
            **options(broker, startingOffsets="earliest", maxOffsetsPerTrigger="10")
        )
        writer = source.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        finish(writer.trigger(once=True).start())
        assert sink.rows == all_keys(broker)

    @pytest.mark.parametrize("trigger", ["once", "availableNow"])
    def test_bounded_queries_end_although_queues_appear(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path, trigger: str
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
        for _ in range(2):  # A queue that is new enters with one batch and is read with the next.
            run(rest)
        assert sorted(sink.rows + rest.rows) == all_keys(broker)

    @pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
    def test_missing_queues_fail_a_query_unless_allowed(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path, trigger: dict[str, Any]
    ):
        """They disappear between two runs."""
        sink, failed, after = Sink(), Sink(), Sink()
        finish(stream(spark, broker, sink, tmp_path, startingOffsets="earliest"))
        del broker.queues[MessageQueue("T", "broker-a", 3)]
        broker.fill("T", 3, 10)

        def start(sink: Sink, **more: str) -> "StreamingQuery":
            source = spark.readStream.format("rocketmq").options(**options(broker, **more)).load()
            writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
            return writer.trigger(**trigger).start()

        with pytest.raises(Exception, match=r"queue T:broker-a:3 is gone.*failOnDataLoss=false continues"):
            start(failed).awaitTermination(WAIT_SECONDS)
        query = start(after, failOnDataLoss="false")
        try:
            while len(after.rows) < 30 and query.isActive:
                query.processAllAvailable()
        finally:
            query.stop()
        assert failed.rows == []
        assert sorted({*sink.rows, *after.rows} - set(sink.rows)) == after.rows
        assert set(all_keys(broker)) <= {*sink.rows, *after.rows}

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"subscribe": "Nowhere"}, "knows no topic Nowhere; create it"),
            ({"namesrv": "127.0.0.1:1"}, "no name server answered: cannot connect to 127.0.0.1:1"),
            ({"startingOffsets": '{"T": {'}, "startingOffsets=.*give earliest, latest, or JSON"),
            ({"startingOffsets": '{"T:broker-a:0": 101}'}, "startingOffsets: .* ends at 100, 101 is"),
            ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
            ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ],
    )
    def test_unreadable_topics_fail_a_stream_before_a_task_starts(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path, given: dict[str, str], says: str
    ):
        sink = Sink()
        with pytest.raises(Exception, match=says):
            stream(spark, broker, sink, tmp_path, **given).awaitTermination(WAIT_SECONDS)
        assert sink.batches == {}
        assert broker.pulls == []

    def test_broker_that_restarts_loses_and_repeats_nothing(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        sink = Sink()
        broker.hang_up_after = 5
        finish(stream(spark, broker, sink, tmp_path, startingOffsets="earliest"))
        assert sink.rows == all_keys(broker)

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
                # A trigger under way may have fetched the ends before, and then reports nothing new.
                while len(sink.rows) < rows:
                    query.processAllAvailable()
            progress: Any = query.lastProgress
        finally:
            query.stop()
        assert sink.rows == sorted(set(all_keys(broker)) - set(before))
        assert progress is not None

    def test_checkpoint_holds_positions_by_queue(
        self, spark: "SparkSession", broker: FakeBroker, tmp_path: Path
    ):
        import json

        finish(stream(spark, broker, Sink(), tmp_path, startingOffsets="earliest"))
        written = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
        assert set(StreamOffset.decode(json.loads(written)).positions.values()) == {100}
