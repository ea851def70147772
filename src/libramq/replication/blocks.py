"""The bytes of the HA protocol: a slave's reports and a master's blocks of the log, with their size limits.

    slave → master    REPORT   8 bytes: the end of the slave's commit log
    master → slave    BLOCK   12 bytes: an offset and a size; then that many bytes of the commit log

A block without data is a heartbeat; a block at an impossible offset is a challenge (`slave_proof.py`).

Upstream: DefaultHAClient.java, DefaultHAConnection.java.
"""

import struct
from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError

#: MessageStoreConfig.haTransferBatchSize.
BLOCK_BYTES: Final = 32 * 1024
#: DefaultHAClient.READ_MAX_BUFFER_SIZE: one of Apache's slaves cannot receive a larger block.
BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024

#: Ours: the offset of a challenge.
CHALLENGE_OFFSET: Final = -1
#: Ours: the maximum size of a challenge.
CHALLENGE_BYTES_MAX: Final = 64

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")


class Block(NamedTuple):
    """A range of the commit log and its offset."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    """Return the report of a slave that has everything before an offset."""
    return _REPORT.pack(offset)


def encode_block(offset: int, data: bytes) -> bytes:
    """Return a block; without data, a heartbeat."""
    return _HEAD.pack(offset, len(data)) + data


class ReportReader:
    """Splits a slave's bytes into reports; of several that arrive together only the last counts."""

    def __init__(self) -> None:
        self._partial = b""

    @property
    def partial_bytes(self) -> int:
        """Return the number of held bytes of an incomplete report."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[int]:
        """Take received bytes; return the last complete report, if any."""
        data = self._partial + data
        whole = len(data) - len(data) % _REPORT.size
        self._partial = data[whole:]
        return [_REPORT.unpack_from(data, whole - _REPORT.size)[0]] if whole else []


class BlockReader:
    """Splits a master's bytes into blocks; raises RemoteProtocolError for an impossible size."""

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial_bytes(self) -> int:
        """Return the number of held bytes of an incomplete block."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[Block]:
        """Take received bytes; return the completed blocks."""
        self._partial += data
        blocks = []
        position, end = 0, len(self._partial)
        while end - position >= _HEAD.size:
            offset, size = _HEAD.unpack_from(self._partial, position)
            size_max = CHALLENGE_BYTES_MAX if offset == CHALLENGE_OFFSET else BLOCK_BYTES_MAX
            if offset < CHALLENGE_OFFSET or not 0 <= size <= size_max:
                raise RemoteProtocolError(f"the master sent a block of {size} bytes at offset {offset}")
            data_at = position + _HEAD.size
            if end - data_at < size:
                break
            position = data_at + size
            blocks.append(Block(offset, bytes(self._partial[data_at:position])))
        del self._partial[:position]
        return blocks
