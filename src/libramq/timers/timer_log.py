"""The timer log: the units of all timer messages, in the order in which they were collected; its format and
files.

    size (4) | previous unit of its slot (8) | magic (4) | written at (8) | delay (4)
    position of the message in the commit log (8) | its size (4) | hash of its topic (4) | 0 (8)

New units are kept in memory until a thread writes them together, after the messages they refer to are on the
disk. So a unit in the file never refers to a message that a power cut could remove.

Upstream: store/timer/TimerLog.java, TimerMessageStore.doEnqueue.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from libramq.filesystem import FileSystem, opened
from libramq.store.log.segments import Segments
from libramq.store.open_files import OpenFiles

UNIT_BYTES: Final = 52
#: The header of the filler at the end of a file: size, 0, BLANK_MAGIC.
BLANK_BYTES: Final = 16
#: TimerLog.BLANK_MAGIC_CODE: `0xBBCCDDEE ^ 1880681586 + 8`, as a signed number; Java adds first.
BLANK_MAGIC: Final = (0xBBCC_DDEE ^ (1_880_681_586 + 8)) - (1 << 32)
#: The end of a slot's chain.
NO_UNIT: Final = -1

ROLL: Final = 2
DELETE: Final = 4
_DEFAULT: Final = 1
_FORMAT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqi")


class TimerUnit(NamedTuple):
    """One timer message. previous: the slot's previous unit, or NO_UNIT for the first.

    written_ms, delay_ms: their sum is the time of its slot. rolls: the slot is earlier than the message's
    own, which is too far away. deletes: the message deletes another one of its slot.
    """

    previous: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int = 0
    rolls: bool = False
    deletes: bool = False

    @property
    def slot_ms(self) -> int:
        """Return the time of its slot."""
        return self.written_ms + self.delay_ms


def encode_unit(unit: TimerUnit) -> bytes:
    """Return a unit's bytes."""
    magic = _DEFAULT | (ROLL if unit.rolls else 0) | (DELETE if unit.deletes else 0)
    return _FORMAT.pack(
        UNIT_BYTES, unit.previous, magic, unit.written_ms, unit.delay_ms, unit.physical_offset, unit.size,
        unit.topic_hash, 0,
    )  # fmt: skip


def decode_unit(data: bytes | bytearray, start: int = 0) -> TimerUnit | None:
    """Return the unit that begins here, or None."""
    if start + UNIT_BYTES > len(data):
        return None
    size, previous, magic, written_ms, delay_ms, physical_offset, length, topic_hash, _ = _FORMAT.unpack_from(
        data, start
    )
    # TimerMessageStore.isMagicOK: only the lowest four bits are used.
    if size != UNIT_BYTES or not 0 <= magic <= 0xF or length <= 0 or physical_offset < 0:
        return None
    return TimerUnit(
        previous, written_ms, delay_ms, physical_offset, length, topic_hash,
        bool(magic & ROLL), bool(magic & DELETE),
    )  # fmt: skip


def encode_blank(size: int) -> bytes:
    """Return the filler at the end of a file."""
    return _BLANK.pack(size, 0, BLANK_MAGIC) + bytes(size - BLANK_BYTES)


def is_blank(data: bytes, start: int) -> bool:
    """Return whether the rest of the file is filler."""
    return start + BLANK_BYTES <= len(data) and _BLANK.unpack_from(data, start)[2] == BLANK_MAGIC


DIRECTORY: Final = "timerlog"
#: Ours: the units of a slot are often neighbours, so one read fetches several.
_BLOCK_BYTES: Final = 80 * UNIT_BYTES
_SCAN_BYTES: Final = 20_000 * UNIT_BYTES
_FILES_OPEN_MAX: Final = 4


class LogWrite(NamedTuple):
    """Units to write: the parts by file, and their end."""

    parts: list[tuple[Path, int, bytes]]
    directories: list[Path]
    end: int


class TimerLog:
    """Units by position. end: the position of the next one."""

    def __init__(self, filesystem: FileSystem, root: Path, file_size: int) -> None:
        self._files = OpenFiles(filesystem, _FILES_OPEN_MAX)
        self._segments = Segments(filesystem, self._files, root / DIRECTORY, file_size)
        self.end = 0
        #: Everything before it is in the files; `_unwritten` begins here.
        self.written_end = 0
        self.scanned_end = 0
        self._unwritten = bytearray()
        self._block_start = 0
        #: The message of the first file's last unit; None: not read yet.
        self._first_leads_to: int | None = None
        self._block = b""

    @property
    def start(self) -> int:
        """Return the position of the first remaining unit."""
        return self._segments.min_offset

    def open(self) -> None:
        """Open the files; call `units` and `end_at` next. A power cut may leave files short, even empty."""
        self._segments.load(clean=False)
        self.end = self.written_end = self._segments.end

    def units(self, start: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield the units from a position up to the first invalid one, and set `scanned_end`."""
        segments = self._segments
        position = max(min(start, segments.end), segments.min_offset)
        self.scanned_end = position
        while position < self.written_end:
            data, start = self._read(position, _SCAN_BYTES)
            unit = decode_unit(data, start)
            if unit is not None:
                yield position, unit
                position += UNIT_BYTES
            elif is_blank(data, start):
                position = segments.start_of(position) + segments.file_size
            else:
                return
            self.scanned_end = position

    def end_at(self, position: int) -> None:
        """Truncate the log right after opening, so that old units are not found behind new ones."""
        self.end = self.written_end = position
        self._segments.zero_after(position)
        self._block = b""

    def append(self, unit: TimerUnit) -> int:
        """Add a unit; return its position."""
        size = self._segments.file_size
        room = size - self.end % size
        if room < UNIT_BYTES + BLANK_BYTES:  # TimerLog.append keeps room for a blank.
            self._unwritten += encode_blank(room)
            self.end += room
        position = self.end
        self._unwritten += encode_unit(unit)
        self.end += UNIT_BYTES
        return position

    def unit_at(self, position: int) -> TimerUnit | None:
        """Return a unit, or None. Raises ColdRead if a thread must read it first."""
        if position >= self.written_end:
            return decode_unit(self._unwritten, position - self.written_end)
        if not self._segments.has(position):
            return None
        data, start = self._read(position, _BLOCK_BYTES, ends_there=True)
        return decode_unit(data, start)

    def set_may_wait(self, wait: bool) -> None:
        """Set whether reads may wait for the disk."""
        self._files.may_wait = wait

    def take(self) -> LogWrite:
        """Return a write of all units not in the files; they stay readable until `written`."""
        segments, parts = self._segments, []
        position, data = self.written_end, bytes(self._unwritten)
        while data:
            segments.ensure(position)
            start = segments.start_of(position)
            part = data[: start + segments.file_size - position]
            parts.append((segments.path(start), position - start, part))
            position, data = position + len(part), data[len(part) :]
        for path in segments.take_resized():
            parts.append((path, 0, b""))
        return LogWrite(parts, segments.take_new_directories(), position)

    def written(self, write: LogWrite) -> None:
        """Drop from memory the units that are now in the files."""
        del self._unwritten[: write.end - self.written_end]
        self.written_end = write.end
        self._block = b""

    def failed(self, write: LogWrite) -> None:
        """Flush names and sizes of files again with the next write; the units are still in memory."""
        self._segments.put_back(path for path, _, _ in write.parts)

    def drop_before(self, physical_offset: int) -> list[Path]:
        """Drop the first file if its messages are before the current start of the commit log."""
        segments = self._segments
        if len(segments.starts) < 2 or segments.starts[1] > self.written_end:
            return []
        start = segments.starts[0]
        if self._first_leads_to is None:
            size = segments.file_size
            # As TimerLog.getOffsetForLastUnit.
            last_at = start + size - (size - BLANK_BYTES) % UNIT_BYTES - BLANK_BYTES - UNIT_BYTES
            last = self.unit_at(last_at)
            self._first_leads_to = last.physical_offset if last is not None else 0
        if self._first_leads_to >= physical_offset:
            return []
        self._first_leads_to = None
        return segments.drop_before(segments.starts[1])

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _read(self, position: int, size: int, *, ends_there: bool = False) -> tuple[bytes, int]:
        """Return a block with the unit at a position, and the unit's position in the block."""
        start = self._block_start
        if start <= position and position + UNIT_BYTES <= start + len(self._block):
            return self._block, position - start
        segments = self._segments
        file_start = segments.start_of(position)
        # Slots are read from their end.
        start = max(file_start, position + UNIT_BYTES - size) if ends_there else position
        size = min(size, file_start + segments.file_size - start)
        self._block = segments.read(start, size)
        self._block_start = start
        return self._block, position - start


def run_log_write(filesystem: FileSystem, write: LogWrite) -> None:
    """Write units and flush them; may be called in a thread. Raises OSError."""
    for path, offset, data in write.parts:
        with opened(filesystem, path, write=True) as file:
            if data:
                filesystem.pwrite(file, data, offset)
            filesystem.fsync(file)
    for directory in write.directories:
        filesystem.sync_directory(directory)
