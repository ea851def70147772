"""The frame: a command on the wire.

    length (4) | serialisation (1) | header length (3) | header | body

`length` counts what follows it. Upstream: NettyEncoder.java, NettyDecoder.java.
"""

from struct import Struct
from typing import Final

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting.binary_header import decode_binary_header, encode_binary_header
from libramq.remoting.command import Command, Serialization
from libramq.remoting.json_header import decode_json_header, encode_json_header

#: NettyDecoder.FRAME_MAX_LENGTH (com.rocketmq.remoting.frameMaxLength), the whole frame.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: Ours: properties are at most 32 KiB, and the rest of a header is names and numbers.
HEADER_BYTES_MAX: Final = 1024 * 1024

#: Ours: the size from which copying a body costs more than a further part to write.
LARGE_BODY_BYTES: Final = 256 * 1024

#: Length, and serialisation with the header's length.
_BEGINNING = Struct(">iI")
#: Numbers: looking up a member of an enumeration takes longer than everything else here.
_JSON: Final = int(Serialization.JSON)
_ROCKETMQ: Final = int(Serialization.ROCKETMQ)


def frame_end(data: bytes | bytearray | memoryview, start: int) -> int | None:
    """Return where the frame that begins at `start` ends; None until its length is complete."""
    if len(data) - start < 4:
        return None
    length = int.from_bytes(data[start : start + 4], signed=True)
    if not 4 <= length <= FRAME_BYTES_MAX - 4:
        raise _wrong_length(length)
    return start + 4 + length


def decode_frame(data: bytes | memoryview, start: int) -> tuple[Command, int] | None:
    """Decode one command; None until its frame is complete. The result does not refer to `data`.

    Hot: about 3 µs, of which the header's JSON takes 2; both numbers are read by one call.
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
        command = decode_json_header(data[header_start:body_start])
    elif serialization == _ROCKETMQ:
        command = decode_binary_header(bytes(data[header_start:body_start]))
    else:
        raise RemoteProtocolError(f"unknown header serialisation {serialization}")
    if body_start != end:
        command.body = bytes(data[body_start:end])  # Copies unless it is bytes already.
    return command, end


def _wrong_length(length: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"frame of {length} bytes; 4 to {FRAME_BYTES_MAX - 4} are allowed")


def encode_frame(command: Command, pieces: tuple[bytes | memoryview, ...] = ()) -> bytes:
    """Encode one command as a frame. pieces: what follows its body."""
    return b"".join((encode_head(command, pieces), command.body, *pieces))


def encode_head(command: Command, pieces: tuple[bytes | memoryview, ...] = ()) -> bytes:
    """Encode everything before the body, which follows it: a large body is better not copied."""
    is_json = command.serialization == _JSON
    header = encode_json_header(command) if is_json else encode_binary_header(command)
    header_bytes = len(header)
    length = 4 + header_bytes + len(command.body)
    if pieces:
        length += sum(map(len, pieces))
    if length > FRAME_BYTES_MAX - 4 or header_bytes > 0xFF_FFFF:
        raise LocalProtocolError(f"frame of {length} bytes; {FRAME_BYTES_MAX - 4} are allowed")
    return _BEGINNING.pack(length, command.serialization << 24 | header_bytes) + header
