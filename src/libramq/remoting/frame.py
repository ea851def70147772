"""The frame: how a command lies on the wire.

    length (4) | serialisation (1) | header length (3) | header | body

`length` counts what follows it. Upstream: NettyEncoder.java, NettyDecoder.java.
"""

from typing import Final

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting.binary_header import decode_binary_header, encode_binary_header
from libramq.remoting.command import Command, Serialization
from libramq.remoting.json_header import decode_json_header, encode_json_header

#: NettyDecoder.FRAME_MAX_LENGTH (com.rocketmq.remoting.frameMaxLength), the whole frame.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: Ours: properties are at most 32 KiB and everything else in a header is names and numbers.
HEADER_BYTES_MAX: Final = 1024 * 1024


def frame_end(data: bytes | bytearray | memoryview, start: int) -> int | None:
    """Where the frame that begins at `start` ends; None until its length can be read."""
    if len(data) - start < 4:
        return None
    length = int.from_bytes(data[start : start + 4], signed=True)
    if not 4 <= length <= FRAME_BYTES_MAX - 4:
        raise RemoteProtocolError(f"frame of {length} bytes; 4 to {FRAME_BYTES_MAX - 4} are allowed")
    return start + 4 + length


def decode_frame(data: bytes | memoryview, start: int) -> tuple[Command, int] | None:
    """Read one command; None until its frame is whole. Nothing in it refers to `data`."""
    end = frame_end(data, start)
    if end is None or len(data) < end:
        return None
    body_start = start + 8 + int.from_bytes(data[start + 5 : start + 8])
    if body_start > end:
        raise RemoteProtocolError("header runs past its frame")
    if body_start - start > HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"header of {body_start - start - 8} bytes; {HEADER_BYTES_MAX} are allowed")
    serialization = data[start + 4]
    if serialization == Serialization.JSON:
        command = decode_json_header(data[start + 8 : body_start])
    elif serialization == Serialization.ROCKETMQ:
        command = decode_binary_header(bytes(data[start + 8 : body_start]))
    else:
        raise RemoteProtocolError(f"unknown header serialisation {serialization}")
    if body_start != end:
        command.body = bytes(data[body_start:end])  # Copies what is not yet bytes.
    return command, end


def encode_frame(command: Command) -> bytes:
    """Write one command whole."""
    if command.serialization == Serialization.JSON:
        header = encode_json_header(command)
    else:
        header = encode_binary_header(command)
    body = command.body
    length = 4 + len(header) + len(body)
    if length > FRAME_BYTES_MAX - 4 or len(header) > 0xFF_FFFF:
        raise LocalProtocolError(f"frame of {length} bytes; {FRAME_BYTES_MAX - 4} are allowed")
    mark = command.serialization << 24 | len(header)
    return b"".join((length.to_bytes(4), mark.to_bytes(4), header, body))
