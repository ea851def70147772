"""The span cursor: goes through the units of one range of a queue, block by block.

Units that no longer exist, or point nowhere, are reported as lost.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

QueueKey = tuple[str, int]
Places = npt.NDArray[np.int64]
OnLost = Callable[[QueueKey, int, int], None]

BLOCK_UNITS: Final = 1 << 16  # Ours: of a queue at a time, 1.3 MB.


class Extent(NamedTuple):
    """The first and last number of a queue. tail: the units from `tail_start` on that its files lack."""

    min_offset: int
    max_offset: int
    tail_start: int
    tail: bytes


class Span(NamedTuple):
    """The messages [start, end) of a queue, as a survey found it."""

    queue: QueueKey
    start: int
    end: int
    extent: Extent


class QueueUnits(Protocol):
    """The units of a store's queues: a `StoreReader`."""

    def units_or_begin(
        self, key: QueueKey, extent: Extent, start: int, end: int
    ) -> npt.NDArray[np.void] | int:
        """Return units, or the lowest number still stored if `start` has been deleted."""
        ...

    def may_hold(self, physical: Places, sizes: Places) -> npt.NDArray[np.bool_]:
        """Return which units can point to records."""
        ...


class SpanCursor:
    """Goes through the units of one span, block by block."""

    def __init__(self, units: QueueUnits, span: Span, lost: OnLost) -> None:
        self._units = units
        self._lost = lost
        self._queue, self._next, end, self._extent = span
        self._end = min(end, self._extent.max_offset)
        self._physical = self._sizes = self._numbers = np.empty(0, dtype=np.int64)
        if self._next < min(self._extent.min_offset, end):
            begin = min(self._extent.min_offset, end)
            lost(self._queue, self._next, begin)
            self._next = begin
        if max(self._next, self._end) < end:
            lost(self._queue, max(self._next, self._end), end)
        self._load()

    @property
    def has_more(self) -> bool:
        """Return whether a record is left."""
        return len(self._physical) > 0

    @property
    def next_physical(self) -> int:
        """Return where the next record is."""
        return int(self._physical[0])

    @property
    def queue(self) -> QueueKey:
        """Return the queue that it goes through."""
        return self._queue

    def take(self, limit: int) -> tuple[Places, Places, Places]:
        """Return places, sizes and numbers of the records that begin before a place of the log."""
        taken: list[tuple[Places, Places, Places]] = []
        while self.has_more:
            count = int(np.searchsorted(self._physical, limit))
            taken.append((self._physical[:count], self._sizes[:count], self._numbers[:count]))
            self._physical, self._sizes = self._physical[count:], self._sizes[count:]
            self._numbers = self._numbers[count:]
            if self.has_more:
                break
            self._load()
        if not taken:
            return self._physical, self._sizes, self._numbers
        physical, sizes, numbers = (np.concatenate(column) for column in zip(*taken, strict=True))
        return physical, sizes, numbers

    def _load(self) -> None:
        while not len(self._physical) and self._next < self._end:
            stop = min(self._next + BLOCK_UNITS, self._end)
            units = self._units.units_or_begin(self._queue, self._extent, self._next, stop)
            if isinstance(units, int):  # The units before were removed since the survey.
                begin = min(units, self._end)
                self._lost(self._queue, self._next, begin)
                self._next = begin
                continue
            sizes, physical = units["size"].astype(np.int64), units["physical"].astype(np.int64)
            keep = self._units.may_hold(physical, sizes)
            for first, last in runs(np.flatnonzero(~keep)):
                self._lost(self._queue, self._next + first, self._next + last)
            self._physical, self._sizes = physical[keep], sizes[keep]
            self._numbers = np.arange(self._next, stop)[keep]
            self._next = stop


def runs(places: npt.NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return neighbouring places as [first, last)."""
    if not len(places):
        return ()
    cuts = np.flatnonzero(np.diff(places) > 1)
    firsts = places[np.concatenate(([0], cuts + 1))]
    lasts = places[np.concatenate((cuts, [len(places) - 1]))] + 1
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
