"""Compression of record batches: gzip, snappy, lz4, zstd, by the number in the batch's attributes.

The decompressed size is bounded before memory is allocated. Snappy comes raw (librdkafka) or in the blocks of
snappy-java (Java, kafka-python). Upstream: common/record/CompressionType.java.
"""

import zlib
from typing import Final

import cramjam
import lz4.frame
import zstandard

from libramq.errors import RemoteProtocolError

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
#: Ours: the batches of a request, decompressed; as much as a frame brings without compression. All of it
#: becomes messages at once, which takes four times the memory.
DECOMPRESSED_BYTES_MAX: Final = 16 * 1024 * 1024
#: SnappyOutputStream.java: magic, version and compatible version.
_SNAPPY_JAVA_MAGIC: Final = b"\x82SNAPPY\0"
_SNAPPY_JAVA_HEADER_BYTES: Final = 16
_GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS


def decompress(codec: int, data: bytes, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the records as they were before compression; raises RemoteProtocolError."""
    if codec == NONE:
        return data
    unpack = _UNPACKERS.get(codec)
    if unpack is None:
        raise RemoteProtocolError(f"there is no compression {codec}")
    try:
        plain = unpack(data, bytes_max)
    except RemoteProtocolError:
        raise
    except Exception as failed:  # zlib.error, RuntimeError, ZstdError, cramjam's: none has a common parent.
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
    blocks = []
    at, left = _SNAPPY_JAVA_HEADER_BYTES, bytes_max
    while at < len(data):
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
