"""The tail: the newest bytes of the commit log, in memory.

A ring: the byte at physical offset p lies at p modulo the capacity. Consumers that keep up read from here
without a system call. It holds one contiguous range that ends where the log ends. The kernel provides its
memory on the first write: a broker that stores little uses little.
"""

import mmap
from collections.abc import Sequence


class Tail:
    """The last `capacity` bytes of a growing run."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ring = mmap.mmap(-1, capacity)
        self._start = 0
        self._end = 0

    @property
    def start(self) -> int:
        """Return the offset of the oldest byte held."""
        return self._start

    @property
    def end(self) -> int:
        """Return the offset after the newest byte."""
        return self._end

    def restart(self, offset: int) -> None:
        """Drop everything; the next data begins at `offset`."""
        self._start = self._end = offset

    def append(self, offset: int, data: bytes) -> None:
        """Add data written at `offset`; if that is not the end, drop the held data first."""
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
        if self._start < end - capacity:
            self._start = end - capacity

    def read(self, offset: int, size: int) -> bytes | None:
        """Return a range, or None if not all of it is held."""
        end = offset + size
        if offset < self._start or end > self._end:
            return None
        at = offset % self._capacity
        room = self._capacity - at
        if size <= room:
            return self._ring[at : at + size]
        return self._ring[at:] + self._ring[: size - room]

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> tuple[bytes, ...] | None:
        """Return ranges by offset and size, the oldest first; None if not all of them are held.

        Copying them one by one is faster than copying what lies between them as well.
        """
        ring, capacity, oldest, newest = self._ring, self._capacity, self._start, self._end
        pieces = []
        for start, size in runs:
            end = start + size
            if start < oldest or end > newest:
                return None
            at = start % capacity
            end = at + size
            pieces.append(ring[at:end] if end <= capacity else ring[at:] + ring[: end - capacity])
        return tuple(pieces)
