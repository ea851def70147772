"""Tests of the owned queue: its unfinished messages decide which offset is committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.ownership.state import QueueState
from libramq.message.queue import MessageQueue
from tests.client.consuming.examples import message


def queue_with(*offsets):
    queue = OwnedQueue(MessageQueue("T", "a", 0), 1, Lease(lambda: 0), now_ms=0)
    queue.held.put([message(offset) for offset in offsets])
    return queue


def removed(queue, *offsets):
    return queue.held.remove([message(offset) for offset in offsets])


def test_the_smallest_unfinished_offset_is_committed():
    """Later messages that are done wait for it."""
    queue = queue_with(5, 6, 7)
    assert removed(queue, 6) == 5
    assert removed(queue, 5) == 7
    assert removed(queue, 7) == 8


def test_repeated_results_of_an_empty_queue_change_nothing():
    """The offset does not move."""
    queue = queue_with(5)
    assert removed(queue, 5) == 6
    assert removed(queue, 5) is None
    assert OwnedQueue(MessageQueue("T", "a", 0), 1, Lease(lambda: 0), now_ms=0).held.commit_offset is None


def test_gaps_are_skipped():
    """Filtered messages leave gaps: the offset is that of the next message that exists, or the end."""
    queue = queue_with(5, 9)
    assert removed(queue, 5) == 9
    assert removed(queue, 9) == 10


def test_a_message_pulled_twice_is_kept_once():
    """The second replaces the first."""
    queue = queue_with(5, 6)
    queue.held.put([message(6, body=b"longer")])
    assert (len(queue.held), queue.held.size) == (2, 7)
    assert removed(queue, 5, 6) == 7
    assert (len(queue.held), queue.held.size) == (0, 0)


def test_count_size_and_span_are_measured():
    """Flow control uses them."""
    queue = queue_with(10, 11, 30)
    assert (len(queue.held), queue.held.size, queue.held.span) == (3, 3, 20)
    removed(queue, 10)
    assert queue.held.span == 19
    removed(queue, 11, 30)
    assert (len(queue.held), queue.held.size, queue.held.span) == (0, 0, 0)


@given(st.lists(st.integers(0, 40), min_size=1), st.randoms())
def test_no_order_of_results_commits_unfinished_messages(offsets, randomness):
    """In any order of arrivals and results, no unfinished message is below the committed offset."""
    queue = queue_with(*offsets)
    left = set(offsets)
    for offset in randomness.sample(sorted(left), len(left)):
        left.discard(offset)
        committed = removed(queue, offset)
        assert committed == (min(left) if left else max(offsets) + 1)


def test_a_delivery_does_not_begin_once_its_queue_is_taken_away():
    """The handler's thread checks at the last moment."""
    queue = queue_with(1, 2)
    queue.state = QueueState.READING
    first, second = Delivery(queue, [message(1)]), Delivery(queue, [message(2)])
    queue.work.deliveries |= {first, second}
    assert not queue.work.is_under_way
    assert first.begin()
    assert queue.work.is_under_way
    queue.state = QueueState.DRAINING
    assert not second.begin()
    assert second.started


@pytest.mark.parametrize("sending_back", [0, 1])
def test_a_message_being_sent_back_keeps_the_queue_busy(sending_back):
    """The message is not done before the broker has it."""
    queue = queue_with(1)
    queue.work.sending_back = sending_back
    assert queue.work.is_under_way is bool(sending_back)
