"""Tests of where micro-batches begin and end. Each test about a stream covers a trap for sources."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import (
    Bounds,
    Limits,
    Range,
    StreamOffset,
    lags,
    next_end,
    queue_of_key,
    ranges_between,
    share,
)

Q0, Q1, Q2 = (MessageQueue("Flights", "broker-a", number) for number in range(3))
B0 = MessageQueue("Flights", "10.0.0.1:10911", 0)

queues = st.builds(
    MessageQueue, st.sampled_from(["T", "%RETRY%g"]), st.sampled_from(["a", "b:1"]), st.integers(0, 20)
)
positions = st.dictionaries(queues, st.integers(0, 2**60), max_size=6)


def upto(**maximums: int) -> dict[MessageQueue, Bounds]:
    return {
        {"q0": Q0, "q1": Q1, "q2": Q2}[name]: Bounds(minimum=0, maximum=end) for name, end in maximums.items()
    }


class TestOffsetText:
    @given(positions)
    def test_positions_round_trip(self, given_positions: dict[MessageQueue, int]):
        offset = StreamOffset(given_positions)
        assert StreamOffset.decode(json.loads(json.dumps(offset.encode()))) == offset
        first = StreamOffset(given_positions, began=given_positions)
        assert StreamOffset.decode(json.loads(json.dumps(first.encode()))) == first
        since = {(queue.topic, queue.broker_name): 7 for queue in given_positions} or None
        last = StreamOffset(given_positions, since=since)
        assert StreamOffset.decode(json.loads(json.dumps(last.encode()))) == last

    @given(positions)
    def test_equal_positions_have_equal_text(self, given_positions: dict[MessageQueue, int]):
        """Spark compares the text: another order would look like new data, and empty batches would spin."""
        backwards = dict(reversed(given_positions.items()))
        assert json.dumps(StreamOffset(given_positions).encode()) == json.dumps(
            StreamOffset(backwards).encode()
        )

    def test_positions_have_a_readable_form(self):
        offset = StreamOffset({Q1: 5, Q0: 3})
        assert json.dumps(offset.encode()) == '{"Flights:broker-a:0": 3, "Flights:broker-a:1": 5}'

    def test_broker_names_may_hold_colons(self):
        assert queue_of_key("Flights:10.0.0.1:10911:0") == B0

    @pytest.mark.parametrize("key", ["", "Flights", "Flights:0", "Flights:a:x", ":a:0", "Flights::0"])
    def test_other_keys_are_refused(self, key: str):
        with pytest.raises(ConfigError, match="TOPIC:BROKER:QUEUE"):
            queue_of_key(key)


class TestNextEnd:
    def test_without_a_limit_everything_is_read(self):
        assert next_end({Q0: 3, Q1: 0}, upto(q0=10, q1=4)) == {Q0: 10, Q1: 4}

    def test_nothing_new_is_the_start_itself(self):
        assert next_end({Q0: 3, Q1: 0}, upto(q0=3, q1=0)) == {Q0: 3, Q1: 0}

    def test_positions_never_go_back(self):
        """A broker that lost its end must not make Spark read backwards."""
        assert next_end({Q0: 8}, upto(q0=3)) == {Q0: 8}

    def test_vanished_queue_keeps_its_position(self):
        assert next_end({Q0: 8, Q1: 5}, upto(q0=9)) == {Q0: 9, Q1: 5}

    def test_new_queue_enters_at_its_smallest_offset_and_is_read_in_the_batch_after(self):
        """At its end, the messages stored before the queue was discovered would be skipped."""
        bounds = {Q0: Bounds(minimum=0, maximum=1), Q1: Bounds(minimum=40, maximum=50)}
        first = next_end({Q0: 1}, bounds)
        assert first == {Q0: 1, Q1: 40}
        assert next_end(first, bounds) == {Q0: 1, Q1: 50}

    def test_available_now_stops_at_its_target(self):
        target = {Q0: 10, Q1: 4}
        assert next_end({Q0: 3, Q1: 4}, upto(q0=100, q1=100), target=target) == {Q0: 10, Q1: 4}

    def test_available_now_leaves_later_queues_for_the_next_run(self):
        assert next_end({Q0: 3}, upto(q0=5, q2=9), target={Q0: 4}) == {Q0: 4}

    def test_available_now_ends_at_once_when_nothing_is_left(self):
        assert next_end({Q0: 30}, upto(q0=40), target={Q0: 20}) == {Q0: 30}

    @given(positions, positions, st.integers(1, 1000) | st.none(), positions | st.none())
    def test_ends_are_never_before_the_start(self, start, maximums, limit, target):
        bounds = {queue: Bounds(minimum=0, maximum=end) for queue, end in maximums.items()}
        end = next_end(start, bounds, limits=Limits(limit), target=target)
        assert end.keys() >= start.keys()
        for queue, position in end.items():
            assert position >= start.get(queue, 0)
            if queue in start and position > start[queue]:
                assert position <= maximums[queue]
                assert target is None or position <= target[queue]

    @given(st.dictionaries(queues, st.integers(0, 10_000), min_size=1), st.integers(1, 5_000))
    def test_with_a_limit_everything_is_read_eventually(self, maximums, limit):
        bounds = {queue: Bounds(minimum=0, maximum=end) for queue, end in maximums.items()}
        position = dict.fromkeys(maximums, 0)
        for _ in range(sum(maximums.values()) + 1):
            after = next_end(position, bounds, limits=Limits(limit))
            if after == position:
                break
            position = after
        assert position == maximums


def test_lags_are_those_of_started_queues_up_to_the_target():
    bounds = upto(q0=10, q1=5, q2=7)
    assert lags({Q0: 4, Q1: 5}, bounds) == {Q0: 6}
    assert lags({Q0: 4, Q1: 5}, bounds, {Q0: 6}) == {Q0: 2}


class TestShare:
    def test_a_limit_is_shared_in_proportion_to_lag(self):
        assert share({Q0: 100, Q1: 300}, Limits(40)) == {Q0: 10, Q1: 30}

    def test_small_queues_do_not_starve(self):
        assert share({Q0: 1, Q1: 1_000_000}, Limits(100)) == {Q0: 1, Q1: 99}

    def test_a_sufficient_limit_changes_nothing(self):
        assert share({Q0: 5, Q1: 6}, Limits(None)) == share({Q0: 5, Q1: 6}, Limits(11)) == {Q0: 5, Q1: 6}

    @given(st.dictionaries(queues, st.integers(1, 10**9), min_size=1), st.integers(1, 10**9))
    def test_a_small_limit_still_reads_one_of_each_queue(self, lags, limit):
        shares = share(lags, Limits(limit))
        assert all(1 <= shares[queue] <= lag for queue, lag in lags.items())
        assert min(limit, sum(lags.values())) <= sum(shares.values()) <= limit + len(lags)

    def test_rows_lost_by_rounding_are_no_batch_of_their_own(self):
        assert share({Q0: 101, Q1: 99}, Limits(50)) == {Q0: 25, Q1: 25}


class TestRanges:
    def test_a_start_after_the_end_is_empty(self):
        """This happens when a queue was truncated."""
        assert ranges_between({Q0: 3708, Q1: 0}, {Q0: 3685, Q1: 2}) == [Range(Q1, 0, 2)]

    def test_queue_without_a_start_begins_at_its_minimum(self):
        assert ranges_between({}, {Q0: 9}, known={Q0: 4}) == [Range(Q0, 4, 9)]

    def test_a_queue_without_new_messages_is_not_read(self):
        assert ranges_between({Q0: 9}, {Q0: 9}) == []
