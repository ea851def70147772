"""Tests of the sink: tables and streams become messages of `libra up`, each row at least once and with its
own id.
"""

import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from libramq.errors import ConfigError, InvalidMessage
from libramq.spark.writing import sending
from libramq.spark.writing.sending import messages_of
from libramq.spark.writing.sink import unique_ids
from libramq.spark.writing.sink_options import KNOWN, SinkOptions
from libramq.sync import Admin
from libramq.testing import Broker

from ..client.fake_broker import FakeBroker, serving
from ..interop.libra import LibraUp
from .conftest import QUEUES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_SECONDS = 150


class TestOptions:
    def test_every_option_is_explained(self):
        import libramq.spark.writing.sink_options as module

        for name in set(KNOWN) - {"path", "checkpointLocation"}:
            assert name in (module.__doc__ or "")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"topics": "T"}, "did you mean topic"),
            ({"topic": "a b"}, "the topic 'a b'"),
            ({"queueBy": "hash"}, "queueBy='hash': give any or key"),
            ({"delayLevel": "19"}, "delayLevel='19': give a whole number from 0 to 18"),
            ({"path": "/x"}, "has no path"),
        ],
    )
    def test_invalid_options_are_named(self, given: dict[str, str], says: str):
        with pytest.raises(ConfigError, match=says):
            SinkOptions.parse(given)

    @pytest.mark.parametrize(
        ("given", "ddl", "says"),
        [
            ({}, "body string", "no topic"),
            ({"topic": "T"}, "value string", r"no column value string.*body binary or string"),
            ({"topic": "T"}, "body int", "no column body int"),
            ({"topic": "T"}, "key string", "needs a column body"),
            ({"topic": "T", "queueBy": "key"}, "body string", "queueBy=key needs a column key"),
        ],
    )
    def test_tables_without_the_needed_columns_are_refused(self, given: dict[str, str], ddl: str, says: str):
        from pyspark.sql.types import StructField, StructType, _parse_datatype_json_value

        name, kind = ddl.split()
        kind = {"int": "integer"}.get(kind, kind)
        schema = StructType([StructField(name, _parse_datatype_json_value(kind))])
        with pytest.raises(ConfigError, match=says):
            SinkOptions.parse(given).check_columns(schema)


class TestUniqueIds:
    def test_equal_rows_have_equal_ids(self):
        assert list(islice(unique_ids("q", 7, 3), 5)) == list(islice(unique_ids("q", 7, 3), 5))

    def test_different_rows_have_different_ids(self):
        places = [("q", 7, 3), ("r", 7, 3), ("q", 8, 3), ("q", 7, 4)]
        ids = [one for place in places for one in islice(unique_ids(*place), 5)]
        assert len(set(ids)) == 20
        assert {len(one) for one in ids} == {32}


class TestMessages:
    def test_every_column_reaches_the_message(self):
        batch = pa.RecordBatch.from_pylist(
            [
                {
                    "body": "x",
                    "key": "k1 k2",
                    "tag": "t",
                    "properties": [("a", "1"), ("b", None)],
                    "uniqueId": None,
                    "delayLevel": 3,
                },
                {
                    "body": "y",
                    "key": None,
                    "tag": "",
                    "properties": None,
                    "uniqueId": "mine",
                    "delayLevel": None,
                },
            ],
            schema=pa.schema(
                [
                    ("body", pa.string()),
                    ("key", pa.string()),
                    ("tag", pa.string()),
                    ("properties", pa.map_(pa.string(), pa.string())),
                    ("uniqueId", pa.string()),
                    ("delayLevel", pa.int32()),
                ]
            ),
        )
        options = SinkOptions.parse({"topic": "T", "queueBy": "key"})
        (one, first_id, first_by), (two, second_id, second_by) = messages_of(options, batch, iter("abc"))
        assert (one.topic, one.body, one.keys, one.tags) == ("T", b"x", "k1 k2", "t")
        assert (one.properties, one.delay_level, first_id) == ({"a": "1"}, 3, "a")
        assert (two.body, two.keys, two.tags, two.properties, two.delay_level) == (b"y", (), None, {}, 0)
        assert second_id == "mine"
        assert first_by is not None
        assert second_by is None

    @pytest.mark.parametrize(
        ("row", "says"), [({"body": None}, "without body"), ({"body": b"x"}, "without topic")]
    )
    def test_rows_that_cannot_become_messages_are_refused(self, row: dict[str, object], says: str):
        schema = pa.schema([("body", pa.binary()), ("topic", pa.string())])
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
        with pytest.raises(InvalidMessage, match=says):
            list(messages_of(SinkOptions.parse({}), batch, iter("a")))


class TestTasks:
    def test_a_worker_keeps_few_producers(self):
        """Each query has its own producer, and a worker outlives many queries."""
        batch = pa.RecordBatch.from_pylist([{"body": b"x"}])
        with Broker() as broker:
            for number in range(sending.SENDERS_MAX + 1):
                given = {"namesrv": broker.namesrv, "topic": "T", "groupId": f"g{number}"}
                assert sending.write_batches(SinkOptions.parse(given), [batch], iter("a")) == 1
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("libramq-spark-sink") == sending.SENDERS_MAX
            while sending._senders:  # Kept across tasks.
                sending._senders.popitem()[1].close()

    @pytest.mark.parametrize("servers", ["away_for", "silent_for"])
    def test_a_task_waits_for_servers_that_are_away(self, servers: str, caplog: pytest.LogCaptureFixture):
        with serving(FakeBroker()) as broker:
            broker.fill("T", 1, 1)
            setattr(broker, servers, 2)
            sending.await_servers(SinkOptions.parse({"namesrv": broker.address, "topic": "T"}))
            assert getattr(broker, servers) == 0
        assert caplog.text.count("; trying again for up to 30 s") == 1

    def test_a_topic_that_is_to_be_made_is_not_waited_for(self, caplog: pytest.LogCaptureFixture):
        with serving(FakeBroker()) as broker:
            broker.registered = {"broker-a"}
            sending.await_servers(SinkOptions.parse({"namesrv": broker.address, "topic": "New"}))
        assert caplog.text == ""

    def test_the_log_names_the_rows_left_by_a_failed_batch(self, caplog: pytest.LogCaptureFixture):
        from libramq.spark.writing.sink import MessagesStreamWriter, MessagesWriter, Sent

        options, sent = SinkOptions.parse({"topic": "T"}), [Sent(3), None, Sent(4)]
        MessagesWriter(options).abort(sent)
        MessagesStreamWriter(options).abort(sent[1:], 0)
        assert [record.getMessage().split(" were")[0] for record in caplog.records] == [
            "a batch failed after at least 7 messages",
            "a batch failed after at least 4 messages",
        ]


def stored(spark: "SparkSession", up: LibraUp, topic: str, **more: str) -> "DataFrame":
    given = {"namesrv": up.namesrv, "subscribe": topic, **more}
    return spark.read.format("rocketmq").options(**given).load()


@pytest.mark.spark
class TestBatch:
    def test_written_rows_are_read_back(self, spark: "SparkSession", up: LibraUp, topic: str):
        from pyspark.sql import functions as f

        rows = spark.range(1000).select(
            f.concat(f.lit("body "), "id").alias("body"),
            f.concat(f.lit("key-"), f.col("id") % 50).alias("key"),
            f.when(f.col("id") % 2 == 0, "even").alias("tag"),
            f.create_map(f.lit("number"), f.col("id").cast("string")).alias("properties"),
        )
        given = {"namesrv": up.namesrv, "topic": topic, "queueBy": "key"}
        rows.write.format("rocketmq").options(**given).mode("append").save()
        table = stored(spark, up, topic, includeHeaders="true").collect()
        assert sorted(bytes(row.body) for row in table) == sorted(b"body %d" % n for n in range(1000))
        for row in table:
            number = int(bytes(row.body).split()[1])
            assert (row.key, row.tag) == (f"key-{number % 50}", None if number % 2 else "even")
            assert row.properties["number"] == str(number)
            assert row.msgId == row.properties["UNIQ_KEY"]
        assert len({row.msgId for row in table}) == 1000
        assert len({(row.key, row.queueId) for row in table}) == 50
        assert len({row.queueId for row in table}) == QUEUES

    def test_a_column_names_the_topic(self, spark: "SparkSession", up: LibraUp, topic: str):
        with Admin(namesrv=up.namesrv) as admin:
            admin.create_topic("Other", queues=1)
        rows = spark.createDataFrame([(topic, b"1"), ("Other", b"2")], "topic string, body binary")
        rows.write.format("rocketmq").option("namesrv", up.namesrv).mode("append").save()
        assert [bytes(row.body) for row in stored(spark, up, topic).collect()] == [b"1"]
        assert [bytes(row.body) for row in stored(spark, up, "Other").collect()] == [b"2"]

    def test_an_invalid_table_is_refused_before_a_task_starts(self, spark: "SparkSession", up: LibraUp):
        writer = spark.range(3).write.format("rocketmq").option("topic", "T").mode("append")
        with pytest.raises(Exception, match="a message has no column id bigint"):
            writer.save()
        with pytest.raises(Exception, match="messages can only be added"):
            writer.mode("overwrite").save()


@pytest.mark.spark
def test_a_repeated_batch_has_the_same_ids(spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path):
    """After a kill between the writes and Spark's commit, the rows are resent with the same ids."""
    from libramq.spark import deduplicated

    source = f"{topic}-source"
    with Admin(namesrv=up.namesrv) as admin:
        admin.create_topic(source, queues=QUEUES)
    rows = spark.range(500).selectExpr("cast(id as string) as body")
    rows.write.format("rocketmq").options(namesrv=up.namesrv, topic=source).mode("append").save()

    def run() -> None:
        given = {"namesrv": up.namesrv, "subscribe": source, "startingOffsets": "earliest"}
        messages = spark.readStream.format("rocketmq").options(**given).load().select("body")
        writer = messages.writeStream.format("rocketmq").options(namesrv=up.namesrv, topic=topic)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_SECONDS)

    run()
    first = {row.msgId: bytes(row.body) for row in stored(spark, up, topic).collect()}
    assert sorted(map(int, first.values())) == list(range(500))
    for kept in (tmp_path / "commits").iterdir():
        kept.unlink()
    run()
    table = stored(spark, up, topic)
    assert table.count() == 1000
    once = deduplicated(table).collect()
    assert {row.msgId: bytes(row.body) for row in once} == first
    assert len(once) == 500

    def read_once(frame: "DataFrame", _: int) -> None:
        seen.extend(row.msgId for row in frame.collect())

    seen: list[str] = []
    given = {"namesrv": up.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    again = deduplicated(spark.readStream.format("rocketmq").options(**given).load(), "1 hour")
    query = again.writeStream.foreachBatch(read_once).trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path / "once")).start().awaitTermination(WAIT_SECONDS)
    assert sorted(seen) == sorted(first)
