"""The check of one queue of batches: its units by the numbers of their messages, read only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.store.config import BATCH_UNIT_BYTES
from libramq.store.log.log_scan import Damage
from libramq.store.queues.consume_queue import BLANK_SIZE
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
        files = ReadOnlyFiles(filesystem, directory)
        try:
            if files.file_size % BATCH_UNIT_BYTES or files.end % BATCH_UNIT_BYTES:
                size = files.end - files.starts[-1]
                raise StoreCorrupt(
                    f"{directory}: a file with {size} bytes has no whole units; it is cut short"
                )
            parts = [
                np.frombuffer(files.read(start, min(files.file_size, files.end - start)), dtype=_UNITS)
                for start in files.starts
            ]
        finally:
            files.close()
        units = np.concatenate(parts) if parts else np.empty(0, dtype=_UNITS)
        written = np.flatnonzero((units["size"] > 0) & (units["physical"] >= 0) & (units["count"] > 0))
        self._units = units[: int(written[-1]) + 1] if len(written) else units[:0]
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

    def count_units(self, log_start: int, log_end: int, damages: Sequence[Damage]) -> UnitCounts:
        """Count the units by where they point."""
        within, beyond = count_units(self._units, log_start, log_end, damages)
        return UnitCounts(len(self._units), within, beyond)

    def close(self) -> None:
        """Do nothing: no file is open."""
