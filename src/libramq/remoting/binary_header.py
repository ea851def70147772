"""The ROCKETMQ (binary) form of a command's header.

    code (2) | language (1) | version (2) | opaque (4) | flag (4) |
    remark length (4), remark | ext length (4), { key length (2), key, value length (4), value } …

The code is a signed 16-bit number, so codes above 32767 (POP) cannot be carried.
Upstream: remoting/protocol/RocketMQSerializable.java.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting.command import Command, Serialization

_FIXED = Struct(">hBhiii")
_FIXED_BYTES: Final = _FIXED.size  # 17, the remark's length included
_KEY = Struct(">h")

LANGUAGE_NAMES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER",
    "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
_LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGE_NAMES)}
_OTHER: Final = _LANGUAGE_NUMBERS["OTHER"]


def decode_binary_header(data: bytes) -> Command:
    """Decode a header into a command without body."""
    size = len(data)
    if size < _FIXED_BYTES + 4:
        raise RemoteProtocolError(f"binary header of {size} bytes")
    code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
    position = _FIXED_BYTES
    remark = None
    if remark_bytes:
        if not 0 < remark_bytes <= size - position - 4:
            raise RemoteProtocolError(f"remark of {remark_bytes} bytes in a header of {size}")
        remark = _text(data[position : position + remark_bytes])
        position += remark_bytes
    ext_bytes = int.from_bytes(data[position : position + 4], signed=True)
    position += 4
    if not 0 <= ext_bytes <= size - position:
        raise RemoteProtocolError(f"ext fields of {ext_bytes} bytes in a header of {size}")
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        remark=remark,
        ext=_decode_ext(data, position, position + ext_bytes) if ext_bytes else {},
        language=LANGUAGE_NAMES[language] if language < len(LANGUAGE_NAMES) else "OTHER",
        version=version,
        serialization=Serialization.ROCKETMQ,
    )


def _decode_ext(data: bytes, position: int, end: int) -> dict[str, str]:
    """Decode the ext fields; hot, about 0.3 µs per field.

    Nearly all are ASCII: then they are decoded as one text and sliced, and lengths are read byte by byte,
    which costs less than a slice each.
    """
    octets = data[position:end]
    text = octets.decode("ascii") if octets.isascii() else None
    size = len(octets)
    ext: dict[str, str] = {}
    at = 0
    try:
        while at < size:
            key_start = at + 2
            key_end = key_start + (octets[at] << 8 | octets[at + 1])
            value_start = key_end + 4
            at = value_start + (
                octets[key_end] << 24
                | octets[key_end + 1] << 16
                | octets[key_end + 2] << 8
                | octets[key_end + 3]
            )
            if at > size:
                raise RemoteProtocolError("an ext field runs past its header")
            if at > value_start and key_end > key_start:  # A zero length means null.
                if text is not None:
                    ext[text[key_start:key_end]] = text[value_start:at]
                else:
                    ext[octets[key_start:key_end].decode()] = octets[value_start:at].decode()
    except IndexError:
        raise RemoteProtocolError("the length of an ext field runs past its header") from None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ext field: {error}") from None
    return ext


def encode_binary_header(command: Command) -> bytes:
    """Encode a header."""
    if not -0x8000 <= command.code <= 0x7FFF:
        raise LocalProtocolError(f"code {command.code} does not fit the binary header; use JSON")
    remark = command.remark.encode() if command.remark else b""
    parts: list[bytes] = []
    for key, value in command.ext.items():
        if key and value:
            value_bytes = value.encode()
            parts += (_encode_key(key), len(value_bytes).to_bytes(4), value_bytes)
    ext = b"".join(parts)
    language = _LANGUAGE_NUMBERS.get(command.language, _OTHER)
    fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    return fixed + remark + len(ext).to_bytes(4) + ext


@lru_cache(maxsize=1024)
def _encode_key(key: str) -> bytes:
    """Encode an ext field's key; there are few, and each is in every header of its kind."""
    data = key.encode()
    return _KEY.pack(len(data)) + data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"remark: {error}") from None
