"""Column memory: that of large columns, used again once nobody refers to them.

Allocators return memory of this size to the system, which clears every page of it before it can be used
again: a fifth of what a consumer of record batches took. A block is free when nothing that Python, numpy or
Arrow made of it exists any more: that is when a `bytearray` can be resized.

        block, block, block        in the order of their last use; the oldest are forgotten, used or not,
                                   when all together exceed the limit
"""

from collections import deque
from typing import Final

#: Ours: smaller columns are made in memory that allocators keep.
LARGE_BYTES: Final = 64 * 1024
#: Ours: sizes of blocks are multiples of this.
BLOCK_BYTES: Final = 64 * 1024
#: Ours: what is kept at most, as for replies (`remoting.connection`).
KEPT_BYTES_MAX: Final = 20 * 1024 * 1024


class ColumnMemory:
    """Blocks of memory, for all threads of the process."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._blocks: deque[bytearray] = deque()

    @property
    def kept_bytes(self) -> int:
        """Return the size of all blocks that are kept, in use or not."""
        return sum(map(len, list(self._blocks)))

    def take(self, size: int) -> memoryview:
        """Return memory of that size, with any content. It is free again when nothing refers to it."""
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()  # So no other thread looks at it.
            except IndexError:
                break
            is_found = size <= len(block) <= size + size // 4 + BLOCK_BYTES and _is_free(block)
            memory = memoryview(block)[:size] if is_found else None
            self._blocks.append(block)
            if memory is not None:
                return memory
        block = bytearray(-(-size // BLOCK_BYTES) * BLOCK_BYTES + 1)
        del block[-1]  # Room for `_is_free`, which would move it otherwise.
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
    """Return whether nothing refers to the memory of a block: it could not be resized otherwise."""
    try:
        block.append(0)
    except BufferError:
        return False
    del block[-1]
    return True


COLUMN_MEMORY: Final = ColumnMemory()
