"""The two ids of a message: the offset id (its storage position) and the unique id (assigned by its
producer): how each is encoded and decoded; and the handle by which a producer recalls a pending timer
message.

    offset id   host address (4 or 16) | port (4) | physical offset (8)                 = 32 or 56 hex digits
    unique id   ip (4 or 16) | pid (2) | instance (4) | ms since the month began (4) | counter (2)

Both are upper-case hexadecimal. The broker answers a send with the offset id; consumers show the unique id
(property UNIQ_KEY) if there is one.

The physical offset in an offset id is a place: the position of the record in the log and, from bit 48
upwards, the number of the message within an inner batch. So each message of a batch has an id of its own;
Apache's clients give all messages of a batch one id.

    recall handle   base64 of: v1 | topic | broker name | time in ms | unique id        with spaces between

The broker returns it for the send of a timer message; the producer sends it back with RECALL_MESSAGE.

Upstream: common/message/MessageDecoder.createMessageId, MessageClientIDSetter; RecallMessageHandle.java.
"""

import base64
import binascii
import ipaddress
import random
import struct
import time
from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from libramq.clock import Clock
from libramq.errors import RemoteProtocolError

HOST_V4_BYTES: Final = 8  # Four bytes of address, four of port.
HOST_V6_BYTES: Final = 20
OFFSET_ID_V4_LENGTH: Final = 32
OFFSET_ID_V6_LENGTH: Final = 56
UNIQUE_ID_V4_LENGTH: Final = 32
UNIQUE_ID_V6_LENGTH: Final = 56
DAY_MS: Final = 86_400_000
_COUNTS_PER_MS = 0x1_0000
_VERSION: Final = "v1"
#: Ours: room for a topic, a broker, a time and a message.
HANDLE_BYTES_MAX: Final = 1024


class OffsetId(NamedTuple):
    """A decoded offset id."""

    host: tuple[str, int]
    physical_offset: int


def encode_host(host: tuple[str, int]) -> bytes:
    """Encode address and port as in a record: 8 or 20 bytes."""
    address, port = host
    return _pack_address(address) + struct.pack(">i", port)


@lru_cache(maxsize=4096)
def born_host(address: str) -> bytes:
    """Encode a client's "host:port" as in records."""
    host, _, port = address.rpartition(":")
    return encode_host((host or "127.0.0.1", int(port or 0)))


def decode_host(data: bytes) -> tuple[str, int]:
    """Decode address and port from 8 or 20 bytes."""
    address = data[:-4]
    port = int.from_bytes(data[-4:], signed=True)
    if len(address) == 4:
        return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}", port
    return str(ipaddress.IPv6Address(address)), port


def encode_offset_id(host: bytes, physical_offset: int) -> str:
    """Return the offset id of a record; `host` is the store host in its 8 or 20 bytes."""
    return f"{_host_text(host)}{physical_offset:016X}"


def encode_offset_ids(host: bytes, physical_offsets: Sequence[int]) -> str:
    """Return the offset ids of records at one store host, separated by commas; 0.05 µs each."""
    text, offsets = _host_text(host), struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
    return text + offsets.hex(",", 8).upper().replace(",", f",{text}") if offsets else ""


@lru_cache(maxsize=64)
def _host_text(host: bytes) -> str:
    """Return a store host as written in offset ids; a broker has only one."""
    return host.hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Decode an offset id; RemoteProtocolError if it is invalid."""
    if len(text) not in (OFFSET_ID_V4_LENGTH, OFFSET_ID_V6_LENGTH):
        raise RemoteProtocolError(f"an offset id has 32 or 56 characters, not {len(text)}")
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise RemoteProtocolError(f"{text!r} is not an offset id: not hexadecimal") from None
    if len(data) * 2 != len(text):  # bytes.fromhex ignores white space.
        raise RemoteProtocolError(f"{text!r} is not an offset id: not hexadecimal")
    return OffsetId(decode_host(data[:-8]), int.from_bytes(data[-8:], signed=True))


class UniqueId(NamedTuple):
    """The information in a unique id about its producer. pid: the lowest 16 bits."""

    ip: str
    pid: int
    instance: int
    since_month_ms: int
    counter: int


def decode_unique_id(text: str) -> UniqueId:
    """Decode a unique id; RemoteProtocolError if invalid. An offset id is indistinguishable from one."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in (UNIQUE_ID_V4_LENGTH, UNIQUE_ID_V6_LENGTH) or len(data) * 2 != len(text):
        raise RemoteProtocolError(f"a unique id has 32 or 56 hexadecimal digits, unlike {text[:60]!r}")
    return UniqueId(_address_text(data[:-12]), *struct.unpack(">HIIH", data[-12:]))


@lru_cache(maxsize=1024)
def _address_text(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def born_ms(since_month_ms: int, seen_ms: int, zone: tzinfo | None = None) -> int:
    """Return the creation time of a unique id, given a later time at which it was seen.

    The id counts from the start of a month in its producer's time zone; this machine's is the default, as in
    Apache's tools (getNearlyTimeFromID). The result may be up to a day after `seen_ms`, as clocks and zones
    differ.
    """
    seen = datetime.fromtimestamp(seen_ms // 1000, zone)
    this_month = _month_start_ms(seen.year, seen.month, zone)
    if this_month + since_month_ms <= seen_ms + DAY_MS:
        return this_month + since_month_ms
    before = (seen.year, seen.month - 1) if seen.month > 1 else (seen.year - 1, 12)
    return _month_start_ms(*before, zone) + since_month_ms


@lru_cache(maxsize=64)
def _month_start_ms(year: int, month: int, zone: tzinfo | None) -> int:
    return int(datetime(year, month, 1, tzinfo=zone).timestamp()) * 1000


#: The hexadecimal digits of a unique id whose producer has an IPv6 address: 16 + 2 + 4 + 4 + 2 bytes.
UNIQUE_ID_V6_CHARACTERS: Final = 56


class MessageIds(Protocol):
    """A source of unique ids for messages."""

    def __call__(self) -> str:
        """Return the next id."""

    def many(self, count: int) -> list[str]:
        """Return the next ids."""


class UniqueIdGenerator:
    """Generates unique ids; one per process, or per simulated process.

    A call costs about half a microsecond. Ids stay unique if the clock stands still or goes back: their time
    then runs ahead of the clock.
    """

    def __init__(self, ip: str, pid: int, clock: Clock, randomness: random.Random) -> None:
        instance = randomness.getrandbits(32)
        self._prefix = (_pack_address(ip) + struct.pack(">HI", pid & 0xFFFF, instance)).hex().upper()
        self._wall_ms = clock.wall_ms
        self._counter = randomness.getrandbits(16)
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._time_ms = -1
        self._left = 0

    def __call__(self) -> str:
        """Return the next unique id."""
        wall_ms = int(self._wall_ms())  # An id contains part of a date.
        if wall_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_around(wall_ms)
            self._time_ms = -1
        since_ms = wall_ms - self._month_start_ms
        if since_ms > self._time_ms:
            self._time_ms = since_ms
            self._left = _COUNTS_PER_MS
        elif not self._left:
            self._time_ms += 1
            self._left = _COUNTS_PER_MS
        self._left -= 1
        self._counter = counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{self._time_ms:08X}{counter:04X}"

    def many(self, count: int) -> list[str]:
        """Return the next unique ids, each in less than a tenth of a call's time."""
        ids: list[str] = []
        while len(ids) < count:
            ids.append(self())  # Reads the clock, and moves to the next millisecond when one is used up.
            first = self._counter + 1
            rest = min(count - len(ids), self._left, _COUNTS_PER_MS - first)
            if rest:
                counters = struct.pack(f">{rest}H", *range(first, first + rest)).hex(",", 2).upper()
                head = f"{self._prefix}{self._time_ms:08X}"
                ids += (head + counters.replace(",", f",{head}")).split(",")
                self._counter += rest
                self._left -= rest
        return ids


def _month_around(wall_ms: int) -> tuple[int, int]:
    """Return the start and end of the current month in local time, as tools that decode ids assume."""
    today = time.localtime(wall_ms // 1000)
    start = time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((today.tm_year, today.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(start) * 1000, int(end) * 1000


@lru_cache(maxsize=4096)  # Saves 2 µs each time a copy packs its producer's address again.
def _pack_address(address: str) -> bytes:
    return ipaddress.ip_address(address.partition("%")[0]).packed


#: Ours, for the offset: enough for a log of 256 TiB; 15 bits are left for the number.
PLACE_BITS: Final = 48
_PLACE_MASK: Final = (1 << PLACE_BITS) - 1


def place_of(physical_offset: int, number: int) -> int:
    """Return the place of a message: the physical offset of its batch and its number within it."""
    return physical_offset | number << PLACE_BITS


def split_place(place: int) -> tuple[int, int]:
    """Return the physical offset of a place's record and the message's number within it."""
    return place & _PLACE_MASK, place >> PLACE_BITS


def inner_offset_ids(first: str, count: int) -> list[str]:
    """Return the offset ids of a batch's messages, given that of the first; none if that is no such id.

    One takes 0.05 µs: the number within the batch is the first four of the place's 16 digits.
    """
    host, number, offset = first[:-16], first[-16:-12], first[-12:]
    if number != "0000" or not count:
        return []
    return f"{host}{_numbers(count).replace(',', f'{offset},{host}')}{offset}".split(",")


@lru_cache(maxsize=16)
def _numbers(count: int) -> str:
    """Return the numbers of a batch's messages as written in ids; cached, as many batches are alike."""
    return struct.pack(f">{count}H", *range(count)).hex(",", 2).upper()


class RecallHandle(NamedTuple):
    """The handle by which a producer recalls a timer message. time_ms: a time in the message's slot."""

    topic: str
    broker_name: str
    time_ms: str
    unique_key: str

    def encode(self) -> str:
        """Return the handle's text."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle | None:
    """Decode a handle; None if it is invalid or too long, as a truncated one would name another message."""
    if len(text) > HANDLE_BYTES_MAX:
        return None
    try:
        parts = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < 5 or parts[0] != _VERSION:
        return None
    return RecallHandle(*parts[1:5])
