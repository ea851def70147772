"""Tests of the accumulator: which messages share a batch, and the batch's content."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.client.producing.accumulator import (
    PLAIN_ITEM_BYTES,
    Accumulator,
    Encoded,
    content_bytes,
    encode_contents,
    split,
    unique_ids,
)
from libramq.client.producing.send_request import content_of
from libramq.message.batch import BatchItem, decode_batch, encode_batch_item
from libramq.message.message import Message
from libramq.message.properties import properties_to_text
from libramq.message.queue import MessageQueue


def item(number, size=10):
    """Return the arguments of `add`: a message, its size, and a token returned with its result."""
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


class Numbers:
    """Unique ids of a length of our choice, in order."""

    def __init__(self, length=32):
        self._length, self._next = length, 0

    def __call__(self):
        self._next += 1
        return f"{self._next:0{self._length}X}"

    def many(self, count):
        return [self() for _ in range(count)]


def text_of(unique_id):
    return properties_to_text({"UNIQ_KEY": unique_id, "WAIT": "true"}).encode()


# Two digits have a number for each of 255 bodies.
@given(
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=255), st.sampled_from([2, 32, 56, 220])
)
def test_bodies_are_encoded_as_items_with_an_id_each(bodies, id_length):
    """The properties equal those of a message encoded alone, for all lengths."""
    ids = unique_ids(bodies, Numbers(id_length))
    assert len(set(ids)) == len(bodies)
    expected = [encode_batch_item(0, body, text_of(each)) for body, each in zip(bodies, ids, strict=True)]
    assert encode_contents(bodies, ids) == b"".join(expected)


def test_messages_with_properties_keep_their_places_and_ids():
    """They are encoded when they are passed, with what their dict contains then."""
    properties = {"colour": "red"}
    next_id = Numbers()
    messages = [Message("T", b"a"), Message("T", b"b", properties=properties), Message("T", b"c")]
    contents = [content_of(message, next_id) for message in messages]
    assert (contents[0], type(contents[1]), contents[2]) == (b"a", Encoded, b"c")
    properties["colour"] = "blue"
    ids = unique_ids(contents, next_id)
    assert ids[1] == contents[1].unique_id
    assert len(set(ids)) == 3
    items = decode_batch(encode_contents(contents, ids))
    assert [item.body for item in items] == [b"a", b"b", b"c"]
    assert items[0] == BatchItem(0, b"a", text_of(ids[0]))
    assert b"red" in items[1].properties
    assert items[2] == BatchItem(0, b"c", text_of(ids[2]))


def test_anything_but_a_body_of_bytes_is_encoded_when_it_is_passed():
    """A bytearray may change before its batch is sent."""
    body = bytearray(b"before")
    others = [
        Message("T", body),
        Message("T", b"x", tags="t"),
        Message("T", b"x", keys="k"),
        Message("T", b"x", flag=1),
    ]
    contents = [content_of(message, Numbers()) for message in others]
    body[:] = b"after!"
    assert all(isinstance(content, Encoded) for content in contents)
    assert decode_batch(contents[0].item)[0].body == b"before"


def test_the_size_of_a_body_is_never_underestimated():
    """Batches keep within their limits, even with the ids of IPv6 addresses."""
    for length in (32, 56):
        ids = Numbers(length).many(1)
        assert len(encode_contents([b"body"], ids)) <= content_bytes(b"body") == 4 + PLAIN_ITEM_BYTES
