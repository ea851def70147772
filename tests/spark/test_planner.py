"""Tests of the planner, which caches repeated requests from Spark and rarely queries brokers."""

import logging
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import pytest

from libramq.errors import ConfigError, ConnectFailed, LibraError, NameServerUnavailable, RouteNotFound
from libramq.message.queue import MessageQueue
from libramq.spark.reading.planner import (
    ASK_EVERY_MS,
    ROUTE_EVERY_MS,
    Planner,
    QueuesGone,
    batch_ranges,
)
from libramq.spark.reading.positions import Limits, Range
from libramq.spark.reading.source_options import SourceOptions

T = TypeVar("T")
A0, A1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
B0 = MessageQueue("T", "b", 0)


class Brokers:
    """Queues whose minimum and maximum a test can move. Message n was stored at n ms."""

    def __init__(self, bounds: dict[MessageQueue, tuple[int, int]]) -> None:
        self.bounds = bounds
        self.silent: set[str] = set()
        self.slaves: set[str] = set()
        self.registered = {queue.broker_name for queue in bounds}
        self.no_route = self.is_name_server_away = False
        self.questions = 0
        #: Unavailable brokers with their topics; and the queues that return if the planner waits.
        self.absent: dict[str, list[str]] = {}
        self.returning: dict[MessageQueue, tuple[int, int]] | None = None
        self.since: dict[tuple[str, str], int] = {}
        self.size_of: Callable[[MessageQueue, int], float] = lambda queue, at: 100
        self.mute: set[MessageQueue] = set()
        self.samples = 0

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.bounds})

    def queues(self, topic: str) -> list[MessageQueue]:
        if self.is_name_server_away:
            raise NameServerUnavailable(topic)
        found = [queue for queue in self.bounds if queue.topic == topic]
        if self.no_route or not found:
            raise RouteNotFound(topic)
        return found

    def broker_names(self) -> set[str]:
        return self.registered

    def patiently(self, look_up: Callable[[], T]) -> T:
        return look_up()

    def absent_brokers(
        self, topics: Collection[str], required: Collection[str] = (), *, waits: bool = False
    ) -> dict[str, list[str]]:
        if waits and self.returning is not None:
            self.bounds |= self.returning
            self.absent.clear()
        away = {name: sorted({*had} & {*topics}) for name, had in self.absent.items()}
        return away | {name: away.get(name, []) for name in required if name not in self.registered}

    def topics_since(self) -> dict[tuple[str, str], int]:
        return self.since

    def is_slave(self, broker_name: str) -> bool:
        return broker_name in self.slaves

    def max_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        self.questions += 1
        return {queue: self.bounds[queue][1] for queue in queues}

    def min_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self.bounds[queue][0] for queue in queues}

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {queue: min(time_ms, self.bounds[queue][1]) for queue, time_ms in times_ms.items()}

    def sizes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
        self.samples += 1
        return {queue: self.size_of(queue, at) for queue, at in positions.items() if queue not in self.mute}

    def reachable_max_offsets(
        self, queues: list[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]:
        there = [queue for queue in queues if queue.broker_name not in self.silent and queue in self.bounds]
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


def batch(brokers: Brokers, **options: str) -> list[Range]:
    """Return what a batch query reads."""
    return batch_ranges(SourceOptions.parse({"subscribe": "T", **options}), brokers)


def test_latest_is_the_same_however_often_spark_calls(brokers: Brokers, time: Time):
    """Spark requests it again after writing the offset log. If the answer moved, messages in between
    would be lost.
    """
    plan = planner(brokers, time)
    first = plan.initial()
    brokers.bounds[A0] = (0, 99)
    assert plan.initial() == first == {A0: 10, A1: 20}


def test_target_of_available_now_does_not_move(brokers: Brokers, time: Time):
    plan = planner(brokers, time, startingOffsets="earliest")
    plan.fix_target()
    brokers.bounds[A0] = (0, 99)
    end = plan.next_end(plan.initial())
    assert end == {A0: 10, A1: 20}
    time.now_ms += ASK_EVERY_MS
    assert plan.next_end(end) == end


def test_target_is_reached_even_when_a_broker_falls_silent(brokers: Brokers, time: Time):
    """Otherwise an AvailableNow run would end early and report success."""
    plan = planner(brokers, time, startingOffsets="earliest")
    plan.fix_target()
    start = plan.initial()
    brokers.silent = {"a"}
    assert plan.next_end(start) == {A0: 10, A1: 20}


def test_idle_polls_ask_the_brokers_once_in_a_while(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    for time.now_ms in range(0, 1000, 10):
        plan.next_end({A0: 10, A1: 20})
    assert brokers.questions == 1000 // ASK_EVERY_MS


def test_new_queue_is_seen_and_read_from_its_beginning(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    start = plan.next_end({A0: 10, A1: 20})
    brokers.bounds[B0] = (5, 8)
    time.now_ms += ROUTE_EVERY_MS
    entered = plan.next_end(start)
    assert entered == {**start, B0: 5}
    assert plan.ranges(entered, plan.next_end(entered)) == [Range(B0, 5, 8)]


def test_a_silent_broker_pauses_and_the_others_continue(
    brokers: Brokers, time: Time, caplog: pytest.LogCaptureFixture
):
    brokers.bounds[B0] = (0, 5)
    plan = planner(brokers, time)
    start = {A0: 0, A1: 0, B0: 5}
    brokers.silent = {"b"}
    with caplog.at_level(logging.WARNING):
        assert plan.next_end(start) == {A0: 10, A1: 20, B0: 5}
        time.now_ms += ASK_EVERY_MS
        plan.next_end(start)
    assert caplog.text.count("make no progress") == 1
    brokers.silent = set()
    brokers.bounds[B0] = (0, 9)
    time.now_ms += ASK_EVERY_MS
    assert plan.next_end(start)[B0] == 9


def test_name_server_that_is_away_does_not_stop_a_running_query(brokers: Brokers, time: Time):
    plan = planner(brokers, time)
    plan.next_end({A0: 0, A1: 0})
    brokers.is_name_server_away = True
    time.now_ms += ROUTE_EVERY_MS
    assert plan.next_end({A0: 0, A1: 0}) == {A0: 10, A1: 20}


def test_missing_topic_stops_a_new_query(brokers: Brokers, time: Time):
    brokers.no_route = True
    with pytest.raises(RouteNotFound):
        planner(brokers, time).initial()


def test_a_shortened_queue_fails_or_continues_from_its_end(brokers: Brokers, time: Time):
    """Its topic was recreated, or its broker lost its end: new messages reuse offsets already read."""
    with pytest.raises(
        QueuesGone, match=r"queue T:a:0 ends at 10 and was read up to 99.*failOnDataLoss=false"
    ):
        planner(brokers, time).next_end({A0: 99, A1: 20})
    lenient = planner(brokers, time, failOnDataLoss="false")
    start = {A0: 99, A1: 15}
    end = lenient.next_end(start)
    assert end == {A0: 10, A1: 20}
    assert lenient.ranges(start, end) == [Range(A1, 15, 20)]
    brokers.bounds[A0] = (0, 12)
    time.now_ms += ASK_EVERY_MS
    assert lenient.ranges(end, lenient.next_end(end)) == [Range(A0, 10, 12)]


def test_a_slave_behind_its_master_is_awaited(brokers: Brokers, time: Time):
    brokers.slaves = {"a"}
    assert planner(brokers, time).next_end({A0: 99, A1: 20}) == {A0: 99, A1: 20}


@pytest.mark.parametrize("option", [{"subscribe": "T"}, {"subscribePattern": "T|U"}])
def test_a_missing_queue_fails_or_keeps_its_position(brokers: Brokers, time: Time, option: dict[str, str]):
    start = {A0: 10, A1: 20}
    del brokers.bounds[A1]
    with pytest.raises(QueuesGone, match="queue T:a:1 is gone"):
        Planner(SourceOptions.parse(option), brokers, time).next_end(start)
    lenient = Planner(SourceOptions.parse({**option, "failOnDataLoss": "false"}), brokers, time)
    brokers.bounds[A0] = (0, 12)
    assert lenient.next_end(start) == {A0: 12, A1: 20}


def test_available_now_reports_queues_that_went_missing_before_it(brokers: Brokers, time: Time):
    del brokers.bounds[A1]
    plan = planner(brokers, time)
    plan.fix_target()
    with pytest.raises(QueuesGone, match="queue T:a:1 is gone"):
        plan.next_end({A0: 10, A1: 20})


def test_a_queue_whose_broker_is_away_is_not_missing(brokers: Brokers, time: Time):
    """Name servers forget a disconnected broker and its queues."""
    brokers.bounds[B0] = (0, 7)
    start = {A0: 10, A1: 20, B0: 7}
    plan = planner(brokers, time)
    assert plan.next_end(start) == start
    b0 = brokers.bounds.pop(B0)
    for away in ({"a"}, set[str]()):  # First one broker, then all of them.
        brokers.registered = away
        time.now_ms += ROUTE_EVERY_MS
        assert plan.next_end(start) == start
    brokers.registered = {"a", "b"}
    brokers.bounds[B0] = (b0[0], 9)
    time.now_ms += ROUTE_EVERY_MS
    assert plan.next_end(start) == {**start, B0: 9}


def test_unsubscribed_topics_keep_their_position(brokers: Brokers, time: Time):
    other = MessageQueue("Other", "a", 0)
    assert planner(brokers, time).next_end({A0: 10, A1: 20, other: 5}) == {A0: 10, A1: 20, other: 5}


def test_small_batches_wait_until_they_are_large_enough_or_overdue(brokers: Brokers, time: Time):
    plan = planner(brokers, time, minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    start = plan.next_end({A0: 0, A1: 0}, Limits(minimum=50))
    assert start == {A0: 10, A1: 20}  # The first batch of a run never waits.
    brokers.bounds[A0] = (0, 59)
    time.now_ms += 1_000
    assert plan.next_end(start, Limits(minimum=50)) == start
    brokers.bounds[A0] = (0, 60)
    time.now_ms += 1_000
    assert plan.next_end(start, Limits(minimum=50)) == {A0: 60, A1: 20}
    brokers.bounds[A0] = (0, 61)
    time.now_ms += 9_999
    assert plan.next_end({A0: 60, A1: 20}, Limits(minimum=50)) == {A0: 60, A1: 20}
    time.now_ms += ASK_EVERY_MS
    assert plan.next_end({A0: 60, A1: 20}, Limits(minimum=50)) == {A0: 61, A1: 20}


def test_available_now_does_not_wait_for_more(brokers: Brokers, time: Time):
    plan = planner(brokers, time, minOffsetsPerTrigger="50")
    plan.fix_target()
    first = plan.next_end({A0: 0, A1: 0}, Limits(5, minimum=50))
    assert plan.next_end(first, Limits(5, minimum=50)) != first


def test_topics_of_a_pattern_come_and_go(brokers: Brokers, time: Time):
    brokers.bounds |= {MessageQueue("%RETRY%T", "a", 0): (0, 1), MessageQueue("rmq_sys_T", "a", 0): (0, 1)}
    plan = Planner(SourceOptions.parse({"subscribePattern": ".*T.*"}), brokers, time)
    start = plan.initial()
    assert start == {A0: 10, A1: 20}
    new = MessageQueue("T2", "a", 0)
    brokers.bounds[new] = (3, 9)
    time.now_ms += ROUTE_EVERY_MS
    assert plan.next_end(start) == {**start, new: 3}


def test_only_assigned_queues_are_planned(brokers: Brokers, time: Time):
    plan = Planner(SourceOptions.parse({"assign": '{"T": {"a": [1]}}'}), brokers, time)
    assert plan.initial() == {A1: 20}
    with pytest.raises(ConfigError, match="assign names T:a:7, which does not exist; there are T:a:0, T:a:1"):
        Planner(SourceOptions.parse({"assign": '{"T": {"a": [1, 7]}}'}), brokers, time).initial()


class TestTimes:
    def test_a_query_starts_at_a_time(self, brokers: Brokers, time: Time):
        assert planner(brokers, time, startingTimestamp="7").initial() == {A0: 7, A1: 7}

    def test_a_time_outranks_times_by_queue_and_those_outrank_offsets(self, brokers: Brokers, time: Time):
        by_queue = {"startingOffsetsByTimestamp": '{"T": {"a": {"0": 4}}}', "startingOffsets": "latest"}
        assert planner(brokers, time, **by_queue).initial() == {A0: 4, A1: 0}
        assert planner(brokers, time, startingTimestamp="7", **by_queue).initial() == {A0: 7, A1: 7}

    def test_a_time_after_every_message_follows_its_strategy(self, brokers: Brokers, time: Time):
        with pytest.raises(
            ConfigError, match="startingTimestamp: queue T:a:0 has no message stored at 15 ms"
        ):
            planner(brokers, time, startingTimestamp="15").initial()
        latest = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "15"}
        assert planner(brokers, time, **latest).initial() == {A0: 10, A1: 15}

    def test_a_batch_reads_between_two_times(self, brokers: Brokers):
        assert batch(brokers, startingTimestamp="3", endingTimestamp="12") == [
            Range(A0, 3, 10),
            Range(A1, 3, 12),
        ]


def test_offsets_out_of_range_name_their_option(brokers: Brokers, time: Time):
    with pytest.raises(ConfigError, match="startingOffsets: queue T:a:0 ends at 10, 11 is beyond"):
        planner(brokers, time, startingOffsets='{"T": {"a": {"0": 11}}}').initial()
    with pytest.raises(ConfigError, match="endingOffsets: queue T:a:1 ends at 20, 21 is beyond"):
        batch(brokers, endingOffsets='{"T": {"a": {"1": 21}}}')


def test_a_batch_reports_lost_messages_before_it_starts(brokers: Brokers):
    brokers.bounds[A0] = (5, 10)
    start = '{"T": {"a": {"0": 2}}}'
    with pytest.raises(QueuesGone, match="no longer holds the messages from offset 2 to 5"):
        batch(brokers, startingOffsets=start)
    assert batch(brokers, startingOffsets=start, failOnDataLoss="false") == [
        Range(A0, 5, 10),
        Range(A1, 0, 20),
    ]


def test_pattern_that_matches_nothing_fails_a_batch(brokers: Brokers):
    with pytest.raises(ConfigError, match=r"subscribePattern=X.*: there is no such topic"):
        batch_ranges(SourceOptions.parse({"subscribePattern": "X.*"}), brokers)


def test_batch_reads_from_boundary_to_boundary(brokers: Brokers):
    assert batch(brokers, endingOffsets='{"T:a:1": 7}') == [Range(A0, 0, 10), Range(A1, 0, 7)]
    assert batch(brokers, startingOffsets='{"T:a:0": 4}', endingOffsets="latest") == [
        Range(A0, 4, 10),
        Range(A1, 0, 20),
    ]


def test_the_stream_reader_is_pickled_without_its_sockets():
    from libramq.spark.source import QueuesStreamReader

    reader = QueuesStreamReader(SourceOptions.parse({"subscribe": "T"}), ("offset",))
    assert reader.planner is reader.planner
    assert pickle.loads(pickle.dumps(reader))._planner is None


# Batches limited in bytes.


def grows(_: MessageQueue, at: int) -> float:
    return 100 + at / 2


@pytest.mark.parametrize("limit", [5_000, 50_000, 500_000])
@pytest.mark.parametrize("size_of", [lambda queue, _: 100 if queue == A0 else 2_000, grows])
def test_a_batch_has_half_to_twice_the_bytes(
    brokers: Brokers, time: Time, size_of: Callable[[MessageQueue, int], float], limit: int
):
    brokers.bounds, brokers.size_of = {A0: (0, 1_000), A1: (0, 1_000)}, size_of
    end = planner(brokers, time).next_end({A0: 0, A1: 0}, Limits(bytes=limit))
    read = sum(size_of(queue, at) for queue, count in end.items() for at in range(count))
    assert limit / 2 <= read <= limit * 2
    assert abs(end[A0] - end[A1]) <= 100 or size_of is not grows, "shares are fair"


def test_a_few_messages_are_not_sampled_again(brokers: Brokers, time: Time):
    """Spark plans every 10 ms, and a sample is a request to every queue's broker."""
    plan, limits = planner(brokers, time), Limits(bytes=20_000)
    plan.next_end({A0: 0, A1: 0}, limits)
    assert brokers.samples == 2
    assert plan.next_end({A0: 5, A1: 5}, limits) == {A0: 10, A1: 20}
    assert plan.next_end({A0: 10, A1: 20}, limits) == {A0: 10, A1: 20}
    assert brokers.samples == 2


def test_queues_that_show_no_message_and_limits_of_both_kinds(brokers: Brokers, time: Time):
    brokers.mute = {A0}  # Its filter rejects the first messages.
    plan = planner(brokers, time)
    assert plan.next_end({A0: 0, A1: 0}, Limits(bytes=1))[A0] == 1
    assert plan.next_end({A0: 0, A1: 0}, Limits(rows=6, bytes=1_000_000)) == {A0: 2, A1: 4}


# Brokers that become unavailable while a batch is planned.


def test_a_batch_fails_when_a_broker_with_its_topic_is_away(brokers: Brokers):
    """It silently returned the rows of the others, though failOnDataLoss was true."""
    brokers.absent = {"b": ["T"]}
    with pytest.raises(QueuesGone, match="broker b is away, and with it its queues of T;"):
        batch(brokers)


def test_a_batch_waits_for_a_broker_that_comes_back(brokers: Brokers):
    brokers.absent, brokers.returning = {"b": ["T"]}, {B0: (0, 5)}
    assert batch(brokers) == [Range(A0, 0, 10), Range(A1, 0, 20), Range(B0, 0, 5)]


def test_a_batch_may_continue_without_a_broker(brokers: Brokers, caplog: pytest.LogCaptureFixture):
    brokers.absent, brokers.returning = {"b": ["T"]}, {B0: (0, 5)}
    assert batch(brokers, failOnDataLoss="false") == [Range(A0, 0, 10), Range(A1, 0, 20)]
    assert "broker b is away" in caplog.text


def test_a_batch_may_name_the_brokers_that_must_be_there(brokers: Brokers):
    """Apache's name servers forget a broker and its queues."""
    assert len(batch(brokers, requiredBrokers="a")) == 2
    with pytest.raises(QueuesGone, match="broker b is away, and requiredBrokers names it"):
        batch(brokers, requiredBrokers="a, b")
    with pytest.raises(ConfigError, match="requiredBrokers"):
        SourceOptions.parse({"subscribe": "T", "requiredBrokers": "a"}).check_stream()


# Recreated topics with more messages than before.


def test_a_topic_that_was_made_again_is_not_read_from_the_former_ones_position(brokers: Brokers, time: Time):
    """It had outgrown its predecessor by then, and its first messages were silently skipped."""
    start, before = {A0: 5, A1: 7}, {("T", "a"): 0}
    brokers.since = {("T", "a"): 4_711}
    with pytest.raises(QueuesGone, match="topic T was deleted and made again at broker a since it was read;"):
        planner(brokers, time).next_end(start, since=before)
    plan = planner(brokers, time, failOnDataLoss="false")
    end = plan.next_end(start, since=before)
    assert end == {A0: 0, A1: 0}
    assert plan.ranges(start, end) == []
    following = plan.next_end(end, since=plan.since(before))
    assert plan.ranges(end, following) == [Range(A0, 0, 10), Range(A1, 0, 20)]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, {("T", "a"): 4_711}),  # A checkpoint of an earlier version, or of Apache's brokers.
        ({("T", "a"): 4_711}, {("T", "a"): 4_711}),
        ({("T", "a"): 4_711}, {("T", "a"): 0}),  # Too long ago: the broker has forgotten it.
        ({("T", "a"): 4_711}, {}),
    ],
)
def test_a_topic_that_was_not_made_again_is_read_on(
    brokers: Brokers,
    time: Time,
    before: dict[tuple[str, str], int] | None,
    now: dict[tuple[str, str], int],
):
    brokers.since = now
    plan = planner(brokers, time)
    assert plan.next_end({A0: 5, A1: 7}, since=before) == {A0: 10, A1: 20}
    assert plan.since(before) == {("T", "a"): 4_711}
