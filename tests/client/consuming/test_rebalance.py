"""Tests of the rebalance: the allocation."""

from libramq.balance import averagely, by_config, strategy_named
from libramq.client.consuming.membership.rebalancing import allocate
from libramq.message.queue import MessageQueue


def queues(*numbers):
    return tuple(MessageQueue("T", "a", number) for number in numbers)


def test_every_member_sorts_queues_and_members_alike():
    """All members compute the same result in any order of queues and members."""
    assert allocate(averagely, "b", queues(3, 1, 0, 2), ["c", "b", "a"]) == queues(2)
    assert allocate(averagely, "a", queues(0, 1, 2, 3), ["a", "b", "c"]) == queues(0, 1)


def test_ten_queues_sort_by_number():
    """Queue 10 sorts after queue 9."""
    assert allocate(averagely, "a", queues(10, 9, 2), ["a"]) == queues(2, 9, 10)


def test_every_strategy_can_be_used_by_clients():
    """Strategies for whole groups can compute one client's share as well; the shares of all make the
    topic.
    """
    balanced = strategy_named("balanced_sticky")
    shares = [allocate(balanced, me, queues(2, 1, 0), ["b", "a"]) for me in ("a", "b")]
    assert shares == [queues(0, 2), queues(1)]


def test_queues_outside_the_topic_are_dropped_from_a_strategys_result():
    """CONFIG returns its whole list, in which queues of other topics may be, or queues that do not exist."""
    configured = by_config([("T", "a", 1), ("T", "a", 1), ("T", "a", 9), ("U", "a", 0)])
    assert allocate(configured, "a", queues(0, 1), ["a"]) == queues(1)
