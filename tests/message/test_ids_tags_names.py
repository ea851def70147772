"""Ids, tag codes, names, and the message that a producer sends."""

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import InvalidMessage, InvalidName, RemoteProtocolError
from libramq.message import Message, UniqueIdGenerator, java_hash, tag_code, validate
from libramq.message.ids import decode_offset_id, encode_host, encode_offset_id
from libramq.message.names import groups_of, is_valid_group, is_valid_topic, validate_group, validate_topic
from libramq.message.properties import RESERVED
from tests.fakes import ManualClock


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TagA", 2598919), ("TagB", 2598920), ("a", 97), ("*", 42), ("order-created", -392709271),
        ("标签", 857175), ("polygenelubricants", -2147483648), ("", 0), ("test-group", 627841412),
    ],
)  # fmt: skip
def test_java_hash_equals_javas(text, value):
    """store.md §24; the last one is a vector of the design."""
    assert java_hash(text) == value


def test_no_tag_has_code_zero():
    assert (tag_code(None), tag_code(""), tag_code("TagA")) == (0, 0, 2598919)


@pytest.mark.parametrize(
    ("host", "offset", "text"),
    [
        (("127.0.0.1", 10911), 0, "7F00000100002A9F0000000000000000"),
        (("192.168.1.10", 10911), 123456789, "C0A8010A00002A9F00000000075BCD15"),
        (("::1", 10911), 1, "0" * 31 + "1" + "00002A9F" + "0" * 15 + "1"),
    ],
)
def test_offset_ids_round_trip(host, offset, text):
    assert encode_offset_id(encode_host(host), offset) == text
    assert decode_offset_id(text) == (host, offset)
    assert decode_offset_id(text.lower()) == (host, offset)


@given(st.one_of(st.text(max_size=60), st.text("0123456789ABCDEFG ", min_size=32, max_size=32)))
def test_an_invalid_offset_id_raises_the_typed_error(text):
    with contextlib.suppress(RemoteProtocolError):
        decode_offset_id(text)


def test_unique_ids_differ_although_the_clock_stands_still_or_is_set_back():
    clock = ManualClock()
    generator = UniqueIdGenerator("10.0.0.7", 70_000, clock, random.Random(1))
    ids = [generator() for _ in range(140_000)]
    clock.advance(-5_000)
    ids += [generator() for _ in range(1_000)]
    clock.advance(40 * 24 * 3600 * 1000)  # In another month.
    ids += [generator() for _ in range(1_000)]
    assert len(set(ids)) == len(ids)
    assert {len(text) for text in ids} == {32}
    assert ids[0].startswith("0A000007" + f"{70_000 & 0xFFFF:04X}")


def test_many_unique_ids_are_those_of_as_many_calls():
    clock = ManualClock()
    one, other = (UniqueIdGenerator("10.0.0.7", 7, clock, random.Random(1)) for _ in range(2))
    for count in (1, 0, 5, 70_000, 140_000, 3):
        assert one.many(count) == [other() for _ in range(count)]
        assert one() == other()
        clock.advance(1)


def test_two_generators_of_one_host_differ():
    clock = ManualClock()
    one = UniqueIdGenerator("::1", 5, clock, random.Random(1))
    two = UniqueIdGenerator("::1", 5, clock, random.Random(2))
    assert one()[:40] != two()[:40]
    assert len(one()) == 56


@pytest.mark.parametrize("name", ["a", "%RETRY%group_a-b|c", "T" * 127, "%DLQ%" + "g" * 250, "0"])
def test_valid_topics_are_accepted(name):
    assert validate_topic(name) == name
    assert is_valid_topic(name)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "ä", "a.b", "../x", "T" * 128, "%DLQ%" + "g" * 251, "a\n", "a\0"]
)
def test_invalid_topics_are_refused(name):
    with pytest.raises(InvalidName):
        validate_topic(name)
    assert not is_valid_topic(name)


def test_groups_have_at_most_120_characters():
    assert validate_group("g" * 120)
    assert not is_valid_group("g" * 121)
    with pytest.raises(InvalidName, match="121 characters"):
        validate_group("g" * 121)


def test_all_properties_include_tags_keys_and_delay():
    message = Message("T", b"x", tags="A", keys=["k1", "k2"], properties={"color": "red"}, delay_level=3)
    validate(message)
    assert message.all_properties() == {"color": "red", "KEYS": "k1 k2", "TAGS": "A", "DELAY": "3"}
    assert Message("T", b"x", keys="one").all_properties() == {"KEYS": "one"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("T", b""), "a body has"),
        (Message("T", b"x" * (4 * 1024 * 1024 + 1)), "a body has"),
        (Message("T", b"x", flag=1 << 31), "flag"),
        (Message("T", b"x", delay_level=19), "delay level"),
        (Message("T", b"x", properties={"TAGS": "A"}), "reserved"),
        (Message("T", b"x", properties={"a\x01": "b"}), "separate"),
        (Message("T", b"x", properties={"a": "b\x02"}), "separate"),
        (Message("T", b"x", properties={"a": "b\0"}), "NUL"),
        (Message("T", b"x", properties={"\0": "b"}), "NUL"),
        (Message("T", b"x", tags="\0"), "NUL"),
        (Message("T", b"x", keys=("a", "\0")), "NUL"),
        (Message("T", b"x", properties={"a": ""}), "empty"),
        (Message("T", b"x", properties={"a": "\ud800"}), "Unicode"),
        (Message("T", b"x", properties={"a": "b" * 40_000}), "bytes of properties"),
        (Message("T", b"x", properties={"a": 3}), "must be a text"),
        (Message("T", b"x", tags=""), "empty"),
        (Message("T", "text"), "must be bytes"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "not allowed"),
    ],
)
def test_invalid_messages_are_refused(message, words):
    with pytest.raises(InvalidMessage, match=words):
        validate(message)


def test_timer_properties_may_be_set_and_other_reserved_names_may_not():
    for name in RESERVED:
        message = Message("T", b"x", properties={name: "1"})
        if name in {"WAIT", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}:
            validate(message)
        else:
            with pytest.raises(InvalidMessage, match=name):
                validate(message)


def test_a_topic_with_a_bare_retry_prefix_names_no_group():
    """One send to it made `libra groups` and `consumerProgress` fail for everybody: "the group is blank"."""
    topics = ["T", "%RETRY%b", "%RETRY%", "%RETRY%a", "%DLQ%c", "%RETRY%" + "x" * 121, "%RETRY%../d"]
    assert groups_of(topics) == ["a", "b"]
