"""The check of one queue: its files as numbered units, read only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.store.config import UNIT_BYTES
from libramq.store.log.log_scan import Damage
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, may_lack_end
from libramq.store.reading.read_only_files import ReadOnlyFiles

#: Ours: how many units are read at once: to compare records, and to count all.
NEIGHBOURS: Final = 128
BLOCK_UNITS: Final = 50_000
_UNITS: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])


class UnitCounts(NamedTuple):
    """The units of a queue: all, those that point into the log outside of damage, those behind its end."""

    all: int
    within: int
    beyond: int


def count_units(
    units: npt.NDArray[np.void], log_start: int, log_end: int, damages: Sequence[Damage]
) -> tuple[int, int]:
    """Return how many units point into the log outside of damage, and how many behind its end."""
    leads = (units["size"] > 0) & (units["size"] != BLANK_SIZE) & (units["physical"] >= log_start)
    is_beyond = leads & (units["physical"] >= log_end)
    is_lost = np.zeros(len(units), dtype=np.bool_)
    for damage in damages:
        is_lost |= (units["physical"] >= damage.offset) & (units["physical"] < damage.end)
    return int((leads & ~is_beyond & ~is_lost).sum()), int(is_beyond.sum())


class QueueCheck:
    """The units of one queue. matched_count: how many point to their records.

    Raises StoreCorrupt if its files cannot be the queue's.
    """

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._files = ReadOnlyFiles(filesystem, directory, may_lack=True)
        if any(start % self._files.file_size for start in self._files.starts):
            raise StoreCorrupt(f"{directory}: its files have no names that fit their size")
        self._near: tuple[int, bytes] = 0, b""
        while len(self._files.starts) > 1 and self.is_lost(self._files.min_offset // UNIT_BYTES):
            self._files.starts.pop(0)
        self.first = self._files.min_offset // UNIT_BYTES
        self.next = self._find_next()
        last = self.unit(self.next - 1) if self.next > self.first else None
        self.physical_end = 0 if last is None else last[0] + (0 if last[1] == BLANK_SIZE else last[1])
        self.matched_count = 0
        files = self._files
        self.may_lack_end = may_lack_end(self.next * UNIT_BYTES, files.file_size, was_short=files.is_short)

    def is_lost(self, number: int) -> bool:
        """Return whether the whole file with a unit is missing or has holes, so that a start builds it."""
        if not self._files.starts:
            return False
        start = self._files.start_of(number * UNIT_BYTES)
        ends = start, start + self._files.file_size - UNIT_BYTES
        return start < self._files.starts[-1] and not all(self.unit(at // UNIT_BYTES) for at in ends)

    def unit(self, number: int) -> tuple[int, int, int] | None:
        """Return a unit: physical offset, size, tag code; None if none was written."""
        if not self._files.min_offset // UNIT_BYTES <= number < self._files.end // UNIT_BYTES:
            return None
        start, data = self._near
        if not start <= number < start + len(data) // UNIT_BYTES:
            data = self._read(number, NEIGHBOURS)
            start = number
            self._near = start, data
        physical, size, code = UNIT.unpack_from(data, (number - start) * UNIT_BYTES)
        return (physical, size, code) if size > 0 and physical >= 0 else None

    def count_units(self, log_start: int, log_end: int, damages: Sequence[Damage]) -> UnitCounts:
        """Count the units by where they point."""
        within = beyond = count = 0
        number = self.first
        while number < self.next:
            units = self._units(number, min(BLOCK_UNITS, self.next - number))
            here, behind = count_units(units, log_start, log_end, damages)
            count += len(units)
            within += here
            beyond += behind
            number += len(units)
        return UnitCounts(count, within, beyond)

    def close(self) -> None:
        """Close the descriptors."""
        self._files.close()

    def _find_next(self) -> int:
        """Return the number after the last written unit; files have zeroes behind it."""
        files = self._files
        for start in reversed(files.starts):
            size = min(files.file_size, files.end - start)
            units = np.frombuffer(files.read(start, size - size % UNIT_BYTES), dtype=_UNITS)
            files.close()
            written = np.flatnonzero((units["size"] > 0) & (units["physical"] >= 0))
            if len(written):
                return start // UNIT_BYTES + int(written[-1]) + 1
        return self.first

    def _read(self, number: int, count: int) -> bytes:
        position = number * UNIT_BYTES
        room = self._files.start_of(position) + self._files.file_size - position
        data = self._files.read(position, min(count * UNIT_BYTES, room))
        self._files.close()  # There may be more queues than this process may have files.
        return data

    def _units(self, number: int, count: int) -> npt.NDArray[np.void]:
        return np.frombuffer(self._read(number, count), dtype=_UNITS)
