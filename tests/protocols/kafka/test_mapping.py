"""Records and messages: a fetch returns a record's original bytes, and RocketMQ clients can read it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.message.message import MessageExt
from libramq.message.properties import encode_properties, properties_from_text
from libramq.message.record import decode_records, encode_record
from libramq.protocols.kafka.records import draft_of, record_of
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import InvalidBatch, Record, decode_headers, encode_headers
from tests.protocols.kafka.peers import record

#: Property names with a meaning to some broker or client, and our own.
NAMES = st.sampled_from(
    ["TAGS", "KEYS", "DELAY", "__SHARDINGKEY", "__KAFKA_KEY", "UNIQ_KEY", "h", "H", "", "a b"]
)
HEADERS = st.lists(
    st.tuples(
        NAMES | st.text(max_size=5), st.none() | st.binary(max_size=8) | st.text(max_size=5).map(str.encode)
    ),
    max_size=4,
)
KEYS = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)


def stored(given_record: Record) -> MessageExt:
    """Return the message stored for a record, with the properties that the broker adds."""
    draft = draft_of("T", 0, given_record)
    added = {"UNIQ_KEY": "7F0000010001", "MSG_REGION": "r", "TRACE_ON": "true", "CLUSTER": "c"}
    return message(draft.body, properties_from_text(draft.properties) | added, draft.born_ms or 0)


def message(body: bytes, properties: dict[str, str], born_ms: int = 0) -> MessageExt:
    """Return a message as it is read from the log."""
    record = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=7,
        physical_offset=0,
        body=body,
        properties=encode_properties(properties),
        born_timestamp_ms=born_ms,
    )
    (found,) = decode_records(record)
    return found


@given(key=KEYS, value=st.none() | st.binary(max_size=8), headers=HEADERS)
def test_a_record_is_read_as_it_was_sent(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
):
    sent = record(value, key, headers=headers)
    back = record_of(stored(sent))
    assert (back.key, back.value, back.raw_headers) == (key, value, sent.raw_headers)
    assert (back.timestamp_ms, back.offset) == (sent.timestamp_ms, 7)


def test_plain_text_stays_plain_for_rocketmqs_clients():
    found = stored(record(b"paid", b"order-7", headers=[("colour", b"blue"), ("größe", "Ü".encode())]))
    assert found.body == b"paid"
    assert found.properties["KEYS"] == "order-7"
    assert (found.properties["colour"], found.properties["größe"]) == ("blue", "Ü")


@pytest.mark.parametrize(
    "headers",
    [
        [("a", b"1"), ("a", b"2")],
        [("a", b"\xff")],
        [("a", None)],
        [("a", b"")],
        [("", b"1")],
        [("DELAY", b"3")],
        [("__KAFKA_NULL", b"true")],
        [("a", b"x\x01y\x02DELAY\x013")],
    ],
)
def test_headers_that_are_no_properties_are_kept_together(headers: list[tuple[str, bytes | None]]):
    found = stored(record(headers=headers))
    names = set(found.properties) - {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"}
    assert names == {"__KAFKA_HEADERS"}


def test_tags_and_user_properties_of_rocketmq_are_headers():
    properties = {"TAGS": "blue", "KEYS": "a b", "UNIQ_KEY": "1", "note": "hello"}
    back = record_of(message(b"x", properties))
    assert back.key == b"a b"
    assert decode_headers(back.raw_headers) == [("TAGS", b"blue"), ("note", b"hello")]


def test_a_sharding_key_is_the_key():
    assert record_of(message(b"x", {"KEYS": "a", "__SHARDINGKEY": "shard"})).key == b"shard"


@pytest.mark.parametrize("forged", ["no base64!", "AAAA", "", "////"])
def test_a_forged_header_property_costs_only_the_headers(forged: str):
    """Any RocketMQ producer can set the property; a consumer of the partition must not fail for it."""
    back = record_of(message(b"x", {"__KAFKA_HEADERS": forged, "__KAFKA_KEY": forged}))
    decode_headers(back.raw_headers)
    assert back.value == b"x"


def test_headers_larger_than_a_messages_properties_are_refused():
    with pytest.raises(InvalidBatch) as refused:
        draft_of("T", 0, record(headers=[("a", b"x" * 32_000)]))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_headers_are_read_as_they_were_written():
    headers = [("a", b"1"), ("", None), ("b" * 200, b"\0" * 300)]
    assert decode_headers(encode_headers(headers)) == headers
