"""The system flag of a message: 32 bits (compression, transaction, IPv6 hosts, inner batch) for broker and
clients.

    0x001 body compressed     0x00C transaction          0x040 unwrap at the client
    0x002 several tags        0x010 born host is IPv6    0x080 inner batch
                              0x020 store host is IPv6   0x700 how the body is compressed

Upstream: common/sysflag/MessageSysFlag.java, common/compression/CompressionType.java.
"""

from typing import Final

COMPRESSED: Final = 0x001
MULTI_TAGS: Final = 0x002

TRANSACTION_MASK: Final = 0x00C
TRANSACTION_NONE: Final = 0x000
TRANSACTION_PREPARED: Final = 0x004
TRANSACTION_COMMIT: Final = 0x008
TRANSACTION_ROLLBACK: Final = 0x00C

BORN_HOST_V6: Final = 0x010
STORE_HOST_V6: Final = 0x020

NEED_UNWRAP: Final = 0x040
INNER_BATCH: Final = 0x080
#: Batches with both bits are unwrapped by clients; those of other protocols by their broker.
WRAPPED: Final = NEED_UNWRAP | INNER_BATCH

COMPRESSION_MASK: Final = 0x700
COMPRESSION_UNNAMED: Final = 0x000  # Old clients know only zlib and leave these bits empty.
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300


def is_queued(sys_flag: int) -> bool:
    """Return whether a record of this type gets a queue offset: prepared and rollback messages do not."""
    return sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)
