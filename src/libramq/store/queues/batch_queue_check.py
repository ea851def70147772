"""The check of one queue of batches: its units by the numbers of their messages, read only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.store.config import BATCH_UNIT_BYTES
from libramq.store.log.log_scan import Damage
from libramq.store.queues.consume_queue import BLANK_SIZE, may_lack_end
from libramq.store.queues.queue_check import UnitCounts, count_units
from libramq.store.reading.read_only_files import ReadOnlyFiles

_UNITS: Final = np.dtype(
    [
        ("physical", ">i8"), ("size", ">i4"), ("code", ">i8"), ("stored_ms", ">i8"), ("base", ">i8"),
        ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4"),
    ]
)  # fmt: skip


class BatchQueueCheck:
    """The units of one queue of batches, as `QueueCheck` has those of others; all are kept in memory."""

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        files = ReadOnlyFiles(filesystem, directory, may_lack=True)
        try:
            if any(start % files.file_size for start in files.starts):
                raise StoreCorrupt(f"{directory}: its files have no names that fit their size")
            sizes = {start: min(files.file_size, files.end - start) for start in files.starts}
            parts = [
                np.frombuffer(files.read(start, size - size % BATCH_UNIT_BYTES), dtype=_UNITS)
                for start, size in sizes.items()
            ]
        finally:
            files.close()
        units = np.concatenate(parts) if parts else np.empty(0, dtype=_UNITS)
        is_unit = (units["size"] > 0) & (units["physical"] >= 0) & (units["count"] > 0)
        written = np.flatnonzero(is_unit)
        end = int(written[-1]) + 1 if len(written) else 0
        self.may_lack_end = may_lack_end(
            end * BATCH_UNIT_BYTES, files.file_size, was_short=files.is_short, is_empty_batch=not end
        )
        self._units = units[:end][is_unit[:end]]
        #: Whether files before the last are missing, or have holes.
        self._has_holes = len(self._units) < end or (
            len(files.starts) > 1 and files.starts[-1] - files.starts[0] != files.file_size * (len(parts) - 1)
        )
        self._bases = self._units["base"].astype(np.int64)
        self.first = int(self._bases[0]) if len(self._units) else 0
        self.next = self.physical_end = self.matched_count = 0
        if len(self._units):
            last = self._units[-1]
            self.next = int(last["base"]) + int(last["count"])
            is_blank = int(last["size"]) == BLANK_SIZE
            self.physical_end = int(last["physical"]) + (0 if is_blank else int(last["size"]))

    def unit(self, number: int) -> tuple[int, int, int] | None:
        """Return the unit that begins with a message: physical offset, size, tag code; None if none does."""
        at = int(np.searchsorted(self._bases, number))
        if at == len(self._bases) or self._bases[at] != number:
            return None
        unit = self._units[at]
        return int(unit["physical"]), int(unit["size"]), int(unit["code"])

    def is_lost(self, number: int) -> bool:
        """Return whether units that are missing between others were lost with their files."""
        return self._has_holes and self.first <= number < self.next

    def count_units(self, log_start: int, log_end: int, damages: Sequence[Damage]) -> UnitCounts:
        """Count the units by where they point."""
        within, beyond = count_units(self._units, log_start, log_end, damages)
        return UnitCounts(len(self._units), within, beyond)

    def close(self) -> None:
        """Do nothing: no file is open."""
