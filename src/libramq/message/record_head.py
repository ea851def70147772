"""A record's head: its fields up to the body, read without the body; drawn in `message.record`."""

import struct
from collections.abc import Iterable
from typing import Final

from libramq.message import sys_flag as flags
from libramq.message.ids import HOST_V4_BYTES, HOST_V6_BYTES

#: The fields in the order of `HEADS`.
RecordFields = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
HOST_BITS: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6
TOPIC_V1_BYTES_MAX: Final = 127  # The length byte is signed on the Java side.
#: The positions in the heads of records at which those of one form agree: size and magic, system flag, body
#: length after IPv4 hosts.
OF_ONE_FORM: Final = (*range(8), *range(36, 40), *range(84, 88))
#: The position of the system flag's low byte, which has the host bits.
SYS_FLAG_LOW_AT: Final = 39


def _head(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">IIIiiqqiq{born}sq{store}siqi")


# The fields up to the body, by the two host bits of the system flag.
HEADS: Final = {
    0: _head(HOST_V4_BYTES, HOST_V4_BYTES),
    flags.BORN_HOST_V6: _head(HOST_V6_BYTES, HOST_V4_BYTES),
    flags.STORE_HOST_V6: _head(HOST_V4_BYTES, HOST_V6_BYTES),
    HOST_BITS: _head(HOST_V6_BYTES, HOST_V6_BYTES),
}
#: The same for a run, with the fields that its messages share already packed: size, magic (4), body crc,
#: queue id (4), flag, queue offset, physical offset, everything from the system flag to the body, body
#: length.
RUN_HEADS: Final = {bits: struct.Struct(f">I4sI4siqq{head.size - 40}si") for bits, head in HEADS.items()}
#: The fields read at once from a record with IPv4 hosts: size, magic, body crc, queue offset, system flag,
#: reconsume times, and the body's length.
BRIEF_HEAD: Final = struct.Struct(">III8xq8xi32xi8xi")
assert BRIEF_HEAD.size == HEADS[0].size
_STORED_MS_AT: Final = 56  # With an IPv4 born host.
_LONGER_BORN_HOST: Final = HOST_V6_BYTES - HOST_V4_BYTES
#: The latest position at which the store time ends.
STORED_BY_BYTES: Final = _STORED_MS_AT + _LONGER_BORN_HOST + 8
#: The fields read by a search by time: size, born time.
BORN_HEAD: Final = struct.Struct(">I36xq")


def stored_ms_of(head: bytes) -> int:
    """Return the store time of a record, given its first STORED_BY_BYTES."""
    at = _STORED_MS_AT + (_LONGER_BORN_HOST if head[SYS_FLAG_LOW_AT] & flags.BORN_HOST_V6 else 0)
    return int.from_bytes(head[at : at + 8], signed=True)


def head_fields(head: bytes) -> RecordFields:
    """Return all fields of a head."""
    fields: RecordFields = HEADS[head[SYS_FLAG_LOW_AT] & HOST_BITS].unpack(head)
    return fields


def greatest_born_ms(data: bytes | memoryview) -> int:
    """Return the latest born time of whole records back to back; 0.2 µs a record."""
    at, end, greatest = 0, len(data), -1
    while at < end:
        size, born_ms = BORN_HEAD.unpack_from(data, at)
        if born_ms > greatest:
            greatest = born_ms
        at += size
    return greatest


def first_born(data: bytes | memoryview, timestamp_ms: int) -> tuple[int, int] | None:
    """Return the position and size of the first record born at or after a time."""
    at, end = 0, len(data)
    while at < end:
        size, born_ms = BORN_HEAD.unpack_from(data, at)
        if born_ms >= timestamp_ms:
            return at, size
        at += size
    return None


def agree(data: bytes | bytearray, size: int, places: Iterable[int]) -> bool:
    """Return whether contiguous pieces of this size have the same bytes at these positions.

    A stride through all of them costs 0.25 µs and next to nothing a piece.
    """
    count = len(data) // size
    return all(data[at::size].count(data[at]) == count for at in places)
