"""The frame: a command on the wire, with a JSON or a binary header; how large a frame and a header may be.

    length (4) | serialisation (1) | header length (3) | header | body

`length` counts everything after it. The header is JSON, the default of Apache's Java client, or ROCKETMQ,
binary:

    code (2) | language (1) | version (2) | opaque (4) | flag (4) |
    remark length (4), remark | ext length (4), { key length (2), key, value length (4), value } …

The binary code is a signed 16-bit number, so codes above 32767 (POP) cannot be carried.

Upstream: NettyEncoder.java, NettyDecoder.java, RocketMQSerializable.java, RemotingSerializable.java.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Annotated, Final

import msgspec

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting.command import Command, Serialization

#: NettyDecoder.FRAME_MAX_LENGTH (com.rocketmq.remoting.frameMaxLength), for the whole frame.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: Ours: properties have at most 32 KiB, and the rest of a header is names and numbers.
HEADER_BYTES_MAX: Final = 1024 * 1024

#: Ours: the largest header of Apache's clients, a send's, has some twenty. A hundred thousand fields fit into
#: a header and took 0.2 s to decode, before any check of the sender.
FIELDS_MAX: Final = 1_000

#: Ours: the body size from which a copy costs more than writing a separate part.
LARGE_BODY_BYTES: Final = 256 * 1024

#: The length; the serialisation together with the header's length.
_BEGINNING = Struct(">iI")
#: Plain numbers: looking up an enumeration member takes longer than everything else here.
_JSON: Final = int(Serialization.JSON)
_ROCKETMQ: Final = int(Serialization.ROCKETMQ)


def frame_end(data: bytes | bytearray | memoryview, start: int) -> int | None:
    """Return where the frame that begins at `start` ends, or None until its length is complete."""
    if len(data) - start < 4:
        return None
    length = int.from_bytes(data[start : start + 4], signed=True)
    if not 4 <= length <= FRAME_BYTES_MAX - 4:
        raise _wrong_length(length)
    return start + 4 + length


def decode_frame(data: bytes | memoryview, start: int) -> tuple[Command, int] | None:
    """Decode one command; None until its frame is complete. The result does not refer to `data`.

    Hot: about 3 µs, 2 of them for the header's JSON; one call reads both numbers.
    """
    if len(data) - start < 8:
        frame_end(data, start)
        return None
    length, mark = _BEGINNING.unpack_from(data, start)
    if not 4 <= length <= FRAME_BYTES_MAX - 4:
        raise _wrong_length(length)
    end = start + 4 + length
    if len(data) < end:
        return None
    header_start = start + 8
    body_start = header_start + (mark & 0xFF_FFFF)
    if body_start > end:
        raise RemoteProtocolError("header runs past its frame")
    if body_start - start > HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"header of {body_start - header_start} bytes; {HEADER_BYTES_MAX} are allowed"
        )
    serialization = mark >> 24
    if serialization == _JSON:
        header = data[header_start:body_start]
        try:
            plain = _decode_plain_json(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            command = _decode_any_json(header)
        else:
            ext = plain.extFields or {}
            if len(ext) > FIELDS_MAX:
                raise _too_many_fields()
            command = Command(
                code=plain.code,
                opaque=plain.opaque,
                flag=plain.flag,
                remark=plain.remark,
                ext=ext,
                language=plain.language,
                version=plain.version,
            )
    elif serialization == _ROCKETMQ:
        command = decode_binary_header(bytes(data[header_start:body_start]))
    else:
        raise RemoteProtocolError(f"unknown header serialisation {serialization}")
    if body_start != end:
        command.body = bytes(data[body_start:end])  # Copies unless it already is bytes.
    return command, end


def _wrong_length(length: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"frame of {length} bytes; 4 to {FRAME_BYTES_MAX - 4} are allowed")


def _too_many_fields() -> RemoteProtocolError:
    return RemoteProtocolError(f"a header of over {FIELDS_MAX} fields")


def encode_frame(command: Command) -> bytes:
    """Encode one command as a frame."""
    return b"".join((encode_head(command), command.body))


def encode_head(command: Command, pieces: tuple[bytes | memoryview, ...] = ()) -> bytes:
    """Encode everything before the body, which follows it: copying a large body is better avoided.

    pieces: what follows the body. Hot: a JSON header takes about 1 µs.
    """
    if command.serialization == _JSON:
        header = _encode_json(
            JsonHeader(
                command.code,
                command.language,
                command.version,
                command.opaque,
                command.flag,
                command.remark,
                command.ext or None,  # type: ignore[arg-type] # dict is invariant; every str is a str | None.
                "JSON",
            )
        )
    else:
        header = encode_binary_header(command)
    header_bytes = len(header)
    length = 4 + header_bytes + len(command.body)
    if pieces:
        length += sum(map(len, pieces))
    if length > FRAME_BYTES_MAX - 4 or header_bytes > 0xFF_FFFF:
        raise LocalProtocolError(f"frame of {length} bytes; {FRAME_BYTES_MAX - 4} are allowed")
    return _BEGINNING.pack(length, command.serialization << 24 | header_bytes) + header


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class JsonHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """The members of the JSON object; unknown ones are ignored."""

    code: Int32
    language: str | int | None = None
    version: Int32 | None = None
    opaque: Int32 | None = None
    flag: Int32 | None = None
    remark: str | None = None
    extFields: dict[str, str | None] | None = None
    serializeTypeCurrentRPC: str | None = None


class PlainHeader(msgspec.Struct, gc=False):
    """A header without null fields, as written by clients and by us; it needs no further checks."""

    code: Int32
    language: str
    version: Int32
    opaque: Int32
    flag: Int32
    extFields: dict[str, str] | None = None
    remark: str | None = None


_decode_json = msgspec.json.Decoder(JsonHeader).decode
_decode_plain_json = msgspec.json.Decoder(PlainHeader).decode
_encode_json = msgspec.json.Encoder().encode


def _decode_any_json(data: bytes | memoryview) -> Command:
    """Decode a header with nulls or missing members, or report the error."""
    try:
        header = _decode_json(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"JSON header: {error}") from None
    ext = header.extFields or {}
    if len(ext) > FIELDS_MAX:
        raise _too_many_fields()
    if None in ext.values():
        ext = {key: value for key, value in ext.items() if value is not None}
    return Command(
        code=header.code,
        opaque=header.opaque or 0,
        flag=header.flag or 0,
        remark=header.remark,
        ext=ext,  # type: ignore[arg-type] # Without Nones.
        language=header.language if isinstance(header.language, str) else "OTHER",
        version=header.version or 0,
    )


_FIXED = Struct(">hBhiii")
_FIXED_BYTES: Final = _FIXED.size  # 17, including the remark's length
_KEY = Struct(">h")
#: Ours: cached layouts of ext fields, each within the two limits below: 3 MB in all. It could reach 10 MB
#: with 128 fields of two bytes each, which no client sends.
LAYOUTS_MAX: Final = 512
LAYOUT_BYTES_MAX: Final = 1_024
LAYOUT_FIELDS_MAX: Final = 32
#: Ours: determining a layout costs as much as decoding three headers without one.
LAYOUT_MISSES_MAX: Final = 8

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
        try:
            remark = data[position : position + remark_bytes].decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"remark: {error}") from None
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
    """Decode the ext fields. Hot, so the last layout of this size is tried first.

    Nearly all are ASCII, and are decoded as one text and sliced.
    """
    octets = data[position:end]
    layout = _LAYOUTS.get(end - position)
    if layout is None or layout.heads(octets) != layout.expected:
        fields = list(_ext_fields(octets))
        if layout is None or layout.is_outdated():
            _remember(octets, fields)
    else:
        fields = layout.fields
    try:
        if octets.isascii():
            text = octets.decode("ascii")
            return {key: text[start:end] for key, start, end in fields}
        return {key: octets[start:end].decode() for key, start, end in fields}
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ext field: {error}") from None


def _ext_fields(octets: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield each field's key, and the start and end of its value; a zero length means null."""
    at, size, left = 0, len(octets), FIELDS_MAX
    try:
        while at < size:
            left -= 1
            if left < 0:
                raise _too_many_fields()
            key_start = at + 2
            key_end = key_start + (octets[at] << 8 | octets[at + 1])
            start = key_end + 4
            at = start + int.from_bytes(octets[key_end:start]) if start <= size else size + 1
            if at > size:
                raise RemoteProtocolError("an ext field runs past its header")
            if at > start and key_end > key_start:
                yield octets[key_start:key_end].decode(), start, at
    except IndexError:
        raise RemoteProtocolError("the length of an ext field runs past its header") from None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ext field: {error}") from None


class _Layout:
    """The positions of the values in ext fields, and all bytes between them.

    Nearly all headers of a client have one of a few layouts; a known one takes a third of the time.
    """

    __slots__ = ("_misses", "expected", "fields", "heads")

    def __init__(self, octets: bytes, fields: list[tuple[str, int, int]]) -> None:
        self.fields = fields
        form, at = ">", 0
        for _, start, end in fields:
            form += f"{start - at}s{end - start}x"
            at = end
        self.heads = Struct(f"{form}{len(octets) - at}s").unpack
        self.expected = self.heads(octets)
        self._misses = 0

    def is_outdated(self) -> bool:
        """Return whether too many headers in a row had another layout."""
        self._misses += 1
        return self._misses > LAYOUT_MISSES_MAX


#: The last layout, by the size of the ext fields.
_LAYOUTS: dict[int, _Layout] = {}


def _remember(octets: bytes, fields: list[tuple[str, int, int]]) -> None:
    if len(octets) > LAYOUT_BYTES_MAX or len(fields) > LAYOUT_FIELDS_MAX:
        return
    if len(_LAYOUTS) >= LAYOUTS_MAX:
        _LAYOUTS.clear()
    _LAYOUTS[len(octets)] = _Layout(octets, fields)


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
    """Encode an ext field's key; cached, as a few keys are in every header of a kind."""
    data = key.encode()
    return _KEY.pack(len(data)) + data
