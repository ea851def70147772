"""The compressed body: the algorithms, compressing and decompressing a body, and the largest decompressed
size; a body that cannot be decompressed is delivered as stored.

zlib comes with Python. LZ4 (frame format) and ZSTD are imported when the first such body appears, so they are
optional. The decompressed size is bounded before memory is allocated.

Upstream: common/compression/*.java.
"""

import importlib
import zlib
from typing import Any, Final

from libramq.errors import ConfigError, RemoteProtocolError, needs_extra
from libramq.message import sys_flag as flags
from libramq.message.message import MessageExt

# A stored body has at most 4 MiB (maxMessageSize). Upstream sets no bound; this allows a factor of 16.
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
ZLIB_LEVEL: Final = 5  # DefaultMQProducerImpl.java, zipCompressLevel


def compress_body(body: bytes, compression: int = flags.COMPRESSION_ZLIB) -> bytes:
    """Compress a body; the caller sets COMPRESSED and `compression` in the system flag."""
    if compression in (flags.COMPRESSION_ZLIB, flags.COMPRESSION_UNNAMED):
        return zlib.compress(body, ZLIB_LEVEL)
    if compression == flags.COMPRESSION_LZ4:
        return bytes(_module("lz4.frame").compress(body))
    if compression == flags.COMPRESSION_ZSTD:
        return bytes(_module("zstandard").ZstdCompressor(level=ZLIB_LEVEL).compress(body))
    raise ConfigError(f"there is no compression {compression:#x}; use LZ4 0x100, ZSTD 0x200 or ZLIB 0x300")


def decompress_body(body: bytes, sys_flag: int, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the producer's original body; RemoteProtocolError if it cannot be decompressed."""
    if not sys_flag & flags.COMPRESSED:
        return body
    compression = sys_flag & flags.COMPRESSION_MASK
    try:
        if compression in (flags.COMPRESSION_ZLIB, flags.COMPRESSION_UNNAMED):
            plain = _unzip(body, bytes_max)
        elif compression == flags.COMPRESSION_LZ4:
            plain = _unlz4(body, bytes_max)
        elif compression == flags.COMPRESSION_ZSTD:
            stream = _module("zstandard").ZstdDecompressor().stream_reader(body)
            plain = stream.read(bytes_max + 1)
        else:
            raise RemoteProtocolError(f"unknown body compression {compression:#x}")
    except (ConfigError, RemoteProtocolError):
        raise
    except Exception as failed:  # zlib.error, lz4's RuntimeError and ZstdError have no common base class.
        raise RemoteProtocolError(f"a compressed body cannot be read: {failed}") from failed
    if len(plain) > bytes_max:
        raise RemoteProtocolError(f"a body of {len(body)} bytes unpacks to more than {bytes_max}")
    return plain


def decompress_or_keep(message: MessageExt) -> None:
    """Decompress a pulled message's body, or deliver it as stored if it cannot be decompressed.

    Any producer can send such a body. Refusing it would block its queue for all consumers.
    """
    try:
        message.body = decompress_body(message.body, message.sys_flag)
    except RemoteProtocolError as error:
        from libramq.logs import get_logger  # Imported lazily: most of Spark's tasks never need it.

        get_logger(__name__).error(
            "a message is delivered as it is stored: its body cannot be decompressed",
            topic=message.topic,
            message_id=message.message_id,
            reason=str(error),
        )


def _unzip(body: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, bytes_max + 1)
    if not stream.eof and len(plain) <= bytes_max:
        raise RemoteProtocolError("a compressed body ends early")
    return plain


def _unlz4(body: bytes, bytes_max: int) -> bytes:
    stream = _module("lz4.frame").LZ4FrameDecompressor()
    plain: bytes = stream.decompress(body, max_length=bytes_max + 1)
    if not stream.eof and len(plain) <= bytes_max:
        raise RemoteProtocolError("a compressed body ends early")
    return plain


def _module(name: str) -> Any:
    with needs_extra("a body", "compression"):
        return importlib.import_module(name)
