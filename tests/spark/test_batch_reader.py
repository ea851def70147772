"""Tests of the batch reader, called in the order in which Spark calls it.

The broker returns 32 messages a pull.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from libramq.errors import BrokerError, BrokersAway, LibraError
from libramq.message.queue import MessageQueue
from libramq.spark.reading import worker
from libramq.spark.reading.planner import QueuesGone
from libramq.spark.source import RocketMQSource

from ..client.fake_broker import FakeBroker, serving

SCHEMA = StructType(
    [
        StructField("queueId", IntegerType()),
        StructField("offset", LongType()),
        StructField("body", BinaryType()),
        StructField("tag", StringType()),
    ]
)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serving(FakeBroker()) as started:
        started.fill("T", 4, 100)
        yield started
        while worker._readers:  # Kept from task to task.
            worker._readers.popitem()[1].close()


def rows(broker: FakeBroker, **more: str) -> list[tuple[int, int, bytes, str | None]]:
    """Return the columns of SCHEMA, sorted."""
    given = {"namesrv": broker.address, **more}
    if not {"subscribe", "subscribePattern", "assign"} & {*given}:
        given["subscribe"] = "T"
    reader = RocketMQSource(given).reader(SCHEMA)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def places(broker: FakeBroker, **more: str) -> list[tuple[int, int]]:
    return [(queue_id, offset) for queue_id, offset, *_ in rows(broker, **more)]


def test_every_message_is_read_once(broker: FakeBroker):
    everything = [
        (queue, offset, b"%d/%d" % (queue, offset), "t") for queue in range(4) for offset in range(100)
    ]
    assert rows(broker) == everything


def test_small_replies_share_a_batch_wherever_they_begin(broker: FakeBroker):
    """Each batch costs Spark a conversion."""
    broker.fill("Old", 1, 20_100)
    broker.minimum[MessageQueue("Old", "broker-a", 0)] = 20_000
    reader = RocketMQSource({"namesrv": broker.address, "subscribe": "Old"}).reader(SCHEMA)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert [batch.num_rows for batch in batches] == [100]


@pytest.mark.parametrize("pulls", [0, 1, 5, 12])
def test_a_broker_that_restarts_loses_and_repeats_nothing(broker: FakeBroker, pulls: int):
    broker.hang_up_after = pulls
    assert places(broker) == [(queue, offset) for queue in range(4) for offset in range(100)]
    assert broker.hang_up_after is None


def test_a_query_reads_from_offset_to_offset(broker: FakeBroker):
    found = places(
        broker,
        startingOffsets='{"T:broker-a:0": 90}',
        endingOffsets='{"T:broker-a:0": 95, "T:broker-a:1": 2}',
    )
    in_0_and_1 = [place for place in found if place[0] < 2]
    assert in_0_and_1 == [*((0, offset) for offset in range(90, 95)), (1, 0), (1, 1)]


def test_deleted_messages_fail_the_query_unless_allowed(broker: FakeBroker):
    broker.minimum[MessageQueue("T", "broker-a", 0)] = 50
    start = '{"T:broker-a:0": 10}'
    with pytest.raises(QueuesGone, match="no longer holds the messages from offset 10 to 50"):
        rows(broker, startingOffsets=start)
    assert len(rows(broker, startingOffsets=start, failOnDataLoss="false")) == 350


def test_tags_are_filtered_by_the_broker_and_compared_exactly(broker: FakeBroker):
    broker.fill("Tagged", 2, 200, tags=[b"red", b"rose", b"blue", b"green"])
    found = rows(broker, subscribe="Tagged", tags="red || blue")
    assert sorted(tag or "" for *_, tag in found) == ["blue"] * 100 + ["red"] * 100
    assert ("TAG", "red || blue") in broker.subscriptions


def test_refusal_of_sql_is_passed_on_before_a_task_starts(broker: FakeBroker):
    broker.refuses_sql = True
    with pytest.raises(BrokerError, match="no filter by SQL92"):
        RocketMQSource({"namesrv": broker.address, "subscribe": "T", "sql": "colour = 'red'"}).reader(
            SCHEMA
        ).partitions()
    assert len(broker.pulls) == 1


def test_topics_by_pattern_and_assigned_queues_are_read(broker: FakeBroker):
    broker.fill("T2", 1, 7)
    assert len(rows(broker, subscribePattern="T.?")) == 407
    assert len(rows(broker, assign='{"T": {"broker-a": [1, 3]}}')) == 200


def test_the_second_name_server_is_used_when_the_first_is_away(broker: FakeBroker):
    assert len(rows(broker, namesrv=f"127.0.0.1:1;{broker.address}")) == 400


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "Nowhere"}, "knows no topic Nowhere; create it"),
        (
            {"namesrv": "127.0.0.1:1", "brokerTimeout": "0s"},
            "no name server answered: cannot connect to 127.0.0.1:1",
        ),
        ({"startingOffsets": '{"T": {"broker-a": {"0": 101}}}'}, "startingOffsets: .* ends at 100, 101 is"),
        ({"endingOffsets": '{"T": {"broker-a": {"9": 1}}}'}, "endingOffsets names T:broker-a:9"),
        ({"startingOffsets": '{"T": {'}, "startingOffsets=.*give earliest, latest, or JSON"),
        ({"endingOffsetsByTimestamp": "[7]"}, r"endingOffsetsByTimestamp='\[7\]': give JSON"),
        ({"startingTimestamp": "4000000000000"}, "startingTimestamp: .* no message stored at"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
    ],
)
def test_unreadable_queues_are_reported_before_a_task_starts(
    broker: FakeBroker, given: dict[str, str], says: str
):
    with pytest.raises(LibraError, match=says):
        rows(broker, **given)
    assert broker.pulls == []


@pytest.mark.parametrize(
    ("servers", "says"),
    [("away_for", "the broker with topic T is away: broker-a"), ("silent_for", "no name server answered: ")],
)
def test_a_batch_waits_for_servers_that_are_away(broker: FakeBroker, servers: str, says: str):
    """It ended at once, and recommended creating a topic that already existed."""
    setattr(broker, servers, 2)
    assert len(rows(broker, brokerTimeout="9s")) == 400
    setattr(broker, servers, 100)
    with pytest.raises(LibraError, match=says):
        rows(broker, brokerTimeout="1ms")


def test_a_name_server_without_brokers_is_not_one_without_the_topic(broker: FakeBroker):
    """The name server has just started, or it is an Apache one that has lost its only broker."""
    broker.queues.clear()
    with pytest.raises(BrokersAway, match="has no broker, so none with topic T"):
        rows(broker, brokerTimeout="1ms")
