"""Received messages: views that decode their parts lazily, and records checked on receipt."""

import copy
import gc
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.message.message import MessageExt
from libramq.message.record import decode_record, decode_records, encode_record

V6 = bytes(range(16)) + (10911).to_bytes(4)


@dataclass(frozen=True)
class Case:
    """The parts of a record that determine how it is read."""

    body: bytes = b"body"
    topic: str = "T"
    properties: bytes = b"UNIQ_KEY\x01id\x02TAGS\x01a\x02"
    born_host: bytes = bytes((10, 0, 0, 1)) + (4711).to_bytes(4)

    def encoded(self, offset=7):
        return encode_record(
            topic=self.topic, queue_id=3, queue_offset=offset, physical_offset=offset * 100, body=self.body,
            properties=self.properties, flag=5, born_timestamp_ms=11, born_host=self.born_host,
            store_timestamp_ms=12, reconsume_times=2,
        )  # fmt: skip


CASES = [
    Case(),
    Case(body=b""),
    Case(body=bytes(100_000)),
    Case(properties=b""),
    Case(topic="t" * 127),
    Case(topic="t" * 128),
    Case(born_host=V6),
]


@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_read_as_its_records_one_by_one(case: Case):
    """The fast path for records of the common form, and the slow path for the others."""
    data = b"".join(each.encoded(offset) for offset, each in enumerate([case, Case(), case]))
    found, start = [], 0
    while start < len(data):
        decoded = decode_record(data, start, broker_name="b")
        assert decoded is not None
        message, start = decoded
        found.append(message)
    assert decode_records(data, broker_name="b") == found
    assert [message.queue_offset for message in found] == [0, 1, 2]
    assert found[0].body == case.body
    assert found[0].topic == case.topic


@pytest.mark.parametrize("case", CASES)
def test_a_cut_batch_is_refused_wherever_it_is_cut(case: Case):
    whole = case.encoded()
    for size in {*range(1, min(len(whole), 200)), *range(max(1, len(whole) - 200), len(whole))}:
        with pytest.raises(RemoteProtocolError):
            decode_records(Case().encoded() + whole[:size])


@given(st.integers(0, 140), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_read_alike(place, value):
    """Both paths read the same or raise the same error, so no corruption is left for a handler to find."""
    data = bytearray(Case(body=b"x" * 30).encoded() + Case().encoded())
    data[place % len(data)] = value
    outcomes = []
    for read in (decode_records, one_by_one):
        try:
            outcomes.append([(message, message.born_host) for message in read(bytes(data))])
        except RemoteProtocolError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def one_by_one(data):
    found, start = [], 0
    while start < len(data):
        decoded = decode_record(data, start, decompress=False)
        if decoded is None:
            raise RemoteProtocolError(f"the last record of {len(data)} bytes is cut off at {start}")
        message, start = decoded
        found.append(message)
    return found


def test_every_field_is_that_of_the_record():
    (message,) = decode_records(Case().encoded(), broker_name="b")
    assert message == MessageExt(
        topic="T", queue_id=3, queue_offset=7, physical_offset=700, flag=5, sys_flag=0, born_timestamp_ms=11,
        born_host=("10.0.0.1", 4711), store_timestamp_ms=12, store_host=("0.0.0.0", 0), reconsume_times=2,
        prepared_transaction_offset=0, body=b"body", properties={"UNIQ_KEY": "id", "TAGS": "a"},
        store_size=len(Case().encoded()), body_crc=message.body_crc, broker_name="b",
    )  # fmt: skip
    assert (message.tags, message.message_id) == ("a", "id")
    assert "topic='T'" in repr(message)
    assert message != "something else"


def test_added_properties_are_there_before_and_after_the_first_look():
    first, second = decode_records(Case().encoded() + Case().encoded())
    first.add_properties({"MAX_OFFSET": "9"})
    first.add_properties({"MIN_OFFSET": "1"})
    assert second.properties == {"UNIQ_KEY": "id", "TAGS": "a"}
    second.add_properties({"MAX_OFFSET": "9", "MIN_OFFSET": "1"})
    assert first.properties == second.properties == {
        "UNIQ_KEY": "id", "TAGS": "a", "MAX_OFFSET": "9", "MIN_OFFSET": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
@pytest.mark.parametrize("looked_at", [True, False])
def test_a_message_can_be_passed_to_another_process(duplicate, looked_at):
    """A handler may receive a message, and may return copies of it."""
    (message,) = decode_records(Case().encoded(), broker_name="b")
    if looked_at:
        assert message.properties
    assert duplicate(message) == message


def test_the_garbage_collector_does_not_track_messages():
    """Repeatedly tracking waiting messages took a sixth of a consumer's processor time."""
    (message,) = decode_records(Case().encoded(), broker_name="b")
    assert not gc.is_tracked(message)
    assert message.properties
    assert message.queue_id == 3
    assert not gc.is_tracked(message)
