"""Record starts: where each of the adjacent records in a range of bytes begins.

Records of one size are found by dividing. Small ones of several sizes are found by their magic, all at once,
and checked by their sizes; otherwise the sizes are followed.
"""

from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from libramq.columns.fields import Positions, gather
from libramq.errors import RemoteProtocolError
from libramq.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

#: Ours: larger records are found faster by their sizes than by their magic.
MARKED_BYTES_MAX: Final = 512
_U32: Final = np.dtype(">u4")


def record_starts(data: bytes) -> Positions:
    """Return where each record starts; the records must fill the bytes exactly."""
    size = int.from_bytes(data[:4])
    even = _even_starts(data, size)
    if even is not None:
        return even
    if len(data) < 4 or size > MARKED_BYTES_MAX:
        return _followed_starts(data)
    marked = _marked_starts(data)
    sizes = gather(data, marked, _U32).astype(np.int64)
    ends = marked + sizes
    if (
        len(marked)
        and marked[0] == 0
        and ends[-1] == len(data)
        and np.array_equal(ends[:-1], marked[1:])
        and sizes.min() >= RECORD_BYTES_MIN
    ):
        return marked
    return _followed_starts(data)  # A body contains the magic, or the data is invalid.


def _even_starts(data: bytes, size: int) -> Positions | None:
    """Return where records begin that all have this size, and fill the bytes; None of others."""
    count, rest = divmod(len(data), max(size, 1))
    if rest or not count or size < RECORD_BYTES_MIN:
        return None
    sizes: npt.NDArray[np.uint32] = np.ndarray((count,), _U32, data, 0, (size,))
    return np.arange(0, len(data), size) if (sizes == size).all() else None


def _marked_starts(data: bytes) -> Positions:
    """Find records by their magic: 0.2 ns a byte; following sizes takes 0.12 µs each."""
    first_bytes = np.flatnonzero(np.frombuffer(data, np.uint8) == MAGIC_V1 >> 24)
    places = first_bytes[(first_bytes >= 4) & (first_bytes <= len(data) - 4)]
    magic = gather(data, places, _U32)
    starts: Positions = places[(magic == MAGIC_V1) | (magic == MAGIC_V2)] - 4
    return starts


def _followed_starts(data: bytes) -> Positions:
    starts: list[int] = []
    append = starts.append
    size_at = Struct(">I").unpack_from
    position, end = 0, len(data)
    while end - position >= RECORD_BYTES_MIN:
        append(position)
        (size,) = size_at(data, position)
        if size < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"record of {size} bytes at {position} of a pulled body")
        position += size
    if position != end:
        raise RemoteProtocolError(f"pulled body of {end} bytes ends inside a record")
    return np.array(starts, dtype=np.int64)
