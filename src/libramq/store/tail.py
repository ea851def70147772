"""The tail: the newest bytes of the commit log, in memory.

A ring: the byte at physical offset p lies at p modulo the capacity. Consumers that keep up read from here
without a system call. It holds one unbroken stretch that ends where the log ends. Its memory is the kernel's
to give when it is first written: a broker that stores little has little.
"""

import mmap
from collections.abc import Sequence

from libramq.message.record import RECORD_BYTES_MIN


class Tail:
    """The last `capacity` bytes of a growing run."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ring = mmap.mmap(-1, capacity)
        self._start = 0
        self._end = 0

    @property
    def start(self) -> int:
        """The oldest byte that is held."""
        return self._start

    @property
    def end(self) -> int:
        """The byte after the newest one."""
        return self._end

    def restart(self, offset: int) -> None:
        """Hold nothing; what comes next begins at `offset`."""
        self._start = self._end = offset

    def append(self, offset: int, data: bytes) -> None:
        """Add what was written at `offset`; where that is not the end, what is held is dropped first."""
        if offset != self._end:
            self.restart(offset)
        self._end = end = offset + len(data)
        capacity = self._capacity
        if len(data) > capacity:
            data = data[-capacity:]
            offset = end - capacity
        at = offset % capacity
        room = capacity - at
        if len(data) <= room:
            self._ring[at : at + len(data)] = data
        else:
            self._ring[at:] = data[:room]
            self._ring[: len(data) - room] = data[room:]
        self._start = max(self._start, end - capacity)

    def read(self, offset: int, size: int) -> bytes | None:
        """A stretch of it, or None where not all of that is held."""
        end = offset + size
        if offset < self._start or end > self._end:
            return None
        at = offset % self._capacity
        room = self._capacity - at
        if size <= room:
            return self._ring[at : at + size]
        return self._ring[at:] + self._ring[: size - room]

    def read_each(self, stretches: Sequence[tuple[int, int]]) -> tuple[bytes, ...] | None:
        """Stretches by their offset and size, the first one oldest; None where not all of them are held.

        One by one they are copied sooner than with what lies between them.
        """
        if stretches[0][0] < self._start:  # As of most readers that do not keep up.
            return None
        ring, capacity, start, end = self._ring, self._capacity, self._start, self._end
        pieces = []
        for offset, size in stretches:
            at = offset % capacity
            if not RECORD_BYTES_MIN <= size <= capacity - at or not start <= offset <= end - size:
                return None  # It lies across the ring's end, or its unit is damaged.
            pieces.append(ring[at : at + size])
        return tuple(pieces)
