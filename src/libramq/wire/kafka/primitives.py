"""Kafka's primitive types, their encoding and decoding; the limit of array elements.

    int8 … int64     big endian                     varint           zig-zag, 7 bits a byte, lowest first
    uuid             16 bytes
    string, bytes    length (2 or 4), content       uvarint          the same without zig-zag
    array            length (4), elements           compact forms    uvarint of length + 1; 0 means null

Upstream: common/protocol/types/Type.java, KIP-482.
"""

import struct
from typing import Final

from libramq.errors import RemoteProtocolError

#: Ours: the elements in all arrays of a request; one for 10,000 partitions has about as many. An element
#: takes hundreds of bytes of memory, and as little as one on the wire.
ELEMENTS_MAX: Final = 20_000
_UVARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10
UUID_BYTES: Final = 16
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class Reader:
    """Reads one message from start to end; raises RemoteProtocolError if it is malformed."""

    __slots__ = ("_elements_left", "at", "data", "end")

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self.at = start
        self.end = len(data)
        self._elements_left = ELEMENTS_MAX

    @property
    def elements(self) -> int:
        """Return the number of array elements read so far."""
        return ELEMENTS_MAX - self._elements_left

    def int8(self) -> int:
        """Read a signed byte."""
        return int.from_bytes(self.raw(1), signed=True)

    def boolean(self) -> bool:
        """Read a boolean."""
        return self.raw(1) != b"\0"

    def int16(self) -> int:
        """Read two bytes."""
        return self._number(_INT16, 2)

    def int32(self) -> int:
        """Read four bytes."""
        return self._number(_INT32, 4)

    def int64(self) -> int:
        """Read eight bytes."""
        return self._number(_INT64, 8)

    def uuid(self) -> bytes:
        """Read a topic's id."""
        return self.raw(UUID_BYTES)

    def uvarint(self) -> int:
        """Read an unsigned number of at most 32 bits."""
        value = self._groups(_UVARINT_BYTES_MAX)
        if value > 0xFFFF_FFFF:
            raise RemoteProtocolError("a varint has more than 32 bits")
        return value

    def varint(self) -> int:
        """Read a signed number of at most 32 bits."""
        value = self.uvarint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Read a signed number of at most 64 bits."""
        value = self._groups(_VARLONG_BYTES_MAX)
        if value > 0xFFFF_FFFF_FFFF_FFFF:
            raise RemoteProtocolError("a varlong has more than 64 bits")
        return (value >> 1) ^ -(value & 1)

    def raw(self, size: int) -> bytes:
        """Read that many bytes."""
        end = self.at + size
        if size < 0 or end > self.end:
            raise RemoteProtocolError(f"{size} bytes are announced at {self.at} of {self.end}")
        value = self.data[self.at : end]
        self.at = end
        return value

    def text(self, size: int) -> str:
        """Read that many bytes of UTF-8."""
        try:
            return self.raw(size).decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"the string before {self.at} is no UTF-8") from None

    def count(self, announced: int) -> int:
        """Return the announced number of elements, if that many can follow: each takes at least a byte."""
        if announced < 0 or announced > self.end - self.at or announced > self._elements_left:
            raise RemoteProtocolError(
                f"an array of {announced} elements; {self.end - self.at} bytes are left, and"
                f" {ELEMENTS_MAX} elements allowed in a request"
            )
        self._elements_left -= announced
        return announced

    def skip_tags(self) -> None:
        """Skip tagged fields: this version of the message defines none."""
        for _ in range(self.count(self.uvarint())):
            self.uvarint()
            self.raw(self.uvarint())

    def finish(self) -> None:
        """Require that nothing follows."""
        if self.at != self.end:
            raise RemoteProtocolError(f"{self.end - self.at} bytes follow the message")

    def _number(self, form: struct.Struct, size: int) -> int:
        at = self.at
        if at + size > self.end:
            raise RemoteProtocolError(f"the message ends at {self.end}, within a number")
        self.at = at + size
        value: int = form.unpack_from(self.data, at)[0]
        return value

    def _groups(self, bytes_max: int) -> int:
        value = shift = 0
        data, at, end = self.data, self.at, self.end
        for position in range(at, min(at + bytes_max, end)):
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = position + 1
                return value
            shift += 7
        raise RemoteProtocolError(f"a varint at {at} does not end")


def encode_int8(value: int) -> bytes:
    """Encode a signed byte."""
    return value.to_bytes(1, signed=True)


def encode_uuid(value: bytes) -> bytes:
    """Return a topic's id unchanged."""
    assert len(value) == UUID_BYTES, "an id has 16 bytes"
    return value


def encode_boolean(value: bool) -> bytes:
    """Encode a boolean."""
    return b"\1" if value else b"\0"


encode_int16: Final = _INT16.pack
encode_int32: Final = _INT32.pack
encode_int64: Final = _INT64.pack


#: Each byte by its value.
_BYTES: Final = [bytes((value,)) for value in range(0x100)]


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned number; most take a byte or two."""
    if value < 0x80:
        return _BYTES[value]
    if value < 0x4000:
        return _BYTES[value & 0x7F | 0x80] + _BYTES[value >> 7]
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def encode_varint(value: int) -> bytes:
    """Encode a signed number of at most 64 bits."""
    return encode_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
