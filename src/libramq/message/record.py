"""The record: the layout of a message in the commit log and in pull replies, its encoding and decoding, and
the checks of its structure and checksum.

     0  size (4)                 28  physical offset (8)      64  store host (8 or 20)
     4  magic (4)                36  system flag (4)          72  reconsume times (4)
     8  body crc (4)             40  born timestamp (8)       76  prepared transaction offset (8)
    12  queue id (4)             48  born host (8 or 20)      84  body length (4) | body
    16  flag (4)                 56  store timestamp (8)          topic length (1 or 2) | topic
    20  queue offset (8)                                          properties length (2) | properties

Offsets apply to IPv4 hosts. The second magic has a topic length of two bytes. A file ends with a blank where
no further record fits: its size and a magic of its own.

Many of a producer's records have the same size, topic and system flag. Those of a pull reply are decoded
column by column, and those read from a disk are checked that way: a message of 1 KiB with its checksum is
decoded in 0.6 µs instead of 1.2 µs record by record.

Upstream: common/message/MessageDecoder.java, store/MessageExtEncoder.java.
"""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

from libramq.errors import BodyDamaged, InvalidMessage, LibraError, RemoteProtocolError, StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.checksum import crc32
from libramq.message.compression import decompress_body, decompress_or_keep
from libramq.message.ids import HOST_V4_BYTES, HOST_V6_BYTES, encode_host
from libramq.message.message import IN_A_BATCH, NONE_ADDED, MessageExt, Received
from libramq.message.properties import (
    CLUSTER,
    FIRST_POP_TIME,
    MSG_REGION,
    PROPERTIES_BYTES_MAX,
    TRACE_ON,
    decode_properties,
    encode_properties,
    properties_to_text,
)
from libramq.message.record_head import (
    BRIEF_HEAD,
    HEADS,
    HOST_BITS,
    OF_ONE_FORM,
    SYS_FLAG_LOW_AT,
    TOPIC_V1_BYTES_MAX,
    agree,
    head_fields,
)

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 92  # 91 fixed and a topic of one character.
RECORD_BYTES_MAX: Final = 16 * 1024 * 1024  # NettyDecoder.FRAME_MAX_LENGTH: it must fit in a reply.
TOPIC_BYTES_MAX: Final = 32767

#: Properties not needed to consume a message.
_FOR_TOOLS: Final = frozenset({MSG_REGION, TRACE_ON, CLUSTER, FIRST_POP_TIME})
_HEAD_V4_BYTES: Final = HEADS[0].size
_NOT_PLAIN: Final = HOST_BITS | flags.COMPRESSED | flags.INNER_BATCH


class RecordHead(NamedTuple):
    """The fields of a record for dispatch, recovery and search, read without its body."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    body_start: int
    body_end: int
    topic: str
    properties: bytes


@lru_cache(maxsize=65536)  # Topics are limited to far fewer; one entry takes about 200 bytes.
def topic_prefix(topic: str) -> tuple[int, bytes]:
    """Return the magic for a topic, and the topic with its length prefix."""
    name = topic.encode()
    if len(name) <= TOPIC_V1_BYTES_MAX:
        return MAGIC_V1, len(name).to_bytes(1) + name
    if len(name) > TOPIC_BYTES_MAX:
        raise InvalidMessage(f"a topic of {len(name)} bytes")
    return MAGIC_V2, len(name).to_bytes(2) + name


def record_size(topic: str, body_size: int, properties_size: int, sys_flag: int) -> int:
    """Return the size in bytes of the record of a message with these sizes."""
    return HEADS[sys_flag & HOST_BITS].size + body_size + len(topic_prefix(topic)[1]) + 2 + properties_size


def encode_record(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: bytes,
    properties: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: bytes = bytes(HOST_V4_BYTES),
    store_timestamp_ms: int = 0,
    store_host: bytes = bytes(HOST_V4_BYTES),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode the record of a message; the store itself packs batches of them (`store.packing`)."""
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"{len(properties)} bytes of properties; at most {PROPERTIES_BYTES_MAX} fit")
    sys_flag = sys_flag & ~HOST_BITS | host_bits(born_host, store_host)
    head = HEADS[sys_flag & HOST_BITS]
    magic, topic_bytes = topic_prefix(topic)
    size = head.size + len(body) + len(topic_bytes) + 2 + len(properties)
    return b"".join((
        head.pack(
            size, magic, crc32(body) & 0x7FFF_FFFF, queue_id, flag, queue_offset, physical_offset,
            sys_flag, born_timestamp_ms, born_host, store_timestamp_ms, store_host, reconsume_times,
            prepared_transaction_offset, len(body),
        ),
        body, topic_bytes, len(properties).to_bytes(2), properties,
    ))  # fmt: skip


def stored_record(message: MessageExt, *, added: Collection[str]) -> bytes:
    """Return the record that a message was decoded from, or encode it again if that is no longer known.

    added: the properties added by the receiver, which the record does not have.
    """
    parts = message.as_stored()
    if parts is not None:
        head, body, properties = parts
        magic, topic = topic_prefix(message.topic)
        if head[4:8] == IN_A_BATCH:
            head = b"".join((head[:4], magic.to_bytes(4), head[8:]))
        record = b"".join((head, body, topic, len(properties).to_bytes(2), properties))
        if len(record) == int.from_bytes(head[:4]):
            return record
    return encode_message(message, without=added)


def encode_message(message: MessageExt, *, without: Collection[str] = ()) -> bytes:
    """Encode the record of a received message; its body is stored as it is, without compression bits.

    without: properties to leave out.
    """
    kept = {name: value for name, value in message.properties.items() if name not in without}
    return encode_record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        body=message.body,
        properties=encode_properties(kept),
        flag=message.flag,
        sys_flag=message.sys_flag & ~(flags.COMPRESSED | flags.COMPRESSION_MASK),
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(message.born_host),
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=encode_host(message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def decode_record(
    data: bytes, start: int = 0, *, decompress: bool = True, check_crc: bool = False, broker_name: str = ""
) -> tuple[MessageExt, int] | None:
    """Decode one record; None until it is complete, RemoteProtocolError if it is invalid."""
    bounds = _bounds(data, start, RemoteProtocolError)
    if bounds is None:
        return None
    end, head, magic = bounds
    body_start = start + head.size
    stored_head = bytes(data[start:body_start])
    fields = head_fields(stored_head)
    body_end, topic, properties_start = _tail(data, body_start, fields[14], end, magic, RemoteProtocolError)
    body = bytes(data[body_start:body_end])
    if check_crc and crc32(body) & 0x7FFF_FFFF != fields[2]:
        raise _damaged(topic, fields[3], fields[5])
    if decompress and fields[7] & flags.COMPRESSED:
        body = decompress_body(body, fields[7])
    properties = bytes(data[properties_start:end])
    message = Received(topic, fields[5], fields[12], body, broker_name, stored_head, properties, NONE_ADDED)
    return message, end


def decode_records(
    data: bytes,
    *,
    decompress: bool = True,
    check_crc: bool = False,
    broker_name: str = "",
    added: Mapping[str, str] = NONE_ADDED,
    unwrap: Callable[[bytes, int, list[MessageExt]], int] | None = None,
) -> list[MessageExt]:
    """Decode all records of a pull reply. A body that cannot be decompressed stays as stored.

    added: properties known to the receiver; the mapping is kept. unwrap: adds the messages of a batch, and
    returns its end. check_crc: raise BodyDamaged for the first body that does not match its checksum.
    """
    data = bytes(data)
    messages, start, length = list[MessageExt](), 0, len(data)
    unpack: Callable[[bytes, int], tuple[int, int, int, int, int, int, int]] = BRIEF_HEAD.unpack_from
    # The result of `_between` by the size of everything after the body, which many records share.
    known: dict[int, tuple[bytes, str] | None] = {}
    while start < length:
        if length - start >= RECORD_BYTES_MIN:
            # Most records have IPv4 hosts and a short topic. Others are left to `_bounds` and `_tail`, which
            # make the same checks and name the fault.
            size, magic, body_crc, queue_offset, sys_flag, reconsume_times, body_bytes = unpack(data, start)
            end = start + size
            body_start = start + _HEAD_V4_BYTES
            body_end = body_start + body_bytes
            if (
                magic == MAGIC_V1
                and not sys_flag & _NOT_PLAIN
                and body_start <= body_end < end - 2
                and end <= length
                and RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
            ):
                found = known.get(end - body_end)
                if found is None or not data.startswith(found[0], body_end):
                    found = known[end - body_end] = _between(data, body_end, end)
                if found is not None:
                    between, topic = found
                    if not start and length >= ALIKE_MIN * size and not length % size:
                        alike = decode_alike(data, body_bytes, found, broker_name, added, check_crc=check_crc)
                        if alike is not None:
                            return alike
                    body = data[body_start:body_end]
                    if check_crc and crc32(body) & 0x7FFF_FFFF != body_crc:
                        raise _damaged(topic, int.from_bytes(data[start + 12 : start + 16]), queue_offset)
                    messages.append(Received(
                        topic, queue_offset, reconsume_times, body, broker_name, data[start:body_start],
                        data[body_end + len(between) : end], added,
                    ))  # fmt: skip
                    start = end
                    continue
            if unwrap is not None and sys_flag & flags.WRAPPED == flags.WRAPPED:
                start = unwrap(data, start, messages)
                continue
        message, start = _decode_any(data, start, decompress, check_crc, broker_name, added)
        messages.append(message)
    return messages


def _between(data: bytes, body_end: int, end: int) -> tuple[bytes, str] | None:
    """Return the bytes between a body and its properties, and the topic in them; None if lengths disagree."""
    topic_end = body_end + 1 + data[body_end]
    properties_start = topic_end + 2
    if properties_start > end or int.from_bytes(data[topic_end:properties_start]) != end - properties_start:
        return None
    return data[body_end:properties_start], _topic(data[body_end + 1 : topic_end])


def _decode_any(
    data: bytes, start: int, decompress: bool, check_crc: bool, broker_name: str, added: Mapping[str, str]
) -> tuple[MessageExt, int]:
    decoded = decode_record(data, start, decompress=False, check_crc=check_crc, broker_name=broker_name)
    if decoded is None:
        raise RemoteProtocolError(f"the last record of {len(data)} bytes is cut off at {start}")
    if decompress and decoded[0].sys_flag & flags.COMPRESSED:
        decompress_or_keep(decoded[0])
    decoded[0].add_properties(added)
    return decoded


def peek_record(data: bytes, start: int = 0) -> RecordHead | None:
    """Read the fields of a stored record; None until it is complete, StoreCorrupt if invalid or a blank."""
    bounds = _bounds(data, start, StoreCorrupt)
    if bounds is None:
        return None
    end, head, magic = bounds
    fields = head.unpack_from(data, start)
    body_start = start + head.size
    body_end, topic, properties_start = _tail(data, body_start, fields[14], end, magic, StoreCorrupt)
    return RecordHead(
        fields[0], magic, fields[2], fields[3], fields[5], fields[6], fields[7], fields[10],
        body_start, body_end, topic, bytes(data[properties_start:end]),
    )  # fmt: skip


def has_good_crc(data: bytes, head: RecordHead) -> bool:
    """Return whether the body of a peeked record matches its checksum."""
    return crc32(memoryview(data)[head.body_start : head.body_end]) & 0x7FFF_FFFF == head.body_crc


def damaged_records(data: bytes) -> list[RecordHead]:
    """Return the records of a pull reply whose bodies do not match their checksums."""
    found: list[RecordHead] = []
    start = 0
    while (head := peek_record(data, start)) is not None:
        if not has_good_crc(data, head):
            found.append(head)
        start += head.size
    return found


def _damaged(topic: str, queue_id: int, queue_offset: int) -> BodyDamaged:
    place = f"{topic}, queue {queue_id}, offset {queue_offset}"
    return BodyDamaged(f"the body of the message at {place} does not match its checksum")


def encode_blank(size: int) -> bytes:
    """Encode the mark at the end of a file: the next record is in the next file."""
    return struct.pack(">II", size, BLANK_MAGIC)


def host_bits(born_host: bytes, store_host: bytes) -> int:
    """Return the bits of the system flag that state the lengths of the hosts."""
    born = flags.BORN_HOST_V6 if len(born_host) == HOST_V6_BYTES else 0
    return born | (flags.STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else 0)


def _bounds(data: bytes, start: int, error: type[LibraError]) -> tuple[int, struct.Struct, int] | None:
    """Return a record's end, its struct, and its magic; None until it is complete."""
    if len(data) - start < 8:
        return None
    size = int.from_bytes(data[start : start + 4])
    magic = int.from_bytes(data[start + 4 : start + 8])
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise error(f"no record begins at {start}: magic {magic:#010x}")
    if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
        raise error(f"a record of {size} bytes at {start}")
    end = start + size
    if len(data) < end:
        return None
    head = HEADS[data[start + SYS_FLAG_LOW_AT] & HOST_BITS]
    if head.size > size:
        raise error(f"a record of {size} bytes at {start} is too short for its hosts")
    return end, head, magic


def _tail(
    data: bytes, body_start: int, body_length: int, end: int, magic: int, error: type[LibraError]
) -> tuple[int, str, int]:
    """Return the body's end, the topic, and the properties' start; they must end where the record does."""
    body_end = body_start + body_length
    topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_start > end:
        raise error(f"a body of {body_length} bytes runs past its record")
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start])
    properties_start = topic_end + 2
    if properties_start > end:
        raise error("a topic runs past its record")
    if properties_start + int.from_bytes(data[topic_end:properties_start]) != end:
        raise error("the parts of a record do not add up to its size")
    return body_end, _topic(bytes(data[topic_start:topic_end])), properties_start


@lru_cache(maxsize=65536)
def _topic(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def with_topic(record: bytes, topic: str, added: Mapping[str, str]) -> bytes:
    """Return a stored record under another topic, with added properties; existing ones are kept.

    If they do not fit, they replace properties that only tools show, or are left out: Java's clients read the
    length as a signed number, and one that is too large garbles the records that follow.
    """
    head = peek_record(record)
    if head is None:
        raise StoreCorrupt("a record is cut off")
    magic, topic_bytes = topic_prefix(topic)
    have = decode_properties(head.properties)
    text = properties_to_text({name: value for name, value in added.items() if name not in have})
    separator = b"\x02" if head.properties and not head.properties.endswith(b"\x02") else b""
    properties = head.properties + separator + text.encode()
    if len(properties) > PROPERTIES_BYTES_MAX:
        needed = {name: value for name, value in have.items() if name not in _FOR_TOOLS}
        properties = encode_properties({**added, **needed})
        if len(properties) > PROPERTIES_BYTES_MAX:
            properties = head.properties
    size = head.body_end + len(topic_bytes) + 2 + len(properties)
    return b"".join((
        size.to_bytes(4), magic.to_bytes(4), record[8 : head.body_end], topic_bytes,
        len(properties).to_bytes(2), properties,
    ))  # fmt: skip


#: Ours: fewer records are decoded faster one by one than by preparing a form.
ALIKE_MIN: Final = 16
#: Ours: the number of records unpacked by one call.
GROUP: Final = 32
#: Ours: the number of cached forms, of up to 4 KiB each.
FORMS_MAX: Final = 64
#: The numbers read from a head: checksum, queue offset, reconsume times.
_NUMBERS: Final = "8xI8xq44xi12x"
assert struct.calcsize(f">{_NUMBERS}") == _HEAD_V4_BYTES


def decode_alike(
    data: bytes,
    body_bytes: int,
    found: tuple[bytes, str],
    broker_name: str,
    added: Mapping[str, str],
    *,
    check_crc: bool,
) -> list[MessageExt] | None:
    """Decode records of the same form as the first; None if one differs or a body is damaged.

    The first one is a whole record with IPv4 hosts. body_bytes: the size of its body. found: the bytes
    between that and its properties, and the topic in them. Every record's parts are where the first one's
    are, so all are whole.
    """
    between, topic = found
    size = int.from_bytes(data[:4])
    count = len(data) // size
    properties_bytes = size - _HEAD_V4_BYTES - body_bytes - len(between)
    parts = f"{_HEAD_V4_BYTES}s{body_bytes}s{len(between)}s{properties_bytes}s"
    heads, bodies, betweens, properties = _columns(data, parts, 4, count)
    joined = b"".join(heads)
    if betweens.count(between) != count or not agree(joined, _HEAD_V4_BYTES, OF_ONE_FORM):
        return None
    crcs, offsets, reconsume_times = _columns(joined, _NUMBERS, 3, count)
    if check_crc and [crc & 0x7FFF_FFFF for crc in map(crc32, bodies)] != crcs:
        return None
    return list(
        map(
            Received, repeat(topic), offsets, reconsume_times, bodies, repeat(broker_name), heads, properties,
            repeat(added),
        )
    )  # fmt: skip


def _columns(data: bytes, form: str, number: int, count: int) -> tuple[list[Any], ...]:
    """Return the columns of data in which a form repeats `count` times. number: of columns."""
    columns: tuple[list[Any], ...] = tuple([] for _ in range(number))
    at = 0
    while count > 0:
        group = _repeated(form, min(count, GROUP))
        values = group.unpack_from(data, at)
        for first, column in enumerate(columns):
            column += values[first::number]
        at += group.size
        count -= GROUP
    return columns


@lru_cache(FORMS_MAX)
def _repeated(form: str, count: int) -> struct.Struct:
    """Return a form repeated `count` times: one call unpacks all, without a tuple for each record."""
    return struct.Struct(">" + form * count)


#: Ours: fewer records are checked faster one by one.
ALIKE_CHECKED_MIN: Final = 4
#: Ours: fewer records (plus two for each byte of the topic) are compared faster one by one than by strides.
STRIDES_MIN: Final = 64
_OFFSET_AT: Final = 28
_FRAME: Final = struct.Struct(">II20xqi")  # Size, magic, physical offset, system flag.
_WITH_BODY: Final = struct.Struct(">II20xqi44xi")  # The same, with IPv4 hosts and the body's length.
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")
_HEAD_SIZES: Final = {bits: head.size for bits, head in HEADS.items()}
assert _WITH_BODY.size == _HEAD_V4_BYTES


def damaged_places(
    data: bytes | bytearray, offsets: Sequence[int], sizes: Sequence[int]
) -> set[tuple[int, int]]:
    """Return the places (physical offset and size) without a whole record. data: all places, joined.

    Records of the same form take 0.2 µs each, or 0.1 if there are many. Most others have IPv4 hosts and a
    short topic and take 0.35 µs, half of `has_whole_frame`, which checks the rest.
    """
    count = len(sizes)
    if count >= ALIKE_CHECKED_MIN and sizes.count(sizes[0]) == count and _are_alike(data, offsets, sizes[0]):
        return set()
    damaged = set()
    unpack: Callable[[bytes | bytearray, int], tuple[int, int, int, int, int]] = _WITH_BODY.unpack_from
    length = len(data)
    end = 0
    for offset, size in zip(offsets, sizes, strict=True):
        at = end
        end = at + size
        if size >= RECORD_BYTES_MIN and end <= length:
            found_size, magic, found_offset, sys_flag, body_bytes = unpack(data, at)
            body_end = at + _HEAD_V4_BYTES + body_bytes
            if (
                magic == MAGIC_V1
                and found_size == size
                and found_offset == offset
                and not sys_flag & HOST_BITS
                and at < body_end < end - 2
            ):
                topic_end = body_end + 1 + data[body_end]
                if topic_end + 2 <= end and (
                    topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) == end
                ):
                    continue
        if not has_whole_frame(data, at, size, offset):
            damaged.add((offset, size))
    return damaged


def _are_alike(data: bytes | bytearray, offsets: Sequence[int], size: int) -> bool:
    """Return whether all records are whole, of one size, and of the same form.

    The form is the size, magic, system flag, body length, topic and length of the properties. Each record
    must have its own physical offset.
    """
    if len(data) != len(offsets) * size or size < RECORD_BYTES_MIN:
        return False
    found_size, magic, _, sys_flag, body_bytes = _WITH_BODY.unpack_from(data)
    body_end = _HEAD_V4_BYTES + body_bytes
    if found_size != size or magic != MAGIC_V1 or sys_flag & HOST_BITS:
        return False
    if body_bytes < 0 or body_end >= size:
        return False
    topic_bytes = 1 + data[body_end]
    properties_bytes = size - body_end - topic_bytes - 2
    if properties_bytes < 0:
        return False
    form = _form(body_bytes, topic_bytes + 2, properties_bytes)
    beginning, _, flag, body, ending = form.unpack_from(data)
    if int.from_bytes(ending[-2:]) != properties_bytes:  # A damaged record may hold any number here.
        return False
    if len(offsets) >= STRIDES_MIN + 2 * topic_bytes:
        places = (*OF_ONE_FORM, *range(body_end, body_end + topic_bytes + 2))
        return agree(data, size, places) and _have_offsets(data, offsets, size)
    wanted = iter(offsets)
    for each_beginning, offset, each_flag, each_body, each_ending in form.iter_unpack(data):
        if (
            offset != next(wanted)
            or each_beginning != beginning
            or each_body != body
            or each_ending != ending
            or each_flag != flag
        ):
            return False
    return True


def _have_offsets(data: bytes | bytearray, offsets: Sequence[int], size: int) -> bool:
    """Return whether records of one size have these physical offsets; uses strides like `agree`."""
    wanted = struct.pack(f">{len(offsets)}q", *offsets)
    return all(data[_OFFSET_AT + byte :: size] == wanted[byte::8] for byte in range(8))


@lru_cache(FORMS_MAX)
def _form(body_bytes: int, topic_bytes: int, properties_bytes: int) -> struct.Struct:
    """Return a layout that extracts the parts of a record to compare, and skips everything between them.

    Size and magic; the physical offset; the system flag; the body's length; the topic with its length and
    the length of the properties.
    """
    return struct.Struct(f">8s20xq4s44x4s{body_bytes}x{topic_bytes}s{properties_bytes}x")


def has_whole_frame(data: bytes | bytearray, start: int, size: int, physical_offset: int) -> bool:
    """Return whether a record of this size and place begins at `start`, and its parts add up."""
    end = start + size
    if len(data) < end:
        return False
    try:
        found_size, magic, found_offset, sys_flag = _FRAME.unpack_from(data, start)
        if found_size != size or found_offset != physical_offset:
            return False
        body_at = start + _HEAD_SIZES[sys_flag & HOST_BITS]
        length_at = body_at + _INT.unpack_from(data, body_at - 4)[0]
        if not start < length_at < end:
            return False
        if magic == MAGIC_V1:
            properties_at = length_at + 3 + data[length_at]
        elif magic == MAGIC_V2:
            properties_at = length_at + 4 + _SHORT.unpack_from(data, length_at)[0]
        else:
            return False
        return bool(properties_at + _SHORT.unpack_from(data, properties_at - 2)[0] == end)
    except (struct.error, IndexError):
        return False
