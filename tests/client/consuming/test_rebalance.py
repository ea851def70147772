"""The rebalance: allocation and difference."""

from libramq.balance import averagely, by_config, strategy_named
from libramq.client.consuming.membership.rebalance import Change, allocate, change
from libramq.message.queue import MessageQueue


def queues(*numbers):
    return tuple(MessageQueue("T", "a", number) for number in numbers)


def test_every_member_sorts_queues_and_members_alike():
    """Whatever order brokers list queues and members in, all compute the same."""
    assert allocate(averagely, "b", queues(3, 1, 0, 2), ["c", "b", "a"]) == queues(2)
    assert allocate(averagely, "a", queues(0, 1, 2, 3), ["a", "b", "c"]) == queues(0, 1)


def test_ten_queues_sort_by_number():
    """Queue 10 comes after queue 9."""
    assert allocate(averagely, "a", queues(10, 9, 2), ["a"]) == queues(2, 9, 10)


def test_every_strategy_can_be_used_by_clients():
    """A group rule too gives a client alone its share; the shares of all make the topic."""
    balanced = strategy_named("balanced_sticky")
    shares = [allocate(balanced, me, queues(2, 1, 0), ["b", "a"]) for me in ("a", "b")]
    assert shares == [queues(0, 2), queues(1)]


def test_queues_outside_the_topic_are_dropped_from_a_strategys_result():
    """CONFIG answers with its whole list: what is of other topics or not there is not ours to pull here."""
    configured = by_config([("T", "a", 1), ("T", "a", 1), ("T", "a", 9), ("U", "a", 0)])
    assert allocate(configured, "a", queues(0, 1), ["a"]) == queues(1)


def test_added_and_removed_queues_are_the_difference():
    """What stays is in neither."""
    assert change(queues(0, 1), queues(1, 2)) == Change(queues(2), queues(0))
    assert change(queues(0, 1), queues(0, 1)) == Change((), ())
    assert change((), queues(0)) == Change(queues(0), ())
    assert change(queues(0), ()) == Change((), queues(0))
