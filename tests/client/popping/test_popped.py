"""Popped messages: the required parts of an answer."""

import base64

import pytest

from libramq.client.popping.popped import ack_call, batch_acks, messages_of
from libramq.errors import ConfigError, RemoteError
from libramq.message import MessageExt
from libramq.message.properties import POP_CK
from libramq.message.queue import MessageQueue
from libramq.rpc.pop_calls import PopReply
from tests.client.fake_broker import record

ONE = record(MessageQueue("T", "b", 3), 7, b"x")


def reply(body: bytes, starts: dict[str, int]) -> PopReply:
    return PopReply(0, 5, 6, 2, starts, body)


def test_a_message_has_the_handle_of_its_queue():
    (message,) = messages_of(reply(ONE, {"0 3": 4}), "b", "T")
    assert message.properties[POP_CK] == "4 5 6 2 0 b 3 7"


@pytest.mark.parametrize(
    ("body", "starts"),
    [
        (ONE, {"0 2": 4}),
        (ONE, {"1 3": 4}),
        (ONE[:-1], {"0 3": 4}),
        (ONE, {"0 3": 8}),
        (ONE, {"0 3": -(1 << 21)}),
        (ONE, {"0 3": 10**30}),
    ],
)
def test_an_answer_that_cannot_be_read_is_the_brokers_failure(body: bytes, starts: dict[str, int]):
    """The other brokers are still queried; a missing start raised a KeyError in the program."""
    with pytest.raises(RemoteError, match="broker b"):
        messages_of(reply(body, starts), "b", "T")


def test_messages_are_named_by_the_check_points_that_their_broker_counts():
    """Redelivered messages among them carry their own check points."""
    queue = MessageQueue("T", "b", 3)
    again = record(queue, 1, b"", b"POP_CK\x010 5 6 2 1 b 3 1\x02")
    body = b"".join([record(queue, 32, b"a"), record(queue, 34, b"b"), again, record(queue, 64, b"c")])
    counts = [("0 3", 32, 2), ("1 3", 0, 1), ("0 3", 64, 1)]
    messages = messages_of(reply(body, {})._replace(counts=counts), "b", "T")
    messages[1].properties["mine"] = "read"
    (acks,) = batch_acks("G", messages).values()
    named = [(ack.retry, ack.start_offset, base64.b64decode(ack.bit_set)) for ack in acks]
    assert named == [("0", 32, b"\x05"), ("1", 0, b"\x02"), ("0", 64, b"\x01")]
    assert [each.properties[POP_CK] for each in messages] == [
        "32 5 6 2 0 b 3 32", "32 5 6 2 0 b 3 34", "0 5 6 2 1 b 3 1", "64 5 6 2 0 b 3 64",
    ]  # fmt: skip


def test_messages_of_two_topics_are_acknowledged_apart_though_their_handles_are_equal():
    """A handle has no topic, and one millisecond and queue number may be those of two pops."""

    def popped(topic: str) -> list[MessageExt]:
        body = b"".join(record(MessageQueue(topic, "b", 3), offset, b"x") for offset in (4, 5, 6))
        return messages_of(reply(body, {})._replace(counts=[("0 3", 4, 3)]), "b", topic)

    of_t, of_u = popped("T"), popped("U")
    acks = batch_acks("G", [of_t[0], of_t[2], *of_u, of_t[1]])["b"]
    assert [(each.topic, base64.b64decode(each.bit_set)) for each in acks] == [("T", b"\x07"), ("U", b"\x07")]


@pytest.mark.parametrize("offset", [3, 4 + (1 << 20)])
def test_a_message_outside_its_check_point_is_not_acknowledged(offset: int):
    queue = MessageQueue("T", "b", 3)
    body = record(queue, 4, b"x") + record(queue, 5, b"x")
    messages = messages_of(reply(body, {"0 3": 4}), "b", "T")
    messages[1].properties[POP_CK] = messages[1].properties[POP_CK].rpartition(" ")[0] + f" {offset}"
    with pytest.raises(ConfigError, match="leave the property as it came"):
        batch_acks("G", messages)


def test_a_redelivered_message_of_a_5_0_broker_has_the_topic_that_was_popped():
    """Later brokers do this themselves; 5.0 leaves it in its retry topic, without a handle."""
    again = record(MessageQueue("%RETRY%G_T", "b", 0), 2, b"again")
    first, second = messages_of(reply(ONE + again, {"0 3": 4, "1 0": 1}), "b", "T")
    assert (second.topic, second.properties[POP_CK]) == ("T", "1 5 6 2 1 b 0 2")
    assert ack_call("G", second).ext["topic"] == "%RETRY%G_T"
    assert (first.topic, first.properties[POP_CK]) == ("T", "4 5 6 2 0 b 3 7")
    with pytest.raises(RemoteError, match="no start of queue 0"):
        messages_of(reply(again, {"1 1": 1}), "b", "T")


@pytest.mark.parametrize(
    "counts", [[("0 3", 4, 2)], [("0 3", 4, 1), ("0 3", 36, 1)], [("0 3", 8, 1)], [("0 3", 4, 0)]]
)
def test_an_answer_that_counts_wrong_is_the_brokers_failure(counts: list[tuple[str, int, int]]):
    with pytest.raises(RemoteError, match="broker b"):
        messages_of(reply(ONE, {})._replace(counts=counts), "b", "T")


def test_a_damaged_message_is_reported(caplog: pytest.LogCaptureFixture):
    """It cannot be pulled again; Java's client does not look at checksums at all."""
    queue = MessageQueue("T", "b", 3)
    records = [record(queue, number, b"body %d" % number) for number in range(3)]
    assert len(messages_of(reply(b"".join(records), {"0 3": 0}), "b", "T")) == 3
    assert not caplog.text
    records[1] = records[1].replace(b"body 1", b"bodY 1")
    messages = messages_of(reply(b"".join(records), {"0 3": 0}), "b", "T")
    assert [each.body for each in messages] == [b"body 0", b"bodY 1", b"body 2"]
    assert "does not match its checksum" in caplog.text
    assert "offset=1" in caplog.text


def test_what_a_producer_calls_a_handle_is_none():
    """Apache's brokers store it; acknowledging the message raised a ConfigError in the consumer."""
    queue = MessageQueue("T", "b", 3)
    records = [
        record(queue, 7, b"x", b"POP_CK\x01junk\x02"),
        record(queue, 8, b"y", b"POP_CK\x014 5 6 2 1 b 3 9\x02"),
    ]
    messages = messages_of(reply(b"".join(records), {"0 3": 4, "1 3": 9}), "b", "T")
    assert [each.properties[POP_CK] for each in messages] == ["4 5 6 2 0 b 3 7", "4 5 6 2 1 b 3 9"]
