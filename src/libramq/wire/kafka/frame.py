"""The frame of Kafka's protocol: a length and a message that begins with a header, in some versions with
tags; how large one may be.

    request   size (4) | api key (2) | version (2) | correlation id (4) | client id | tags     | body
    answer    size (4) | correlation id (4) | tags                                              | body

Tags belong to flexible versions only. The client id's length always has two bytes, and the answer to
ApiVersions never has tags, because its client does not yet know the server's versions.
Upstream: RequestHeader.json, ResponseHeader.json.
"""

from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.primitives import Reader, encode_int32

#: Ours; Kafka's socket.request.max.bytes is 100 MiB. A batch has 1 MiB with every client's defaults, and a
#: message here has at most 4 MiB.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: The api key, the version and the correlation id.
_FRAME_BYTES_MIN: Final = 8


class RequestHeader(NamedTuple):
    """The header of a request, without client id and tags, whose form depends on the version."""

    api_key: int
    version: int
    correlation_id: int


class FrameReader:
    """Splits a connection's bytes into frames."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial_bytes(self) -> int:
        """Return the number of bytes held of an unfinished frame."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[bytes]:
        """Take received bytes; return the frames that are now complete, without their lengths."""
        partial = self._partial
        partial += data
        frames = []
        at = 0
        while len(partial) - at >= 4:
            size = int.from_bytes(partial[at : at + 4], signed=True)
            if not _FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
                raise RemoteProtocolError(
                    f"a Kafka frame of {size} bytes; {_FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} are allowed"
                )
            if len(partial) - at - 4 < size:
                break
            frames.append(bytes(partial[at + 4 : at + 4 + size]))
            at += 4 + size
        del partial[:at]
        return frames


def read_client_id(reader: Reader, *, is_flexible: bool) -> str | None:
    """Read the rest of a header: the client id and tags."""
    length = reader.int16()
    client_id = None if length == -1 else reader.text(length)
    if is_flexible:
        reader.skip_tags()
    return client_id


def encode_answer(correlation_id: int, body: bytes, *, has_tags: bool) -> bytes:
    """Encode the frame of an answer."""
    tags = b"\0" if has_tags else b""
    size = encode_int32(4 + len(tags) + len(body))
    return b"".join((size, encode_int32(correlation_id), tags, body))
