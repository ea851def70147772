"""Record batches: Kafka's clients read ours and we read theirs; everything else is refused."""

from typing import Any

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import (
    GZIP,
    HEADER_BYTES,
    HEADERS_MAX,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Budget,
    InvalidBatch,
    Record,
    decode_batch,
    decompress,
    encode_batch,
    encode_headers,
    unpacking_cost,
)

HEADERS = [("a", b"1"), ("a", None), ("größe", b"\xff")]
RECORDS = [
    Record(1_000, b"k", b"v", HEADERS, encode_headers(HEADERS), 0),
    Record(999, None, b"", offset=1),
    Record(1_000_000, b"", None, offset=2),
    Record(1_000, b"k" * 300, b"v" * 3_000, offset=3),
]


def of_a_client(codec: int = NONE, **fields: Any) -> bytes:
    """Return a batch that aiokafka built."""
    defaults = {
        "is_transactional": False, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1,
        "batch_size": 1 << 20,
    }  # fmt: skip
    builder = DefaultRecordBatchBuilder(2, codec, **(defaults | fields))
    for record in RECORDS:
        headers = list(record.headers)
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, headers)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4, ZSTD, SNAPPY])
def test_a_clients_batch_is_read_whatever_its_compression(codec: int):
    decoded = decode_batch(of_a_client(codec))
    assert [each._replace(raw_headers=b"") for each in decoded] == [
        each._replace(raw_headers=b"", headers=tuple(each.headers)) for each in RECORDS
    ]
    assert decoded[0].raw_headers == RECORDS[0].raw_headers


def test_clients_read_our_batches():
    data = encode_batch([record._replace(offset=100 + record.offset * 2) for record in RECORDS])
    batch = MemoryRecords(data).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    found = list(batch)
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
        (100 + record.offset * 2, record.timestamp_ms, record.key, record.value) for record in RECORDS
    ]
    assert list(found[0].headers) == HEADERS


def test_every_flipped_byte_is_noticed():
    data = of_a_client()
    for position in range(8, len(data)):
        if 12 <= position < 16:  # The leader's epoch is the broker's own field, and outside the checksum.
            continue
        flipped = bytearray(data)
        flipped[position] ^= 0xFF
        with pytest.raises(InvalidBatch):
            decode_batch(bytes(flipped))


def test_every_cut_is_noticed():
    data = of_a_client()
    for end in range(len(data)):
        with pytest.raises(InvalidBatch):
            decode_batch(data[:end])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (of_a_client() * 2, ErrorCode.INVALID_RECORD),
        (of_a_client(is_transactional=True), ErrorCode.INVALID_RECORD),
        (of_a_client(producer_id=7, producer_epoch=-1, base_sequence=0), ErrorCode.INVALID_RECORD),
        (of_a_client(producer_id=7, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (of_a_client()[:16] + b"\x01" + of_a_client()[17:], ErrorCode.INVALID_RECORD),
    ],
    ids=["empty", "two batches", "transactional", "no epoch", "no sequence", "format 1"],
)
def test_what_is_not_served_is_refused_by_its_code(data: bytes, code: ErrorCode):
    with pytest.raises(InvalidBatch) as refused:
        decode_batch(data)
    assert refused.value.code == code


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD, SNAPPY])
def test_what_unpacks_to_too_much_is_refused_before_it_takes_memory(codec: int):
    import cramjam
    import lz4.frame
    import zstandard

    zeros = bytes(1 << 20)
    packed = {
        GZIP: lambda: bytes(cramjam.gzip.compress(zeros)),
        LZ4: lambda: lz4.frame.compress(zeros),
        ZSTD: lambda: zstandard.ZstdCompressor().compress(zeros),
        SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(zeros)),
    }[codec]()
    assert decompress(codec, packed, 1 << 20) == zeros
    with pytest.raises(RemoteProtocolError):
        decompress(codec, packed, (1 << 20) - 1)
    for end in range(0, len(packed), 997):
        assert unpacked(codec, packed[:end]) != zeros


@pytest.mark.parametrize("block", [b"", b"x"], ids=["empty", "of a byte"])
def test_blocks_of_snappy_are_limited_in_number_too(block: bytes):
    """A frame has room for two million of them, which take seconds."""
    import cramjam

    packed = bytes(cramjam.snappy.compress_raw(block))
    head = b"\x82SNAPPY\0" + bytes(8)
    blocks = len(packed).to_bytes(4) + packed
    assert decompress(SNAPPY, head + blocks * 16_384) == block * 16_384
    with pytest.raises(RemoteProtocolError, match="more than 16384 blocks"):
        decompress(SNAPPY, head + blocks * 16_385)


def unpacked(codec: int, data: bytes) -> bytes | None:
    try:
        return decompress(codec, data, 1 << 20)
    except RemoteProtocolError:
        return None


def test_a_header_is_61_bytes():
    assert len(encode_batch([Record(0, None, b"")])) == HEADER_BYTES + 7


def with_headers(count: int) -> bytes:
    return encode_batch([Record(0, None, b"", raw_headers=encode_headers([("", b"")] * count))])


def test_the_headers_of_a_request_are_bounded_however_small_they_are():
    """Three kilobytes of zstd contained sixteen million headers, and kept a broker busy for a minute."""
    budget = Budget()
    assert len(decode_batch(with_headers(HEADERS_MAX), budget)[0].headers) == HEADERS_MAX
    with pytest.raises(InvalidBatch) as refused:
        decode_batch(with_headers(1), budget)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_batches_that_cannot_be_read_unpack_no_more_than_those_that_can():
    """Each batch of a request that was refused after decompression used to cost its full size again."""
    data = of_a_client(GZIP, batch_size=1 << 20)
    records = bytearray(data)
    records[60] += 1  # One record more than there are.
    records[26] += 1
    wrong = with_checksum(records)
    budget = Budget()
    for _ in range(30):
        with pytest.raises(InvalidBatch):
            decode_batch(wrong, budget)
    assert budget.bytes < len(data), "no further batch is unpacked"


def with_checksum(data: bytearray) -> bytes:
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4)
    return bytes(data)


def test_a_compressed_batch_costs_as_much_as_a_large_one_before_it_is_unpacked():
    plain, packed = of_a_client(), of_a_client(ZSTD)
    assert len(plain) < unpacking_cost(plain) < 64 * 1024 < unpacking_cost(packed)
    many = encode_batch([Record(0, None, b"", offset=number) for number in range(1_000)])
    assert unpacking_cost(many) > 64 * 1024, "records cost more than their bytes"
