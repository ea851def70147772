"""The record batch, version 2: its format and compression, when one is invalid, and its largest decompressed
size.

     0  base offset (8)                27  base timestamp (8)
     8  length from 12 on (4)          35  max timestamp (8)
    12  partition leader epoch (4)     43  producer id (8)
    16  magic = 2 (1)                  51  producer epoch (2)
    17  CRC-32C of all from 21 on (4)  53  base sequence (4)
    21  attributes (2)                 57  number of records (4)
    23  last offset delta (4)          61  records, compressed together

    record   length | attributes (1) | timestamp delta | offset delta | key | value | number of headers | …

Lengths and deltas are varints; a length of -1 is null. Records are compressed by the algorithm in the
attributes: gzip, lz4, zstd, or snappy, raw (librdkafka) or in the blocks of snappy-java (Java, kafka-python).
Their decompressed size is bounded before memory is allocated. In topics with queue.type=BatchCQ a batch
is stored and fetched as produced, without being decoded; elsewhere it becomes messages.

Upstream: common/record/CompressionType.java, common/record/DefaultRecordBatch.java,
DefaultRecord.java.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import cramjam
import google_crc32c
import lz4.frame
import zstandard

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.primitives import Reader, encode_uvarint, encode_varint

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
#: Ours: the decompressed size of a request's batches; a frame carries as much uncompressed. All of it becomes
#: messages at once, which take four times the memory.
DECOMPRESSED_BYTES_MAX: Final = 16 * 1024 * 1024

MAGIC: Final = 2
HEADER_BYTES: Final = 61
#: Every partition has only ever had one leader.
LEADER_EPOCH: Final = 0
CRC_FROM: Final = 21
LENGTH_FROM: Final = 12
CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
#: The shortest record: an empty key and value, no headers.
RECORD_BYTES_MIN: Final = 7
#: Ours: records of a batch, and of a request; each becomes a message. librdkafka's batches have at most
#: 10,000, and RocketMQ's inner batches up to 32,767.
RECORDS_MAX: Final = 32_767
#: Ours: headers of all records of a request: a dozen for each record of librdkafka's largest batch. A header
#: can be two bytes, so three kilobytes of zstd made sixteen million.
HEADERS_MAX: Final = 131_072
#: Ours: a record's cost in addition to its bytes, in byte times: some 15 µs to decode and store it.
_RECORD_COST_BYTES: Final = 256
#: The largest number in two bytes of a varint. A third byte, mistaken for the high bits of the second,
#: exceeds it.
_TWO_BYTES_MAX: Final = 0x3FFF
#: At most this many bytes of a plain record with a short key precede its value.
_PLAIN_BYTES_MAX: Final = 64
_NO_HEADERS: Final = b"\0"
#: The length of a null key or value.
_NULL: Final = b"\x01"
HEAD: Final = struct.Struct(">qiibI")
REST: Final = struct.Struct(">hiqqqhii")

Header = tuple[str, bytes | None]


class InvalidBatch(RemoteProtocolError):
    """A refused batch. code: the error for its producer."""

    def __init__(self, code: ErrorCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class Budget:
    """The remaining limits for unpacking the batches of one request."""

    __slots__ = ("bytes", "headers", "records")

    def __init__(self) -> None:
        self.bytes, self.records, self.headers = DECOMPRESSED_BYTES_MAX, RECORDS_MAX, HEADERS_MAX

    def take_headers(self, count: int) -> None:
        """Charge for a record's headers; raises InvalidBatch."""
        if count > self.headers:
            raise InvalidBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the records of a request have more than {HEADERS_MAX} headers; send smaller batches",
            )
        self.headers -= count


class Record(NamedTuple):
    """A record. raw_headers: the headers' bytes, beginning with their number."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    raw_headers: bytes = b"\0"
    offset: int = 0


def unpacking_cost(data: bytes) -> int:
    """Estimate the cost of decoding from the announced numbers, without decoding anything. A compressed batch
    may have any size, so it costs as much as the largest one.
    """
    if len(data) < HEADER_BYTES:
        return len(data)
    attributes: int
    count: int
    attributes, *_, count = REST.unpack_from(data, CRC_FROM)
    if attributes & CODEC_MASK:
        return DECOMPRESSED_BYTES_MAX
    return len(data) + max(count, 0) * _RECORD_COST_BYTES


class Stamp(NamedTuple):
    """An idempotent producer's numbers in a batch. first: the sequence of its first record."""

    producer_id: int
    epoch: int
    first: int
    records: int


def stamp_of(data: bytes) -> Stamp | None:
    """Return the stamp of a decoded batch, or None if its producer is not idempotent."""
    *_, producer_id, epoch, first, records = REST.unpack_from(data, CRC_FROM)
    return None if producer_id < 0 else Stamp(producer_id, epoch, first, records)


def decode_batch(data: bytes, budget: Budget | None = None) -> list[Record]:
    """Return the records of a producer's batch, with offsets from 0; raises InvalidBatch.

    budget: charged for decoded data. An unreadable batch halves the remaining bytes, so that a request full
    of such batches unpacks no more than one of valid batches.
    """
    budget = budget or Budget()
    attributes, last_delta, base_ms, _, count = checked_head(data)
    if count > budget.records:
        raise InvalidBatch(
            ErrorCode.MESSAGE_TOO_LARGE, f"{count} records; at most {budget.records}, send smaller batches"
        )
    try:
        plain = decompress(attributes & CODEC_MASK, data[HEADER_BYTES:], budget.bytes)
        budget.bytes -= len(plain)
        if not 0 < count <= len(plain) // RECORD_BYTES_MIN or last_delta != count - 1:
            raise RemoteProtocolError(f"a batch of {len(plain)} bytes announces {count} records")
        budget.records -= count
        return _decode_records(plain, count, base_ms, budget)
    except RemoteProtocolError as failed:
        budget.bytes //= 2
        if isinstance(failed, InvalidBatch):
            raise
        raise InvalidBatch(ErrorCode.INVALID_RECORD, str(failed)) from failed


def checked_head(data: bytes) -> tuple[int, int, int, int, int]:
    """Return attributes, last offset delta, first and latest time, and number of records of a sound batch."""
    if len(data) < HEADER_BYTES:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {len(data)} bytes")
    _, length, _, magic, crc = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"records of format {magic}; only format 2 is served")
    if length != len(data) - LENGTH_FROM:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a partition's records are not exactly one batch")
    if google_crc32c.value(data[CRC_FROM:]) != crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "a record batch does not match its checksum")
    attributes, last_delta, base_ms, max_ms, producer_id, epoch, first, count = REST.unpack_from(
        data, CRC_FROM
    )
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "transactions are not supported")
    if attributes & _LOG_APPEND_TIME:
        raise InvalidBatch(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the time of the append")
    if producer_id >= 0 and (epoch < 0 or first < 0):
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"producer {producer_id} has epoch {epoch}, its batch begins with sequence {first}",
        )
    return attributes, last_delta, base_ms, max_ms, count


def _decode_records(plain: bytes, count: int, base_ms: int, budget: Budget) -> list[Record]:
    """Return all records. Nearly all have no headers, and lengths and deltas of one or two bytes: these are
    decoded here, in a third of the time; all others, including malformed ones, by the reader.
    """
    records: list[Record] = []
    at, length = 0, len(plain)
    for number in range(count):
        found = _plain_record(plain, at, length, number, base_ms)
        if found is None:
            reader = Reader(plain, at)
            record = _decode_record(reader, number, base_ms, budget)
            found = record, reader.at
        record, at = found
        records.append(record)
    Reader(plain, at).finish()
    return records


def _plain_record(data: bytes, at: int, length: int, number: int, base_ms: int) -> tuple[Record, int] | None:
    """Return a record without headers and its end; None if it has another form or may be cut off."""
    if length - at < _PLAIN_BYTES_MAX:  # A number may be cut off near the end.
        return None
    # Zig-zag: an even number is twice a non-negative value.
    size = data[at]
    at += 1
    if size > 0x7F:
        size += (data[at] << 7) - 0x80
        at += 1
    end = at + (size >> 1)
    at += 1  # Attributes: none are defined.
    delta_ms = data[at]
    at += 1
    if delta_ms > 0x7F:
        delta_ms += (data[at] << 7) - 0x80
        at += 1
    offset = data[at]
    at += 1
    if offset > 0x7F:
        offset += (data[at] << 7) - 0x80
        at += 1
    key_size = data[at]
    at += 1
    if key_size > 0x7F:
        key_size += (data[at] << 7) - 0x80
        at += 1
    key: bytes | None = None
    if key_size != 1:  # -1: null.
        key_at, at = at, at + (key_size >> 1)
        if at + 2 > length:
            return None
        key = data[key_at:at]
    value_size = data[at]
    at += 1
    if value_size > 0x7F:
        value_size += (data[at] << 7) - 0x80
        at += 1
    value_end = at + (value_size >> 1)
    if key is None:
        key_size = 0
    if (size | delta_ms | offset | key_size | value_size) & 1:  # Negative.
        return None
    if max(size, delta_ms, offset, key_size, value_size) > _TWO_BYTES_MAX or offset >> 1 != number:
        return None
    if value_end + 1 != end or end > length or data[value_end]:  # Headers, or malformed.
        return None
    return Record(base_ms + (delta_ms >> 1), key, data[at:value_end], (), _NO_HEADERS, number), end


def _decode_record(reader: Reader, number: int, base_ms: int, budget: Budget) -> Record:
    size = reader.varint()
    end = reader.at + size
    reader.raw(1)  # Attributes: none are defined.
    timestamp_ms = base_ms + reader.varlong()
    if reader.varint() != number:
        raise RemoteProtocolError(f"the offsets of a batch are not consecutive at record {number}")
    key, value = _nullable(reader), _nullable(reader)
    headers_at = reader.at
    header_count = reader.varint()
    if not 0 <= header_count <= reader.end - reader.at:
        raise RemoteProtocolError(f"a record announces {header_count} headers")
    budget.take_headers(header_count)
    headers = tuple([(_text(reader), _nullable(reader)) for _ in range(header_count)])
    if reader.at != end:
        raise RemoteProtocolError(f"record {number} does not have the announced {size} bytes")
    return Record(timestamp_ms, key, value, headers, reader.data[headers_at:end], number)


def _nullable(reader: Reader) -> bytes | None:
    size = reader.varint()
    return None if size == -1 else reader.raw(size)


def _text(reader: Reader) -> str:
    return reader.text(reader.varint())


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Encode headers, beginning with their number."""
    if not headers:
        return b"\0"
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (
            encode_varint(len(encoded)),
            encoded,
            _NULL if value is None else encode_uvarint(len(value) << 1) + value,
        )
    return b"".join(parts)


def decode_headers(data: bytes) -> list[Header]:
    """Decode headers, beginning with their number."""
    reader = Reader(data)
    headers = [(_text(reader), _nullable(reader)) for _ in range(reader.count(reader.varint()))]
    reader.finish()
    return headers


def encode_batch(records: Sequence[Record]) -> bytes:
    """Encode records, whose offsets must rise, uncompressed; uses `raw_headers` and ignores `headers`."""
    first, last = records[0], records[-1]
    base_offset, base_ms = first.offset, first.timestamp_ms
    parts: list[bytes] = []
    for timestamp_ms, key, value, _, raw_headers, offset in records:
        head = b"".join((
            b"\0", encode_varint(timestamp_ms - base_ms), encode_varint(offset - base_offset),
            _NULL if key is None else encode_uvarint(len(key) << 1) + key,
            _NULL if value is None else encode_uvarint(len(value) << 1),
        ))  # fmt: skip
        value = value or b""
        parts += (encode_uvarint((len(head) + len(value) + len(raw_headers)) << 1), head, value, raw_headers)
    max_ms = max([record.timestamp_ms for record in records])
    rest = REST.pack(0, last.offset - base_offset, base_ms, max_ms, -1, -1, -1, len(records))
    checked = b"".join((rest, *parts))
    head = HEAD.pack(
        base_offset,
        len(checked) + CRC_FROM - LENGTH_FROM,
        LEADER_EPOCH,
        MAGIC,
        google_crc32c.value(checked),
    )
    return head + checked


_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_COUNT_AT: Final = 57
#: Ours: a checksum takes 33 µs a MiB, a copy some 50 µs, a record's size 0.14 µs; 64 KiB are decoded in some
#: milliseconds.
_BYTES_PER_COST: Final = 128
_RECORD_COST: Final = 4
#: A size has at most five bytes of seven bits each.
_SHIFT_MAX: Final = 28


class BatchSummary(NamedTuple):
    """The head of a stored batch, with the time of its first record and the latest of all."""

    records: int
    first_ms: int
    latest_ms: int


def empty_batch(base_offset: int, count: int) -> bytes:
    """Return a batch of offsets without records, like those left by compaction in Kafka's brokers: clients
    continue behind it.
    """
    checked = REST.pack(0, count - 1, -1, -1, -1, -1, -1, 0)
    crc = google_crc32c.value(checked)
    return HEAD.pack(base_offset, len(checked) + CRC_FROM - LENGTH_FROM, 0, MAGIC, crc) + checked


def checking_cost(data: bytes) -> int:
    """Return the cost of `check_batch`, in the time of decoding a byte (see `unpacking_cost`)."""
    if len(data) < HEADER_BYTES:
        return len(data)
    count = int.from_bytes(data[_COUNT_AT:HEADER_BYTES], signed=True)
    return len(data) // _BYTES_PER_COST + min(max(count, 0), RECORDS_MAX) * _RECORD_COST


def check_batch(data: bytes) -> BatchSummary:
    """Check a producer's batch and return its summary; raises InvalidBatch.

    Checks the sizes of uncompressed records; for compressed ones that would take unpacking.
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
        if size & 1 or size >> 1 < RECORD_BYTES_MIN - 1:  # Negative, or less than the mandatory fields.
            return -1
        at += size >> 1
        count += 1
    return count if at == end else -1


def renumbered(data: bytes | memoryview, base_offset: int) -> list[bytes | memoryview]:
    """Return a stored batch with its first offset, in parts; the checksum does not cover that offset."""
    return [
        base_offset.to_bytes(8),
        data[_LENGTH_AT:LENGTH_FROM],
        LEADER_EPOCH.to_bytes(4),
        data[_MAGIC_AT:],
    ]


#: SnappyOutputStream.java: magic, version and compatible version.
_SNAPPY_JAVA_MAGIC: Final = b"\x82SNAPPY\0"
_SNAPPY_JAVA_HEADER_BYTES: Final = 16
#: As many blocks of 1 KiB, snappy-java's smallest, as may be unpacked. Millions of empty ones in one frame
#: took a thread seconds.
_SNAPPY_BLOCKS_MAX: Final = DECOMPRESSED_BYTES_MAX // 1024
_GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS


def decompress(codec: int, data: bytes, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return decompressed records; raises RemoteProtocolError."""
    if codec == NONE:
        return data
    unpack = _UNPACKERS.get(codec)
    if unpack is None:
        raise RemoteProtocolError(f"there is no compression {codec}")
    try:
        plain = unpack(data, bytes_max)
    except RemoteProtocolError:
        raise
    except Exception as failed:  # The libraries' errors have no common base class.
        raise RemoteProtocolError(f"compressed records cannot be read: {failed}") from failed
    if len(plain) > bytes_max:
        raise RemoteProtocolError(f"{len(data)} bytes of records unpack to more than {bytes_max}")
    return plain


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    plain = stream.decompress(data, bytes_max + 1)
    if not stream.eof and len(plain) <= bytes_max:
        raise RemoteProtocolError("compressed records end early")
    return plain


def _unlz4(data: bytes, bytes_max: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = stream.decompress(data, max_length=bytes_max + 1)
    if not stream.eof and len(plain) <= bytes_max:
        raise RemoteProtocolError("compressed records end early")
    return plain


def _unzstd(data: bytes, bytes_max: int) -> bytes:
    plain: bytes = zstandard.ZstdDecompressor().stream_reader(data).read(bytes_max + 1)
    return plain


def _unsnappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_SNAPPY_JAVA_MAGIC):
        return _unsnappy_block(data, bytes_max)
    blocks: list[bytes] = []
    at, left = _SNAPPY_JAVA_HEADER_BYTES, bytes_max
    while at < len(data):
        if len(blocks) >= _SNAPPY_BLOCKS_MAX:
            raise RemoteProtocolError(f"compressed records have more than {_SNAPPY_BLOCKS_MAX} blocks")
        size = int.from_bytes(data[at : at + 4])
        if at + 4 + size > len(data):
            raise RemoteProtocolError("compressed records end early")
        blocks.append(_unsnappy_block(data[at + 4 : at + 4 + size], left))
        left -= len(blocks[-1])
        at += 4 + size
    return b"".join(blocks)


def _unsnappy_block(data: bytes, bytes_max: int) -> bytes:
    """Decompress one block, which begins with its decompressed size."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > bytes_max:
        raise RemoteProtocolError(f"{len(data)} bytes of records unpack to {size}; {bytes_max} are allowed")
    return bytes(cramjam.snappy.decompress_raw(data))


_UNPACKERS: Final = {GZIP: _gunzip, SNAPPY: _unsnappy, LZ4: _unlz4, ZSTD: _unzstd}
