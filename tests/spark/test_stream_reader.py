"""Tests of the stream reader, called in the order in which Spark calls it. Most cover contract traps."""

import contextlib
import json
import pickle
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

from libramq.errors import BrokerError, ConfigError, LibraError
from libramq.message.queue import MessageQueue
from libramq.spark.reading.source_options import SourceOptions
from libramq.spark.source import QueuesStreamReader, RocketMQSource, TaskInput

from ..client.fake_broker import FakeBroker, serving
from ..fakes import ManualClock

EVERYTHING = ReadAllAvailable()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serving(FakeBroker()) as started:
        started.fill("T", 2, 100)
        yield started


Reader = Callable[..., QueuesStreamReader]


@pytest.fixture
def reader(broker: FakeBroker) -> Iterator[Reader]:
    made: list[QueuesStreamReader] = []

    def make(**options: str) -> QueuesStreamReader:
        given = {"subscribe": "T", "namesrv": broker.address, **options}
        made.append(QueuesStreamReader(SourceOptions.parse(given), ("offset",)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def read(
    of: QueuesStreamReader, start: dict[str, object], end: dict[str, object]
) -> list[tuple[int, int, int]]:
    ranges = []
    for partition in of.partitions(start, end):
        assert isinstance(partition, TaskInput)
        ranges += [(part.queue.queue_id, part.start, part.end) for part in partition.parts]
    return sorted(ranges)


def test_restart_before_the_first_batch_is_done_reads_that_batch(broker: FakeBroker, reader: Reader):
    """The start of a first batch is not in the checkpoint, and `latest` moves."""
    first = reader()
    start = first.initialOffset()
    end = first.latestOffset(start, EVERYTHING)
    assert read(first, start, end) == []
    broker.fill("T", 2, 10)
    again = reader()
    assert again.initialOffset() != start
    assert read(again, again.initialOffset(), end) == []
    # The next batch begins where the first one ended, at the former latest.
    following = again.latestOffset(end, EVERYTHING)
    assert read(again, end, following) == [(0, 100, 110), (1, 100, 110)]


def test_first_batch_with_rows_survives_a_restart(broker: FakeBroker, reader: Reader):
    first = reader()
    start = first.initialOffset()
    broker.fill("T", 2, 10)
    first.planner._maximums_requested_ms = None
    end = json.loads(json.dumps(first.latestOffset(start, EVERYTHING)))
    assert read(first, start, end) == [(0, 100, 110), (1, 100, 110)]
    broker.fill("T", 2, 10)
    again = reader()
    assert read(again, again.initialOffset(), end) == [(0, 100, 110), (1, 100, 110)]


def test_an_unchanged_position_has_the_same_text(broker: FakeBroker, reader: Reader):
    """Spark compares text: any difference is a new batch, and empty batches would spin."""
    stream = reader(startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    for _ in range(3):
        after = stream.latestOffset(end, EVERYTHING)
        assert json.dumps(after) == json.dumps(end)
    broker.fill("T", 1, 1)
    stream.planner._maximums_requested_ms = None
    later = stream.latestOffset(end, EVERYTHING)
    assert list(later) == ["T:broker-a:0", "T:broker-a:1"]
    assert json.dumps(stream.latestOffset(later, EVERYTHING)) == json.dumps(later)


def test_limits_are_obeyed(broker: FakeBroker, reader: Reader):
    """With Trigger.Once Spark passes no limit in spite of the option."""
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="50")
    assert stream.getDefaultReadLimit() == ReadMaxRows(50)
    start = stream.initialOffset()
    assert read(stream, start, stream.latestOffset(start, ReadMaxRows(50))) == [(0, 0, 25), (1, 0, 25)]
    assert read(stream, start, stream.latestOffset(start, EVERYTHING)) == [(0, 0, 100), (1, 0, 100)]
    assert reader(minOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    assert reader().getDefaultReadLimit() == EVERYTHING


def test_last_batch_is_in_the_lag_mirror_although_spark_never_commits_it(broker: FakeBroker, reader: Reader):
    stream = reader(startingOffsets="earliest", commitGroupId="night")
    start = stream.initialOffset()
    end = stream.latestOffset(start, EVERYTHING)
    stream.planner._source.max_offsets([])
    assert set(broker.committed["night"].values()) == {0}
    stream.latestOffset(end, EVERYTHING)  # Requested when the previous batch is done.
    stream.planner._source.max_offsets(list(broker.queues))  # Answered after the one-way commits.
    assert broker.committed["night"] == {
        MessageQueue("T", "broker-a", 0): 100,
        MessageQueue("T", "broker-a", 1): 100,
    }


def test_lag_mirror_is_not_for_a_group_that_has_members(broker: FakeBroker, reader: Reader):
    broker.members["orders"] = ["somebody"]
    stream = reader(commitGroupId="orders")
    with pytest.raises(ConfigError, match="commitGroupId: the group orders has 1 member,"):
        stream.latestOffset(stream.initialOffset(), EVERYTHING)


def test_refusal_of_sql_comes_before_a_task_starts(broker: FakeBroker, reader: Reader):
    broker.refuses_sql = True
    with pytest.raises(BrokerError, match="no filter by SQL92"):
        reader(sql="colour = 'red'").initialOffset()


def test_committed_offsets_are_never_read(broker: FakeBroker, reader: Reader):
    broker.committed["night"] = dict.fromkeys(broker.queues, 7)
    stream = reader(startingOffsets="earliest", commitGroupId="night")
    assert set(stream.initialOffset().values()) == {0}


def test_idle_polls_do_not_reach_the_broker_seventy_times_a_second(broker: FakeBroker, reader: Reader):
    """Spark polls every 10 ms; the planner answers from its cache for 20 ms."""
    clock = ManualClock()
    stream = reader(startingOffsets="earliest")
    stream.planner._monotonic_ms = clock.monotonic_ms
    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    broker.requests.clear()
    for _ in range(100):
        clock.advance(10)
        stream.latestOffset(end, EVERYTHING)
        stream.reportLatestOffset()
    assert len(broker.requests) <= 50 * len(broker.queues)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "Nowhere"}, "knows no topic Nowhere; create it"),
        (
            {"namesrv": "127.0.0.1:1", "brokerTimeout": "0s"},
            "no name server answered: cannot connect to 127.0.0.1:1",
        ),
        ({"startingOffsets": '{"T": {'}, "startingOffsets=.*give earliest, latest, or JSON"),
        ({"startingOffsets": '{"T:broker-a:0": 101}'}, "startingOffsets: .* ends at 100, 101 is"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
    ],
)
def test_unreadable_queues_are_reported_before_a_task_starts(
    broker: FakeBroker, given: dict[str, str], says: str
):
    source = RocketMQSource({"subscribe": "T", "namesrv": broker.address, **given})

    def start() -> None:
        stream = source.streamReader(StructType([StructField("offset", LongType())]))
        try:
            stream.initialOffset()
        finally:
            stream.stop()

    with pytest.raises(LibraError, match=says):
        start()
    assert broker.pulls == []


def test_the_reader_is_pickled_without_its_sockets(reader: Reader):
    stream = reader(commitGroupId="night")
    start = stream.initialOffset()
    with contextlib.closing(pickle.loads(pickle.dumps(stream)).planner._source) as queues:
        assert queues is not stream.planner._source
    assert stream.initialOffset() == start


def test_a_batch_has_about_as_many_bytes_as_the_limit(broker: FakeBroker, reader: Reader):
    stream = reader(startingOffsets="earliest", maxBytesPerTrigger="5k")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(5 << 10)
    record = len(broker.queues[MessageQueue("T", "broker-a", 0)][50])
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxBytes(5 << 10))
    (first, second) = (count for _, _, count in read(stream, start, end))
    assert first == second
    assert 5 << 9 <= (first + second) * record <= 5 << 11
    assert read(stream, start, stream.latestOffset(start, EVERYTHING)) == [(0, 0, 100), (1, 0, 100)]


@pytest.mark.parametrize(
    ("servers", "says"),
    [("away_for", "the broker with topic T is away: broker-a"), ("silent_for", "no name server answered: ")],
)
def test_a_query_that_starts_waits_for_servers_that_are_away(
    broker: FakeBroker, reader: Reader, caplog: pytest.LogCaptureFixture, servers: str, says: str
):
    setattr(broker, servers, 2)
    assert set(reader(brokerTimeout="9s").initialOffset().values()) == {100}
    assert [says in record.getMessage() for record in caplog.records] == [True]
    assert caplog.text.count("; trying again for up to 9 s") == 1
