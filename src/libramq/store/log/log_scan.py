"""The log scan: the records of the commit log in order; where the log ends, which of its files is the newest
written, when a record counts as torn (NULs), and which unreadable ranges are damage, behind which the scan
continues.

The log ends at the first thing that is not a complete, valid record; but not before `protected`, since that
part was on the disk. Unreadable data there is a `Damage`, and the scan continues behind it:

        is_proven      its frame (or the blank's) ends where a valid record begins: one record is unreadable
        not is_proven  the next valid record was searched for; how many lie between is unknown

NULs in topic or properties, which no checksum covers, are the mark of sectors that were never written. Our
records have none (`refuses_nuls`), so one with NULs is torn; a record by another broker is torn only if no
valid record begins where its frame ends.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from libramq.errors import StoreCorrupt
from libramq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordHead,
    has_good_crc,
    peek_record,
)

_WINDOW_BYTES: Final = 1 << 20
_MAGICS = re.compile(
    b"|".join(re.escape(m.to_bytes(4)) for m in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC)), re.DOTALL
)


class LogFiles(Protocol):
    """The files of a log: libramq.store.log.segments, or read_only_files."""

    @property
    def file_size(self) -> int: ...
    @property
    def end(self) -> int: ...
    def start_of(self, offset: int) -> int: ...
    def has(self, offset: int) -> bool: ...
    def read(self, offset: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Damage:
    """A range [offset, end) that was on the disk and cannot be read.

    is_proven: it is one record, or the blank of a file. head: its fields, if only the body is damaged.
    """

    offset: int
    end: int
    reason: str
    is_proven: bool
    head: RecordHead | None = None
    is_blank: bool = False


def newest_written(files: LogFiles, starts: Sequence[int]) -> int:
    """Return where the newest file with a record begins: those before it were full long ago.

    starts: of the files. Apache's broker makes the next file before it needs it.
    """
    for start in reversed(starts):
        if isinstance(next(iter(LogScan(files, start)), None), RecordHead):
            return start
    return starts[0] if starts else 0


class LogScan:
    """Reads the log from `start`; then `end` is the offset of its end."""

    def __init__(
        self, files: LogFiles, start: int, *, protected: int = 0, refuses_nuls: bool = False
    ) -> None:
        self.end = start
        self._files = files
        self._protected = protected
        self._refuses_nuls = refuses_nuls
        self._window = b""
        self._window_start = start

    def __iter__(self) -> Iterator[RecordHead | Damage]:
        while True:
            head = self._next_in_window()
            while head is not None:
                yield head
                head = self._next_in_window()
            if not self._files.has(self.end):
                return
            found = self._examine(self.end)
            if isinstance(found, RecordHead):
                self.end = found.physical_offset + found.size
                yield found
            elif isinstance(found, int):
                self.end = found
            elif self.end < self._protected:
                damage = self._damage(self.end, found)
                self.end = damage.end
                yield damage
            else:
                return

    def _next_in_window(self) -> RecordHead | None:
        """Return the next record and go behind it, if it is in the window and needs no judgement.

        As nearly all do: so recovery takes 4.4 µs a record instead of 6.2.
        """
        window, at = self._window, self.end - self._window_start
        try:
            head = peek_record(window, at) if at >= 0 else None
        except StoreCorrupt:
            return None
        if (
            head is None
            or head.physical_offset != self.end
            or not has_good_crc(window, head)
            or "\0" in head.topic
            or b"\0" in head.properties
        ):
            return None
        self.end += head.size
        return head

    def _examine(self, offset: int, *, judges_nuls: bool = True) -> RecordHead | int | str:
        """Return the record at an offset; where a blank ends; or why neither is there."""
        file_end = self._file_end(offset)
        data, at = self._read(offset, BLANK_BYTES)
        if len(data) - at < BLANK_BYTES:
            return "the file is cut short"
        size, magic = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])
        if magic == BLANK_MAGIC:
            return file_end if offset + size == file_end else "a blank does not end where its file does"
        if not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, file_end - offset):
            return f"a record has {size} bytes"
        data, at = self._read(offset, size)
        try:
            head = peek_record(data, at)
        except StoreCorrupt as error:
            return str(error)
        if head is None:
            return "the file is cut short"
        if head.physical_offset != offset:
            return f"a record has the physical offset {head.physical_offset}"
        if not has_good_crc(data, head):
            return "a body does not match its checksum"
        if judges_nuls and self._is_torn(head):
            return "topic or properties were not written"
        return head

    def _is_torn(self, head: RecordHead) -> bool:
        if "\0" not in head.topic and b"\0" not in head.properties:
            return False
        if head.physical_offset < self._protected:
            return False
        return self._refuses_nuls or not self._begins_well(head.physical_offset + head.size)

    def _damage(self, offset: int, reason: str) -> Damage:
        file_end = self._file_end(offset)
        data, at = self._read(offset, BLANK_BYTES)
        size, magic = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])
        is_blank = magic == BLANK_MAGIC or offset + size == file_end
        end = file_end if is_blank else offset + size
        is_frame = is_blank or (RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX and end < file_end)
        # The damage may be in its size, which would lead past valid records.
        nearest = self._next_good(offset + 1)
        if is_frame and end <= nearest and (end == self._protected or end == nearest):
            return Damage(
                offset, end, reason, is_proven=True, head=self._head(offset, size), is_blank=is_blank
            )
        return Damage(offset, nearest, reason, is_proven=False)

    def _head(self, offset: int, size: int) -> RecordHead | None:
        """Return the fields of a record whose body alone is damaged."""
        if size > RECORD_BYTES_MAX:
            return None
        data, at = self._read(offset, size)
        try:
            head = peek_record(data, at)
        except StoreCorrupt:
            return None
        return head if head is not None and head.physical_offset == offset else None

    def _begins_well(self, offset: int) -> bool:
        """Return whether a valid record or blank begins here."""
        return self._files.has(offset) and not isinstance(self._examine(offset, judges_nuls=False), str)

    def _next_good(self, offset: int) -> int:
        """Return where the next valid record or blank begins; the end of the files if none does."""
        while self._files.has(offset):
            size = min(_WINDOW_BYTES, self._file_end(offset) - offset)
            data = self._files.read(offset, size)
            for found in _MAGICS.finditer(data):
                candidate = offset + found.start() - 4
                if candidate >= offset and self._begins_well(candidate):
                    return candidate
            if not data:
                offset = self._file_end(offset)
            elif size == self._file_end(offset) - offset:
                offset += size
                if self._begins_well(offset):
                    return offset
            else:
                offset += max(1, len(data) - BLANK_BYTES + 1)
        return max(offset, self._protected)

    def _file_end(self, offset: int) -> int:
        return self._files.start_of(offset) + self._files.file_size

    def _read(self, offset: int, size: int) -> tuple[bytes, int]:
        """Return bytes that include this range, and where in them it begins; fewer at the end of a file."""
        at = offset - self._window_start
        if not 0 <= at <= len(self._window) - size:
            room = self._file_end(offset) - offset
            self._window = self._files.read(offset, min(max(_WINDOW_BYTES, size), room))
            self._window_start, at = offset, 0
        return self._window, at
