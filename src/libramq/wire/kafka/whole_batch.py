"""Whole batches: record batches that are stored and fetched as they were produced, without being decoded."""

from typing import Final, NamedTuple

import google_crc32c

from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import (
    CODEC_MASK,
    CRC_FROM,
    HEAD,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    RECORD_BYTES_MIN,
    RECORDS_MAX,
    REST,
    InvalidBatch,
    checked_head,
)

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_COUNT_AT: Final = 57
#: Ours: a checksum takes 33 µs a MiB, a copy some 50 µs, the size of a record 0.14 µs; 64 KiB are decoded in
#: some milliseconds.
_BYTES_PER_COST: Final = 128
_RECORD_COST: Final = 4
#: A size has at most five bytes of seven bits.
_SHIFT_MAX: Final = 28


class BatchSummary(NamedTuple):
    """The head of a batch that is stored as it is. Times are of its first record, and the latest of all."""

    records: int
    first_ms: int
    latest_ms: int


def empty_batch(base_offset: int, count: int) -> bytes:
    """Return a batch that has offsets and no records, as Kafka's brokers leave by compaction: clients go on
    behind it.
    """
    checked = REST.pack(0, count - 1, -1, -1, -1, -1, -1, 0)
    crc = google_crc32c.value(checked)
    return HEAD.pack(base_offset, len(checked) + CRC_FROM - LENGTH_FROM, 0, MAGIC, crc) + checked


def checking_cost(data: bytes) -> int:
    """Return what `check_batch` takes, in the time that a byte takes to decode (`unpacking_cost`)."""
    if len(data) < HEADER_BYTES:
        return len(data)
    count = int.from_bytes(data[_COUNT_AT:HEADER_BYTES], signed=True)
    return len(data) // _BYTES_PER_COST + min(max(count, 0), RECORDS_MAX) * _RECORD_COST


def check_batch(data: bytes) -> BatchSummary:
    """Return what a producer's batch says of itself; raises InvalidBatch.

    Of records that are not compressed the sizes are checked; others only unpacking would.
    """
    attributes, last_delta, first_ms, latest_ms, count = checked_head(data)
    if count > RECORDS_MAX:
        raise InvalidBatch(
            ErrorCode.MESSAGE_TOO_LARGE, f"{count} records; at most {RECORDS_MAX}, send smaller batches"
        )
    if count < 1 or last_delta != count - 1:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"a batch of {len(data)} bytes announces {count} records"
        )
    if not attributes & CODEC_MASK and _count_records(data) != count:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"a batch does not have the {count} records it announces"
        )
    return BatchSummary(count, first_ms, latest_ms)


def _count_records(data: bytes) -> int:
    """Return how many records fill an uncompressed batch exactly, by their sizes; -1 if they do not."""
    at, end, count = HEADER_BYTES, len(data), 0
    while at < end:
        size = data[at]
        at += 1
        shift = 7
        if size > 0x7F:
            size &= 0x7F
            while True:
                if at >= end or shift > _SHIFT_MAX:
                    return -1
                byte = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte <= 0x7F:
                    break
        if size & 1 or size >> 1 < RECORD_BYTES_MIN - 1:  # Negative, or too small for what every record has.
            return -1
        at += size >> 1
        count += 1
    return count if at == end else -1


def renumbered(
    data: bytes | memoryview, base_offset: int, *, leader_epoch: int = 0
) -> list[bytes | memoryview]:
    """Return a stored batch as it is fetched, in parts: with its first offset; its checksum stays right."""
    return [
        base_offset.to_bytes(8),
        data[_LENGTH_AT:LENGTH_FROM],
        leader_epoch.to_bytes(4),
        data[_MAGIC_AT:],
    ]
