"""Fields: extracts byte strings and numbers from a range of bytes with array operations, into reusable
memory.

Fields of fixed size are gathered as packed structs from any positions. Fields of variable length are
extracted without an index per byte: offsets `start0 end0 start1 end1 …` describe the buffer as a binary array
whose even elements are the fields and whose odd elements are the gaps, and Arrow's `take` copies the even
ones.
"""

from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from libramq.errors import RemoteProtocolError

#: Ours: smaller columns are left to the allocators, which keep memory of their size.
LARGE_BYTES: Final = 64 * 1024
#: Ours: block sizes are multiples of this.
BLOCK_BYTES: Final = 64 * 1024
#: Ours: the limit for all kept blocks, as for replies (`remoting.connection`).
KEPT_BYTES_MAX: Final = 20 * 1024 * 1024


class ColumnMemory:
    """Reusable memory blocks for all threads of the process.

    Allocators return memory of this size to the system, which must clear every page before it can be used
    again. That was a fifth of the time of a consumer of record batches. A block is free when no Python, numpy
    or Arrow object refers to it, which is when its `bytearray` can be resized.

        block, block, block        in the order of their last use; the oldest are dropped, in use or not,
                                   when the total exceeds the limit
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._blocks: deque[bytearray] = deque()

    @property
    def kept_bytes(self) -> int:
        """Return the total size of the kept blocks, in use or not."""
        return sum(map(len, list(self._blocks)))

    def take(self, size: int) -> memoryview:
        """Return uninitialised memory of this size; it becomes free again once nothing refers to it."""
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()  # So that no other thread sees it.
            except IndexError:
                break
            is_found = size <= len(block) <= size + size // 4 + BLOCK_BYTES and _is_free(block)
            memory = memoryview(block)[:size] if is_found else None
            self._blocks.append(block)
            if memory is not None:
                return memory
        block = bytearray(-(-size // BLOCK_BYTES) * BLOCK_BYTES + 1)
        del block[-1]  # Spare room, so that `_is_free` does not move the block.
        memory = memoryview(block)[:size]
        self._keep(block)
        return memory

    def _keep(self, block: bytearray) -> None:
        spare = self._bytes_max - len(block)
        if spare < 0:
            return
        while self.kept_bytes > spare:
            try:
                self._blocks.popleft()
            except IndexError:
                break
        self._blocks.append(block)


def _is_free(block: bytearray) -> bool:
    """Return whether nothing refers to a block's memory, by trying to resize it."""
    try:
        block.append(0)
    except BufferError:
        return False
    del block[-1]
    return True


COLUMN_MEMORY: Final = ColumnMemory()


#: Ours: fewer byte strings are not checked for even distances.
EVEN_MIN: Final = 8
Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def gather(data: bytes, positions: Positions, kind: np.dtype[Any]) -> Any:
    """Return one packed struct from each position; positions need not be aligned."""
    last = len(data) - kind.itemsize
    if len(positions) and (int(positions.max()) > last or int(positions.min()) < 0):
        raise RemoteProtocolError("a field runs past the end of a pulled body")
    if not len(positions):
        return np.empty(0, dtype=kind)
    # Overlapping windows of the struct's size, one byte apart. numpy copies raw bytes ten times faster than
    # fields.
    size = kind.itemsize
    return np.ndarray((last + 1,), f"V{size}", data, 0, (1,))[positions].view(kind)


def slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array:
    """Return the byte strings [start, end) as a binary array. They must be in order and not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    even = _even_slices(buffer, starts, ends)
    if even is not None:
        return even
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    fields_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    return fields_and_gaps.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def even_distance(starts: Positions, ends: Positions) -> int | None:
    """Return the distance of byte strings with equal sizes and distances; None for others or for few."""
    if len(starts) < EVEN_MIN:
        return None
    size, step = int(ends[0] - starts[0]), int(starts[1] - starts[0])
    if not 0 < size <= step or (ends - starts != size).any() or (starts[1:] - starts[:-1] != step).any():
        return None
    return step


def _even_slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array | None:
    """Return byte strings of equal size and distance; None for others. Half of `take`'s time for 1 KiB."""
    step = even_distance(starts, ends)
    if step is None:
        return None
    count, size = len(starts), int(ends[0] - starts[0])
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
