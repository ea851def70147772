"""Records without headers are decoded in a hurry: to the same values, and with the same refusals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka import record_batch
from libramq.wire.kafka.primitives import Reader
from libramq.wire.kafka.record_batch import (
    HEADER_BYTES,
    Budget,
    Record,
    decode_batch,
    encode_batch,
    encode_headers,
)

BASE_MS = 1_700_000_000_000
#: Of numbers with one, two and three bytes in zig-zag.
SIZES = (0, 1, 63, 64, 127, 128, 8_191, 8_192, 20_000)


def slowly(plain: bytes, count: int) -> list[Record] | str:
    """Return what the reader finds, or what it says."""
    reader = Reader(plain)
    try:
        records = [record_batch._decode_record(reader, number, BASE_MS, Budget()) for number in range(count)]
        reader.finish()
    except RemoteProtocolError as error:
        return str(error)
    return records


def quickly(plain: bytes, count: int) -> list[Record] | str:
    try:
        return record_batch._decode_records(plain, count, BASE_MS, Budget())
    except RemoteProtocolError as error:
        return str(error)


def plain(records: list[Record]) -> bytes:
    return encode_batch(records)[HEADER_BYTES:]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key_size", [None, *SIZES])
def test_a_record_of_any_size_is_what_was_encoded(size: int, key_size: int | None):
    key = None if key_size is None else b"k" * key_size
    sent = [Record(BASE_MS + 9_000 * number, key, b"v" * size, offset=number) for number in range(3)]
    found = decode_batch(encode_batch(sent))
    assert [each[:3] for each in found] == [each[:3] for each in sent]


def test_more_records_than_two_bytes_can_number():
    sent = [Record(BASE_MS, b"k", b"v" * 100, offset=number) for number in range(10_000)]
    assert [each.offset for each in decode_batch(encode_batch(sent))] == list(range(10_000))


@given(st.randoms(use_true_random=False))
def test_both_ways_read_the_same_of_whatever_comes(chance: random.Random):
    records = []
    for number in range(chance.randint(1, 30)):
        headers = [("h", b"x")] * (chance.random() < 0.2)
        records.append(
            Record(
                BASE_MS + chance.choice((0, 0, 0, 5, -5, 100_000, 1 << 40)),
                chance.choice((None, b"", b"key", b"k" * 200)),
                chance.choice((None, b"", b"value" * 20, b"v" * chance.choice(SIZES))),
                raw_headers=encode_headers(headers),
                offset=number,
            )
        )
    data = bytearray(plain(records))
    for _ in range(chance.randint(0, 3)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    whole = bytes(data[: chance.choice((len(data), chance.randint(0, len(data)))) or len(data)])
    assert quickly(whole, len(records)) == slowly(whole, len(records))
