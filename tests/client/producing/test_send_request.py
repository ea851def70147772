"""Tests of the preparation of messages: properties, compression, batches, header."""

import array
import itertools
import random
import zlib

import pytest

from libramq.client.producing.send_request import (
    Prepared,
    SendSettings,
    check_batch,
    content_of,
    prepare_batch,
    prepare_one,
    send_call,
    why_not_in_batch,
)
from libramq.codes import RequestCode
from libramq.errors import InvalidMessage
from libramq.message.batch import decode_batch
from libramq.message.message import Message
from libramq.message.properties import decode_properties, properties_from_text
from libramq.message.queue import MessageQueue

SETTINGS = SendSettings(group="p")


def ids():
    return map("id-{}".format, itertools.count()).__next__


def test_a_single_message_gets_an_id_and_waits_for_the_store():
    """UNIQ_KEY and WAIT are added; tags, keys and the user's own properties are kept."""
    message = Message("T", b"body", tags="a", keys=["k1", "k2"], properties={"colour": "red"}, flag=9)
    prepared = prepare_one(message, ids(), compress_over_bytes=4096)
    assert prepared.ids == ("id-0",)
    assert properties_from_text(prepared.properties) == {
        "colour": "red", "KEYS": "k1 k2", "TAGS": "a", "UNIQ_KEY": "id-0", "WAIT": "true",
    }  # fmt: skip
    assert (prepared.body, prepared.sys_flag, prepared.flag, prepared.is_batch) == (b"body", 0, 9, False)


def test_a_large_body_is_compressed_when_that_helps():
    """zlib is used from compressMsgBodyOverHowmuch on, and the flag is set."""
    plain = prepare_one(Message("T", b"a" * 4095), ids(), compress_over_bytes=4096)
    packed = prepare_one(Message("T", b"a" * 4096), ids(), compress_over_bytes=4096)
    assert (len(plain.body), plain.sys_flag) == (4095, 0)
    assert packed.sys_flag == 0x301
    assert zlib.decompress(packed.body) == b"a" * 4096
    noise = prepare_one(Message("T", random.Random(1).randbytes(5000)), ids(), compress_over_bytes=4096)
    assert (len(noise.body), noise.sys_flag) == (5000, 0)


def test_a_batch_keeps_each_message_with_its_own_id():
    """The batch itself has none, since Apache's brokers would hide the messages' ids behind it."""
    next_id = ids()
    contents = [content_of(Message("T", b"%d" % n, tags="t", flag=n), next_id) for n in range(3)]
    prepared = prepare_batch("T", contents, [each.unique_id for each in contents])
    items = decode_batch(prepared.body)
    assert [(item.flag, item.body) for item in items] == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert [decode_properties(item.properties)["UNIQ_KEY"] for item in items] == ["id-0", "id-1", "id-2"]
    assert properties_from_text(prepared.properties) == {"WAIT": "true"}
    assert prepared.ids == ("id-0", "id-1", "id-2")


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (Message("T", b"x", delay_level=3), "delayed"),
        (Message("T", b"x", properties={"TIMER_DELAY_SEC": "3"}), "delayed"),
        (Message("%RETRY%g", b"x"), "retry"),
        (Message("T", b"x", properties={"WAIT": "false"}), "wait"),
        (Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "3"}), "priority"),
    ],
)
def test_some_messages_travel_alone(message, word):
    """MessageBatch.generateFromList refuses the same ones, but for a priority, which brokers ignore there."""
    assert word in (why_not_in_batch(message) or "")
    with pytest.raises(InvalidMessage, match="by itself"):
        check_batch([message])


def test_a_batch_goes_to_one_topic():
    """An empty batch is also refused."""
    with pytest.raises(InvalidMessage, match="one topic"):
        check_batch([Message("T", b"x"), Message("U", b"x")])
    with pytest.raises(InvalidMessage, match="at least one"):
        check_batch([])
    check_batch([Message("T", b"x"), Message("T", b"y")])


def test_the_request_has_the_short_header():
    """SEND_MESSAGE_V2 has all the fields that upstream's brokers require."""
    prepared = Prepared(topic="T", ids=("i",), properties="k\x01v\x02", body=b"b", sys_flag=1, flag=2)
    call = send_call(prepared, MessageQueue("T", "a", 3), SETTINGS, born_ms=123)
    assert call.code == RequestCode.SEND_MESSAGE_V2
    assert call.ext == {
        "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "1", "g": "123", "h": "2",
        "i": "k\x01v\x02", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    assert call.body == b"b"
    assert not call.oneway


def test_a_batch_has_its_own_code():
    """The code is SEND_BATCH_MESSAGE, and the header has the flag."""
    prepared = prepare_batch("T", [b"x"], ["i"])
    call = send_call(prepared, MessageQueue("T", "a", 0), SETTINGS, born_ms=1)
    assert (call.code, call.ext["m"]) == (RequestCode.SEND_BATCH_MESSAGE, "true")


@pytest.mark.parametrize("properties", [{}, {"colour": "red"}], ids=["body", "properties"])
def test_a_message_larger_than_a_batch_is_sent_as_none(properties):
    """In a batch it takes more bytes, and one of maxMessageSize would be refused."""
    message = Message("T", bytes(4 << 20), properties=properties, flag=len(properties))
    content = content_of(message, lambda: "i")
    prepared = prepare_batch("T", [content], ["i"])
    assert (prepared.is_batch, prepared.body, prepared.flag) == (False, message.body, message.flag)
    added = {"UNIQ_KEY": "i", "WAIT": "true"}
    assert properties_from_text(prepared.properties) == properties | added


def test_a_view_of_numbers_is_sent_as_its_bytes():
    """Its length counts numbers, which made an item that no broker could read."""
    numbers = array.array("i", range(10))
    content = content_of(Message("T", memoryview(numbers)), lambda: "i")
    (item,) = decode_batch(content.item)
    assert item.body == numbers.tobytes()
