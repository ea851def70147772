"""Tests of the owned queue: unfinished messages decide the committed offset and pace its pulls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.client.consuming.queues.owned_queue import (
    CatchUpPace,
    Delivery,
    HeldMessages,
    Lease,
    OwnedQueue,
    QueueState,
)
from libramq.message.queue import MessageQueue
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, nothing, q
from tests.client.consuming.examples import message


def queue_with(*offsets):
    queue = OwnedQueue(MessageQueue("T", "a", 0), Lease(lambda: 0), now_ms=0)
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
    assert OwnedQueue(MessageQueue("T", "a", 0), Lease(lambda: 0), now_ms=0).held.commit_offset is None


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


OFFSETS = st.lists(st.integers(0, 12), max_size=8)


@given(st.lists(st.tuples(st.booleans(), OFFSETS), max_size=8))
def test_held_messages_are_those_put_and_not_removed(steps):
    """Pulls nearly always ascend; pulls that go back or repeat messages are counted in the same way."""
    held, expected, highest = HeldMessages(), {}, -1
    for is_put, offsets in steps:
        messages = [message(offset, body=b"x" * (offset + number)) for number, offset in enumerate(offsets)]
        if is_put:
            held.put(messages)
            expected |= dict(zip(offsets, messages, strict=True))
            highest = max([highest, *offsets])
        else:
            held.remove(messages)
            for offset in offsets:
                expected.pop(offset, None)
        assert len(held) == len(expected)
        assert held.size == sum(len(each.body) for each in expected.values())
        assert held.commit_offset == min(expected, default=highest + 1 if highest >= 0 else None)
        assert held.bounds == ((min(expected), max(expected)) if expected else (0, 0))


def test_a_body_that_a_handler_replaces_counts_as_it_came():
    """A parsed body has another length or none, which stopped all commits of its queue."""
    held, messages = HeldMessages(), [message(0, body=b"17"), message(1, body=b"18")]
    held.put(messages)
    for each in messages:
        each.body = int(each.body)
    assert (held.remove(messages), held.size) == (2, 0)


def backlog(*offsets, end=1000):
    reply, messages = found(*offsets)
    return reply._replace(max_offset=end), messages


def test_a_backlog_is_pulled_in_small_portions_at_an_even_pace():
    """Each pull brings a tenth of a second's messages, and there is a pull every tenth of a second."""
    talk = Conversation(catch_up_rate=50).pulling(offset=100)
    times = []
    for start in range(100, 150, 5):
        (pull,) = talk.of(rq.Pull)
        assert (pull.offset, pull.count_max) == (start, 5)
        times.append(talk.now_ms)
        talk.pulled(q(0), backlog(*range(start, start + 5)))
        assert talk.of(rq.Pull) == []
        talk.at(talk.now_ms + 100)
    assert times == list(range(0, 1000, 100))


def test_at_the_end_of_the_queue_the_limit_ends():
    """It does not begin again."""
    talk = Conversation(catch_up_rate=50).pulling(offset=10)
    talk.pulled(q(0), backlog(10, 11, end=12))
    (pull,) = talk.of(rq.Pull)
    assert pull.count_max == talk.settings.pull_batch_size
    talk.pulled(q(0), backlog(*range(12, 100), end=1000))
    assert len(talk.of(rq.Pull)) == 1


def test_a_queue_without_messages_is_at_its_end():
    """Its pull was held and found nothing."""
    talk = Conversation(catch_up_rate=50).pulling(offset=100)
    talk.pulled(q(0), nothing(100))
    assert talk.of(rq.Pull)[0].count_max == talk.settings.pull_batch_size


def test_a_queue_without_a_former_reader_is_not_slowed_down():
    """It has no backlog of another member."""
    talk = Conversation(catch_up_rate=50).joined(1)
    talk.committed(q(0), None)
    talk.start_at(q(0), 5)
    assert talk.of(rq.Pull)[0].count_max == talk.settings.pull_batch_size


def test_without_a_rate_nothing_is_slowed_down():
    """This is the default."""
    talk = Conversation().pulling(offset=100)
    talk.pulled(q(0), backlog(100, 101))
    assert len(talk.of(rq.Pull)) == 1


@given(rate=st.integers(1, 100_000), counts=st.lists(st.integers(0, 256), min_size=1, max_size=50))
def test_pulls_are_never_faster_than_the_rate(rate, counts):
    """This holds for pulls that bring any number of messages."""
    pace, now_ms, brought = CatchUpPace(rate, 0), 0, 0
    for count in counts:
        brought += count
        now_ms += pace.brought(count, now_ms) + 1
        assert brought <= rate * now_ms / 1000 + 1
