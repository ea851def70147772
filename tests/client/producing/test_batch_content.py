"""Tests of the content of a batch: bodies that are encoded late are the items they would have been."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.client.producing.accumulator import (
    PLAIN_ITEM_BYTES,
    Encoded,
    content_bytes,
    encode_contents,
    unique_ids,
)
from libramq.client.producing.send_request import content_of
from libramq.message.batch import BatchItem, decode_batch, encode_batch_item
from libramq.message.message import Message
from libramq.message.properties import properties_to_text


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
    """The properties are those of a message that is encoded by itself, whatever the lengths."""
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
    """Batches keep within their limits, with the ids of IPv6 addresses, too."""
    for length in (32, 56):
        ids = Numbers(length).many(1)
        assert len(encode_contents([b"body"], ids)) <= content_bytes(b"body") == 4 + PLAIN_ITEM_BYTES
