"""A row for each message of an inner batch, the same as of the records that its broker would send."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.columns.records import COLUMNS, Records, arrow_schema
from libramq.columns.unwrapped import UnwrappedRecords, unwrapped
from libramq.errors import RemoteProtocolError
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.inner_batch import decode_pulled, unwrapped_items
from libramq.message.record import peek_record
from tests.message.inner_batches import items, single, wrapped
from tests.message.test_inner_batch import BROKEN, EVEN, UNEVEN, VARIED

EVERYTHING = arrow_schema(COLUMNS)
IPV6 = bytes(range(20))


def as_served(*records: bytes) -> bytes:
    """Return what a broker that unwraps records sends."""
    found: list[bytes] = []
    for record in records:
        head = peek_record(record)
        assert head is not None
        found += unwrapped_items(record, head) if head.sys_flag & flags.INNER_BATCH else [record]
    return b"".join(found)


def rows(records: Records, *ends: int) -> list[dict[str, object]]:
    found = records.batch([("a", end) for end in ends], EVERYTHING)
    found.validate(full=True)
    return found.to_pylist()


@pytest.mark.parametrize("compression", [None, flags.COMPRESSION_ZLIB])
@pytest.mark.parametrize("inner", [items(*EVEN), UNEVEN, items(b"", flag=9), [BatchItem(0, b"a", b"")] * 3])
@pytest.mark.parametrize("is_alone", [False, True])
def test_rows_are_those_of_unwrapped_records(inner, compression, is_alone):
    batch = wrapped(inner, 1, compression=compression, born_host=IPV6)
    pulled = (batch,) if is_alone else (single(0), batch, single(40), wrapped(items(*VARIED), 41))
    data, served = b"".join(pulled), as_served(*pulled)
    found, expected = unwrapped(Records(data, wrapped=True)), Records(served)
    assert rows(found, len(data)) == rows(expected, len(served))
    count = len(expected)
    assert [found.record(row) for row in range(count)] == [expected.record(row) for row in range(count)]
    assert found.has_good_crcs()


def test_a_rows_broker_is_that_of_its_records_bytes():
    one, other = wrapped(items(*EVEN), 0, compression=flags.COMPRESSION_ZLIB), wrapped(items(b"z"), 0)
    found = unwrapped(Records(one + other, wrapped=True))
    brokers = [("a", len(one)), ("b", len(one + other))]
    assert found.batch(brokers, arrow_schema(["broker"]))["broker"].to_pylist() == ["a"] * 30 + ["b"]
    assert found.count_before([len(one)]) == [30]


def test_records_without_batches_are_as_they_were():
    records = Records(single(0) + single(1), wrapped=True)
    assert unwrapped(records) is records


@pytest.mark.parametrize("what", BROKEN)
def test_a_batch_that_cannot_be_read_is_one_row_as_it_is_stored(what, caplog):
    record, sound = BROKEN[what], wrapped(items(*EVEN), 131)
    found = unwrapped(Records(record + single(130) + sound, wrapped=True))
    head = peek_record(record)
    assert head is not None
    batch = found.batch([], arrow_schema(["offset", "body"]))
    assert batch["offset"].to_pylist() == [100, *range(130, 161)]
    assert batch["body"][0].as_py() == record[head.body_start : head.body_end]
    assert [line for line in caplog.messages if "its messages cannot be read" in line]
    assert found.record(0) == record


def test_a_message_of_a_large_batch_is_found_without_a_copy_of_the_batch():
    """A consumer looks at the first and the last message of each pull several times."""
    found = unwrapped(Records(single(0) + wrapped(items(*[bytes(1_000)] * 1_000), 1), wrapped=True))
    tracemalloc.start()
    assert len(found.record(1_000)) < 2_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_damaged_body_is_found():
    damaged = wrapped(items(*EVEN)).replace(b"body 17", b"body !7")
    records = Records(damaged, wrapped=True)
    assert not records.has_good_crcs()
    assert not unwrapped(records).has_good_crcs()


def test_batches_of_other_protocols_are_refused():
    with pytest.raises(RemoteProtocolError, match="BatchCQ"):
        Records(wrapped(items(*EVEN), sys_flag=flags.INNER_BATCH), wrapped=True)


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=14), st.integers(0, 400), st.integers(1, 255))
def test_whatever_byte_of_the_items_is_changed_the_rows_are_those_of_the_messages(bodies, place, bits):
    body = bytearray(encode_batch(items(*bodies)))
    body[place % len(body)] ^= bits
    record = wrapped(items(*bodies), 100, body=bytes(body))
    messages = decode_pulled(record, 0, check_crc=True)
    found = UnwrappedRecords(Records(record, wrapped=True)).batch([], arrow_schema(["offset", "body"]))
    assert found["offset"].to_pylist() == [message.queue_offset for message in messages]
    assert found["body"].to_pylist() == [message.body for message in messages]
