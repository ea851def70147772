"""The planner remembers what Spark asks twice and asks brokers no more than it must."""

import logging
import pickle

import pytest

from libramq.errors import ConnectFailed, LibraError, RouteNotFound
from libramq.message.queue import MessageQueue
from libramq.spark.options import SourceOptions
from libramq.spark.planner import ASK_EVERY_MS, ROUTE_EVERY_MS, Planner
from libramq.spark.positions import Boundary, Range

LATEST = Boundary(default="latest", by_queue={})
A0, A1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
B0 = MessageQueue("T", "b", 0)


class Brokers:
    """Queues with a minimum and a maximum, that a test moves."""

    def __init__(self, bounds: dict[MessageQueue, tuple[int, int]]) -> None:
        self.bounds = bounds
        self.silent: set[str] = set()
        self.no_route = False
        self.questions = 0

    def queues(self, topic: str) -> list[MessageQueue]:
        if self.no_route:
            raise RouteNotFound(topic)
        return [queue for queue in self.bounds if queue.topic == topic]

    def max_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        self.questions += 1
        return {queue: self.bounds[queue][1] for queue in queues}

    def min_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self.bounds[queue][0] for queue in queues}

    def reachable_max_offsets(
        self, queues: list[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]:
        there = [queue for queue in queues if queue.broker_name not in self.silent]
        return self.max_offsets(there), [ConnectFailed(name) for name in sorted(self.silent)]


class Time:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers({A0: (0, 10), A1: (0, 20)})


def planner(brokers: Brokers, time: Time, **options: str) -> Planner:
    return Planner(SourceOptions.parse({"subscribe": "T", **options}), brokers, time)


def test_latest_is_the_same_however_often_spark_asks(brokers: Brokers, time: Time):
    """Spark asks again after the offset log is written; an answer that moved would lose what lies between."""
    plan = planner(brokers, time)
    first = plan.initial(LATEST)
    brokers.bounds[A0] = (0, 99)
    assert plan.initial(LATEST) == first == {A0: 10, A1: 20}


def test_target_of_available_now_does_not_move(brokers: Brokers, time: Time):
    plan = planner(brokers, time, startingOffsets="earliest")
    plan.fix_target()
    brokers.bounds[A0] = (0, 99)
    end = plan.next_end(plan.initial(LATEST), None)
    assert end == {A0: 10, A1: 20}
    time.now_ms += ASK_EVERY_MS
    assert plan.next_end(end, None) == end


def test_idle_polls_ask_the_brokers_once_in_a_while(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    for time.now_ms in range(0, 1000, 10):
        plan.next_end({A0: 10, A1: 20}, None)
    assert brokers.questions == 1000 // ASK_EVERY_MS


def test_new_queue_is_seen_and_read_from_its_beginning(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    start = plan.next_end({A0: 10, A1: 20}, None)
    brokers.bounds[B0] = (5, 8)
    time.now_ms += ROUTE_EVERY_MS
    entered = plan.next_end(start, None)
    assert entered == {**start, B0: 5}
    assert plan.ranges(entered, plan.next_end(entered, None)) == [Range(B0, 5, 8)]


def test_silent_broker_stands_still_and_the_others_go_on(
    brokers: Brokers, time: Time, caplog: pytest.LogCaptureFixture
):
    brokers.bounds[B0] = (0, 5)
    plan = planner(brokers, time)
    start = {A0: 0, A1: 0, B0: 5}
    brokers.silent = {"b"}
    with caplog.at_level(logging.WARNING):
        assert plan.next_end(start, None) == {A0: 10, A1: 20, B0: 5}
        time.now_ms += ASK_EVERY_MS
        plan.next_end(start, None)
    assert caplog.text.count("stand still") == 1
    brokers.silent = set()
    brokers.bounds[B0] = (0, 9)
    time.now_ms += ASK_EVERY_MS
    assert plan.next_end(start, None)[B0] == 9


def test_name_server_that_is_away_does_not_stop_a_running_query(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    plan.next_end({A0: 0, A1: 0}, None)
    brokers.no_route = True
    time.now_ms += ROUTE_EVERY_MS
    assert plan.next_end({A0: 0, A1: 0}, None) == {A0: 10, A1: 20}


def test_missing_topic_stops_a_new_query(brokers: Brokers, time: Time):
    brokers.no_route = True
    with pytest.raises(RouteNotFound):
        planner(brokers, time).initial(LATEST)


def test_start_behind_its_end_reads_nothing_and_says_so(
    brokers: Brokers, time: Time, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        assert planner(brokers, time).ranges({A0: 3708}, {A0: 3685}) == []
    assert "T:a:0 starts at 3708" in caplog.text


def test_batch_reads_from_boundary_to_boundary(brokers: Brokers, time: Time):
    plan = planner(brokers, time, endingOffsets='{"T:a:1": 7}')
    assert plan.batch_ranges() == [Range(A0, 0, 10), Range(A1, 0, 7)]
    plan = planner(brokers, time, startingOffsets='{"T:a:0": 4}', endingOffsets="latest")
    assert plan.batch_ranges() == [Range(A0, 4, 10), Range(A1, 0, 20)]


def test_stream_reader_travels_without_its_sockets():
    from libramq.spark.source import QueuesStreamReader

    reader = QueuesStreamReader(SourceOptions.parse({"subscribe": "T"}), ("offset",))
    assert reader.planner is reader.planner
    assert pickle.loads(pickle.dumps(reader))._planner is None
