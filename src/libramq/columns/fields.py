"""Fields: extracted from a range of bytes on whole arrays, without a Python object per field.

A field of fixed size is gathered as a packed struct from any position. Fields of variable length are
extracted without an index per byte: offsets `start0 end0 start1 end1 …` describe the buffer as a binary array
whose even elements are the fields and whose odd ones the gaps, and Arrow's `take` copies the even ones.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from libramq.columns.column_memory import COLUMN_MEMORY, LARGE_BYTES
from libramq.errors import RemoteProtocolError

#: Ours: of fewer byte strings nobody looks whether they are even.
EVEN_MIN: Final = 8
Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def gather(data: bytes, positions: Positions, kind: np.dtype[Any]) -> Any:
    """Return one packed struct from each position, which need not be aligned."""
    last = len(data) - kind.itemsize
    if len(positions) and (int(positions.max()) > last or int(positions.min()) < 0):
        raise RemoteProtocolError("a field runs past the end of a pulled body")
    if not len(positions):
        return np.empty(0, dtype=kind)
    # Overlapping windows of the struct's size, one byte apart; copied as raw bytes, which numpy does ten
    # times faster than field by field.
    size = kind.itemsize
    return np.ndarray((last + 1,), f"V{size}", data, 0, (1,))[positions].view(kind)


def slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array:
    """Return the byte strings [start, end) as a binary array. They are in order and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    even = _even_slices(buffer, starts, ends) if count >= EVEN_MIN else None
    if even is not None:
        return even
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    fields_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    return fields_and_gaps.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def _even_slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array | None:
    """Return byte strings of one size at even distances; None of others. 1 KiB take half of `take`'s time."""
    count, size, step = len(starts), int(ends[0] - starts[0]), int(starts[1] - starts[0])
    if not 0 < size <= step or (ends - starts != size).any() or (starts[1:] - starts[:-1] != step).any():
        return None
    stored: npt.NDArray[np.void] = np.ndarray((count,), f"V{size}", buffer, int(starts[0]), (step,))
    bounds = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    if count * size < LARGE_BYTES:
        copied = pa.py_buffer(stored.copy().view(np.uint8))
    else:
        memory = COLUMN_MEMORY.take(count * size)
        np.ndarray((count,), stored.dtype, memory)[:] = stored
        copied = pa.py_buffer(memory)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), copied])


def text_of(binary: pa.Array) -> pa.Array:
    """Decode UTF-8 strings; invalid bytes become replacement characters, as in Java."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        values = [None if value is None else value.decode(errors="replace") for value in binary.to_pylist()]
        return pa.array(values, pa.string())
