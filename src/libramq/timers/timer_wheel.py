"""The timer wheel: for each moment with pending messages, the first and the last of their units; its file of
two weeks.

    slot    time / precision (8) | first unit (8) | last unit (8) | count (4) | 0 (4)

The file has a slot for each moment of two weeks, and then wraps around; in memory, only slots with pending
messages are kept. A slot whose messages were delivered is zeroed, so its time matches no moment.

Upstream: store/timer/TimerWheel.java. There, delivered slots stay, and only the read time of the checkpoint
distinguishes them, so nothing can be collected for a moment before it.
"""

import heapq
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from libramq.filesystem import FileSystem, opened
from libramq.timers.timer_log import NO_UNIT

#: TimerMessageStore.TIMER_WHEEL_TTL_DAY, and TimerWheel's factor of two.
SLOTS: Final = 7 * 24 * 3600 * 2
_FORMAT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = _FORMAT.size
_SUM_MASK: Final = (1 << 63) - 1
_READ_BYTES: Final = 2048 * SLOT_BYTES


class Slot(NamedTuple):
    """The units of one moment, as a chain from the last to the first."""

    first: int
    last: int
    messages: int


class TimerWheel:
    """The slots with pending messages, by tick: time / precision."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._ticks: list[int] = []
        self._changed: dict[int, Slot | None] = {}
        self._sum = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def pending(self) -> int:
        """Return the number of waiting messages, minus deletions."""
        return sum(slot.messages for slot in self._slots.values())

    @property
    def sum(self) -> int:
        """Return a checksum that, almost certainly, reveals missing, outdated or damaged slots."""
        return self._sum & _SUM_MASK

    def first_tick(self) -> int | None:
        """Return the earliest moment with pending messages."""
        ticks = self._ticks
        while ticks and ticks[0] not in self._slots:
            heapq.heappop(ticks)
        return ticks[0] if ticks else None

    def get(self, tick: int) -> Slot | None:
        """Return a moment's slot."""
        return self._slots.get(tick)

    def last_unit(self, tick: int) -> int:
        """Return a moment's last unit, to which a new one links."""
        slot = self._slots.get(tick)
        return slot.last if slot is not None else NO_UNIT

    def add(self, tick: int, position: int, *, deletes: bool = False) -> None:
        """Add a unit to its moment."""
        slot = self._slots.get(tick)
        one = -1 if deletes else 1  # Counted as upstream does; the message to delete is another unit.
        if slot is None:
            heapq.heappush(self._ticks, tick)
            changed = Slot(position, position, one)
            self._sum += _summand(tick, changed)
        else:
            changed = Slot(slot.first, position, slot.messages + one)
            self._sum += position - slot.last + one
        self._slots[tick] = self._changed[tick] = changed

    def remove(self, tick: int) -> None:
        """Forget a moment whose messages were delivered."""
        slot = self._slots.pop(tick, None)
        if slot is not None:
            self._changed[tick] = None
            self._sum -= _summand(tick, slot)

    def forget_outside(self, log_start: int, log_end: int) -> tuple[set[int], int]:
        """Remove slots that refer to no unit of the log.

        Return the ticks of slots with units behind its end, and the number of messages in removed files.
        """
        lost: set[int] = set()
        expired = 0
        for tick, slot in list(self._slots.items()):
            if slot.last >= log_end:
                lost.add(tick)
            elif slot.last < log_start:
                expired += slot.messages
            else:
                continue
            self.remove(tick)
        return lost, expired

    def load(self, slots: Iterable[tuple[int, Slot]]) -> None:
        """Replace the slots by those of a file."""
        self._slots = dict(slots)
        self._ticks = sorted(self._slots)
        self._changed = {}
        self._sum = sum(_summand(tick, slot) for tick, slot in self._slots.items())

    def take_changes(self) -> dict[int, Slot | None]:
        """Return the changes since the last call, by tick; None: delivered."""
        changes, self._changed = self._changed, {}
        return changes

    def put_back(self, changes: dict[int, Slot | None]) -> None:
        """Take back changes that could not be written."""
        self._changed = changes | self._changed


def _summand(tick: int, slot: Slot) -> int:
    return 1 + tick + slot.first + slot.last + slot.messages


def is_whole(filesystem: FileSystem, path: Path, *, slots: int = SLOTS) -> bool:
    """Return whether a file has the right size."""
    return filesystem.exists(path) and filesystem.size(path) == slots * SLOT_BYTES


def read_wheel(
    filesystem: FileSystem, path: Path, *, from_tick: int, slots: int = SLOTS
) -> Iterator[tuple[int, Slot]]:
    """Yield the slots of a whole file from a moment on."""
    wheel_bytes = slots * SLOT_BYTES
    with opened(filesystem, path) as file:
        empty = bytes(_READ_BYTES)
        for start in range(0, wheel_bytes, _READ_BYTES):
            data = filesystem.pread(file, min(_READ_BYTES, wheel_bytes - start), start)
            if data == empty:  # Nearly the whole file, most of it holes.
                continue
            numbered = enumerate(_FORMAT.iter_unpack(data), start // SLOT_BYTES)
            for index, (tick, first, last, count, _) in numbered:
                if tick >= from_tick and tick > 0 and last >= 0 and tick % slots == index:
                    yield tick, Slot(first, last, count)


def write_slots(
    filesystem: FileSystem,
    path: Path,
    changes: dict[int, Slot | None],
    *,
    slots: int = SLOTS,
    made_again: bool = False,
) -> None:
    """Write changed slots and flush the file. A slot lies within one sector, so it is never torn.

    made_again: discard the file's old content.
    """
    with opened(filesystem, path, write=True, create=True) as file:
        if made_again:
            filesystem.truncate(file, 0)
        is_new = filesystem.file_size(file) != slots * SLOT_BYTES
        if is_new:
            filesystem.truncate(file, slots * SLOT_BYTES)
        # A zeroed slot shares its position with the moments two weeks before and after.
        for tick, slot in sorted(changes.items(), key=lambda change: change[1] is not None):
            data = bytes(SLOT_BYTES) if slot is None else _FORMAT.pack(tick, *slot, 0)
            filesystem.pwrite(file, data, tick % slots * SLOT_BYTES)
        filesystem.fsync(file)
    if is_new:
        filesystem.sync_directory(path.parent)
