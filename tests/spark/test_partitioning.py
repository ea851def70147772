"""Tests of how reads are divided into tasks: few tasks for few rows, equal ones for many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import Range
from libramq.spark.source import ROWS_WORTH_A_TASK, tasks

Q0 = MessageQueue("Flights", "broker-a", 0)
queues = st.builds(
    MessageQueue, st.sampled_from(["T", "U"]), st.sampled_from(["a", "b:1"]), st.integers(0, 20)
)


def sizes(groups: list[list[Range]]) -> list[int]:
    return [sum(part.row_count for part in group) for group in groups]


def test_few_rows_make_one_task():
    ranges = [Range(MessageQueue("T", "b", number), 0, 10) for number in range(16)]
    assert tasks(ranges, cores=8) == [ranges]


def test_no_rows_make_no_task():
    assert tasks([], cores=4) == []
    assert tasks([], cores=4, min_partitions=3, max_records=1) == []


def test_many_rows_make_as_many_tasks_as_can_run():
    ranges = [Range(MessageQueue("T", "b", number), 0, ROWS_WORTH_A_TASK) for number in range(16)]
    assert sizes(tasks(ranges, cores=4)) == [4 * ROWS_WORTH_A_TASK] * 4


def test_one_large_queue_is_split():
    assert sizes(tasks([Range(Q0, 7, 7 + 10 * ROWS_WORTH_A_TASK)], cores=2)) == [5 * ROWS_WORTH_A_TASK] * 2


@pytest.mark.parametrize(
    ("minimum", "most", "expected"),
    [
        (4, None, [3, 3, 2, 2]),
        (40, None, [1] * 10),
        (None, 4, [4, 3, 3]),
        (2, 4, [4, 3, 3]),
        (5, 4, [2] * 5),
        (None, 100, [10]),
    ],
)
def test_the_users_number_of_tasks_counts(minimum: int | None, most: int | None, expected: list[int]):
    ranges = [Range(MessageQueue("T", "b", number), 0, 5) for number in range(2)]
    assert sizes(tasks(ranges, cores=8, min_partitions=minimum, max_records=most)) == expected


@given(
    st.dictionaries(queues, st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), max_size=30),
    st.integers(1, 16),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(10**5, 10**7),
)
def test_every_message_is_in_exactly_one_task(spans, cores, minimum, most):
    ranges = [Range(queue, start, start + count) for queue, (start, count) in spans.items()]
    grouped = tasks(ranges, cores=cores, min_partitions=minimum, max_records=most)
    assert all(size <= (most or size) for size in sizes(grouped))
    parts = sorted(part for group in grouped for part in group)
    for whole in ranges:
        position = whole.start
        for part in parts:
            if part.queue == whole.queue:
                assert part.start == position
                position = part.end
        assert position == whole.end
