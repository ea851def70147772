"""Tests of AVG and AVG_BY_CIRCLE against upstream's arithmetic, and of properties of all strategies."""

import pytest

from libramq.balance import averagely, by_circle


def java_averagely(index: int, queue_count: int, client_count: int) -> list[int]:
    """Compute AllocateMessageQueueAveragely.allocate, conditional by conditional."""
    remainder = queue_count % client_count
    if queue_count <= client_count:
        size = 1
    elif remainder > 0 and index < remainder:
        size = queue_count // client_count + 1
    else:
        size = queue_count // client_count
    start = index * size if remainder > 0 and index < remainder else index * size + remainder
    return [(start + i) % queue_count for i in range(min(size, queue_count - start))]


def test_four_queues_for_three_clients():
    """In upstream's example the first client gets the remainder."""
    ids = ["a", "b", "c"]
    assert [list(averagely(me, range(4), ids)) for me in ids] == [[0, 1], [2], [3]]
    assert [list(by_circle(me, range(4), ids)) for me in ids] == [[0, 3], [1], [2]]


def test_equal_to_upstream_for_all_small_sizes():
    """For 1–40 clients and 1–40 queues, every client gets the queues that Java assigns to it."""
    for client_count in range(1, 41):
        ids = [f"c{i:02}" for i in range(client_count)]
        for queue_count in range(1, 41):
            for index, me in enumerate(ids):
                assert list(averagely(me, range(queue_count), ids)) == java_averagely(
                    index, queue_count, client_count
                )
                assert list(by_circle(me, range(queue_count), ids)) == list(
                    range(index, queue_count, client_count)
                )


@pytest.mark.parametrize("strategy", [averagely, by_circle])
def test_each_queue_has_one_owner_and_loads_differ_by_one(strategy):
    """For all sizes up to 40 × 40 the queues are partitioned as evenly as possible."""
    for client_count in range(1, 41):
        ids = [f"c{i:02}" for i in range(client_count)]
        for queue_count in range(41):
            shares = [strategy(me, range(queue_count), ids) for me in ids]
            assert sorted(queue for share in shares for queue in share) == list(range(queue_count))
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("strategy", [averagely, by_circle])
def test_a_client_outside_the_group_gets_nothing(strategy):
    """A client that the broker does not list yet must not pull."""
    assert list(strategy("x", range(4), ["a", "b"])) == []
    assert list(strategy("x", range(4), [])) == []
