"""A client unwraps inner batches into the same messages as a broker that unwraps them."""

import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libramq.errors import BodyDamaged, RemoteProtocolError
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.inner_batch import decode_pulled, unwrapped_items
from libramq.message.message import MessageExt, handed_out
from libramq.message.record import damaged_records, decode_records, encode_message, peek_record, stored_record
from tests.message.inner_batches import items, single, wrapped


def as_served(*records: bytes) -> list[MessageExt]:
    """Return the messages of records by a broker that unwraps them."""
    found: list[MessageExt] = []
    for record in records:
        head = peek_record(record)
        assert head is not None
        inner = unwrapped_items(record, head) if head.sys_flag & flags.INNER_BATCH else [record]
        found += decode_records(b"".join(inner), broker_name="a")
    return found


def pulled(*records: bytes, offset: int = 0, check_crc: bool = True) -> list[MessageExt]:
    return decode_pulled(b"".join(records), offset, check_crc=check_crc, broker_name="a")


EVEN = [b"body %d" % number for number in range(10, 40)]
VARIED = [b"x" * (number % 5) for number in range(30)]
UNEVEN = [*items(*VARIED), BatchItem(-7, b"", b"")]


@pytest.mark.parametrize("compression", [None, flags.COMPRESSION_ZLIB])
@pytest.mark.parametrize("topic", ["T", "x" * 128])
@pytest.mark.parametrize("inner", [items(*EVEN), UNEVEN, items(b"", flag=9), items(*EVEN, flag=-1)])
def test_a_batch_has_the_messages_that_its_broker_would_send(inner, topic, compression):
    records = (
        single(0),
        wrapped(inner, 1, topic=topic, compression=compression, born_host=bytes(range(20))),
        single(1 + len(inner)),
    )
    found, expected = pulled(*records), as_served(*records)
    assert found == expected
    assert not any(one != other for one, other in zip(found, expected, strict=True))
    assert found[0] != expected[1]
    assert [m.queue_offset for m in found] == list(range(len(inner) + 2))
    assert [m.message_id for m in pulled(*records)] == [m.message_id for m in as_served(*records)]
    assert [m.offset_id for m in pulled(*records)] == [m.offset_id for m in as_served(*records)]


def test_messages_before_the_pulled_offset_are_dropped():
    records = wrapped(items(*EVEN), 100), wrapped(items(*VARIED), 130)
    assert pulled(*records, offset=115) == as_served(*records)[15:]
    assert pulled(*records, offset=129) == as_served(*records)[29:]
    assert pulled(records[0], offset=130) == []


def test_a_message_of_a_batch_can_be_encoded_as_a_record_and_be_handed_out():
    record = wrapped(items(b"a", b"bb", flag=5), 7)
    head = peek_record(record)
    assert head is not None
    for message, expected in zip(pulled(record), unwrapped_items(record, head), strict=True):
        assert stored_record(message, added=()) == expected
        assert encode_message(message) == expected
    first, second = pulled(record)
    (copy,) = handed_out([second])
    second.stored_again({}, 99, 4_000)
    assert (copy.queue_offset, copy.body_crc) == (8, zlib.crc32(b"bb") & 0x7FFF_FFFF)
    assert (second.queue_offset, second.physical_offset, second.flag) == (99, 4_000, 5)
    assert first.queue_id == 3


def test_the_record_of_a_batchs_message_has_its_properties_as_they_are_stored():
    """Decoded and encoded again they would lose duplicate properties and bytes that are not valid text."""
    record = wrapped([BatchItem(0, b"a", b"KEYS\x01\xff\x02KEYS\x01k\x02")], 7)
    head = peek_record(record)
    assert head is not None
    (message,) = pulled(record)
    assert [stored_record(message, added=())] == unwrapped_items(record, head)


def test_a_damaged_batch_is_refused_once_and_then_taken_as_it_is():
    good = wrapped(items(*EVEN), 100)
    damaged = good.replace(b"body 17", b"body !7")
    with pytest.raises(BodyDamaged, match="offset 100"):
        pulled(damaged)
    assert [m.body for m in pulled(damaged, check_crc=False)] == [m.replace(b"17", b"!7") for m in EVEN]


def test_a_broker_that_unwraps_a_damaged_batch_does_not_hide_it():
    """Otherwise its messages would get new checksums, computed from the damaged data."""
    damaged = wrapped(items(*EVEN), 100).replace(b"body 17", b"body !7")
    head = peek_record(damaged)
    assert head is not None
    records = unwrapped_items(damaged, head)
    assert len([*damaged_records(b"".join(records))]) == len(EVEN)
    assert [m.body for m in as_served(damaged)] == [m.replace(b"17", b"!7") for m in EVEN]


BROKEN = {
    "announces more": wrapped(items(*EVEN), 100, count=31),
    "announces fewer": wrapped(items(*EVEN), 100, count=29),
    "announces one": wrapped(items(*EVEN), 100, count=1),
    "cut off": wrapped(items(*EVEN), 100, body=encode_batch(items(*EVEN))[:-1]),
    "longer": wrapped(items(*EVEN), 100, body=encode_batch(items(*EVEN)) + b"\0"),
    "no items": wrapped(items(*EVEN), 100, body=b"\xff" * 400),
    "empty": wrapped(items(*EVEN), 100, body=b""),
    "not compressed": wrapped(items(*EVEN), 100, sys_flag=flags.WRAPPED | flags.COMPRESSED),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_batch_that_cannot_be_read_is_one_message_as_it_is_stored(what, caplog):
    """Its queue must not stop there forever. Java's client does the same."""
    record = BROKEN[what]
    head = peek_record(record)
    assert head is not None
    found = pulled(record, single(130))
    assert [m.queue_offset for m in found] == [100, 130]
    assert found[0].body == record[head.body_start : head.body_end]
    (line,) = caplog.messages
    assert "its messages cannot be read" in line
    assert "100" in line
    assert [m.queue_offset for m in pulled(record, single(130), offset=110)] == [130]


def test_a_record_that_is_cut_off_ends_the_reply():
    with pytest.raises(RemoteProtocolError, match="cut off"):
        pulled(wrapped(items(*EVEN))[:-1])


def test_batches_of_other_protocols_are_not_unwrapped():
    """Their broker unwraps them: only the broker knows their content."""
    record = wrapped(items(*EVEN), 100, sys_flag=flags.INNER_BATCH)
    (message,) = pulled(record)
    assert message.queue_offset == 100


@example([b"a"], 36, 128)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=14), st.integers(0, 400), st.integers(1, 255))
def test_any_changed_byte_raises_only_our_own_error(bodies, place, bits):
    record = bytearray(wrapped(items(*bodies), 100))
    record[place % len(record)] ^= bits
    try:
        pulled(bytes(record), check_crc=False)
    except RemoteProtocolError:
        return
