"""Tests of the accumulator: which messages travel together."""

from libramq.client.producing.accumulator import Accumulator, Encoded, split
from libramq.message.queue import MessageQueue


def item(number, size=10):
    """Return what `add` takes: a message, its size, and what comes back with its result."""
    return Encoded(str(number), bytes(size)), size, number


def taken(accumulator):
    batches = []
    while (batch := accumulator.take()) is not None:
        batches.append((batch.topic, batch.queue, batch.tokens))
    return batches


def test_messages_are_collected_by_topic_or_by_queue():
    """No batch mixes them."""
    accumulator = Accumulator()
    queue = MessageQueue("T", "a", 0)
    for number, (topic, where) in enumerate(
        [("T", None), ("T", queue), ("U", None), ("T", None), ("T", queue)]
    ):
        assert not accumulator.add(topic, where, *item(number))
    assert taken(accumulator) == [("T", None, [0, 3]), ("T", queue, [1, 4]), ("U", None, [2])]
    assert accumulator.is_empty


def test_a_full_batch_is_announced_and_goes_first():
    """It is full by bytes; the rest of its queue follows in order."""
    accumulator = Accumulator(bytes_max=25)
    other = MessageQueue("T", "a", 1)
    assert not accumulator.add("T", other, *item(9))
    assert [accumulator.add("T", None, *item(number)) for number in range(3)] == [False, False, True]
    assert taken(accumulator) == [("T", None, [0, 1]), ("T", other, [9]), ("T", None, [2])]


def test_a_batch_is_full_by_count_too():
    """The answer to it must stay small."""
    accumulator = Accumulator(count_max=2)
    for number in range(5):
        accumulator.add("T", None, *item(number))
    assert taken(accumulator) == [("T", None, [0, 1]), ("T", None, [2, 3]), ("T", None, [4])]


def test_a_message_larger_than_a_batch_travels_alone():
    """It is not lost, and delays no other message."""
    accumulator = Accumulator(bytes_max=25)
    accumulator.add("T", None, *item(0))
    accumulator.add("T", None, *item(1, size=1000))
    accumulator.add("T", None, *item(2))
    assert taken(accumulator) == [("T", None, [0]), ("T", None, [1]), ("T", None, [2])]


def test_split_keeps_order_and_bounds():
    """Each run has at most this many bytes and messages."""
    contents = [item(number)[0] for number in range(5)]
    numbers = range(5)
    assert [list(numbers[run]) for run in split(contents, bytes_max=25)] == [[0, 1], [2, 3], [4]]
    assert [list(numbers[run]) for run in split(contents, count_max=4)] == [[0, 1, 2, 3], [4]]
    assert [list(numbers[run]) for run in split(contents, bytes_max=5)] == [[0], [1], [2], [3], [4]]
    assert list(split([])) == []
