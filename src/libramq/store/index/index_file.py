"""The index file: messages by the hash of a key; each slot is a chain of entries, the newest first.

    header, 40 bytes ─ slots, 4 bytes each: the number of the newest entry ─ entries, 20 bytes each

Entry 0 is never used. Hits may be collisions: the caller compares the keys of the results.
Upstream: store/index/IndexFile.java, IndexHeader.java.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.message.tags import java_hash

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">iqii")
#: Java's largest int: hashes and seconds are stored in as many bits.
_INT_MAX: Final = 0x7FFF_FFFF


class IndexHeader(NamedTuple):
    """The header. begin, end: store times and physical offsets of the first and the last message."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1


def key_hash(topic: str, key: str) -> int:
    """Return the hash of a message's key (IndexFile.indexKeyHashMethod)."""
    return index_hash(f"{topic}#{key}")


def index_hash(text: str) -> int:
    """Return the hash of a text, as in the index."""
    hashed = abs(java_hash(text))
    return hashed if hashed <= _INT_MAX else 0  # Java's Math.abs leaves the smallest number negative.


class IndexFile:
    """One file, open for reading and writing; `save_header` after entries were added."""

    def __init__(self, filesystem: FileSystem, path: Path, *, slots: int, entries_max: int) -> None:
        self.path = path
        self._filesystem = filesystem
        self._slots = slots
        self._entries_max = entries_max
        self._entries_at = _HEADER.size + slots * _SLOT.size
        size = self._entries_at + entries_max * _ENTRY.size
        self._file = filesystem.open(path, write=True, create=True)
        try:
            found = filesystem.file_size(self._file)
            if not found:
                filesystem.truncate(self._file, size)
            elif found != size:
                raise StoreCorrupt(
                    f"{path} has {found} bytes instead of {size}: was maxHashSlotNum or maxIndexNum changed? "
                    "Set it back, or remove the directory: it is made again"
                )
            self.header = IndexHeader(*_HEADER.unpack(filesystem.pread(self._file, _HEADER.size, 0)))
            if not any(self.header):
                self.header = IndexHeader()
        except BaseException:
            filesystem.close(self._file)
            raise

    @property
    def is_possible(self) -> bool:
        """Return whether the header can be one; nothing else shows that a file is damaged."""
        header = self.header
        return 1 <= header.next_entry <= self._entries_max and 0 <= header.begin_offset <= header.end_offset

    @property
    def is_full(self) -> bool:
        """Return whether another file must begin."""
        return self.header.next_entry >= self._entries_max

    def put(self, hashed: int, physical_offset: int, store_timestamp_ms: int) -> None:
        """Add a message under the hash of one of its keys."""
        header = self.header
        if header.next_entry <= 1:
            header = header._replace(begin_offset=physical_offset, begin_timestamp_ms=store_timestamp_ms)
        slot_at = _HEADER.size + hashed % self._slots * _SLOT.size
        previous = self._previous(slot_at)
        seconds = (store_timestamp_ms - header.begin_timestamp_ms) // 1000
        entry = _ENTRY.pack(hashed, physical_offset, min(max(seconds, 0), _INT_MAX), previous)
        write = self._filesystem.pwrite
        write(self._file, entry, self._entries_at + header.next_entry * _ENTRY.size)
        write(self._file, _SLOT.pack(header.next_entry), slot_at)
        self.header = header._replace(
            end_timestamp_ms=store_timestamp_ms,
            end_offset=physical_offset,
            used_slots=header.used_slots + (not previous),
            next_entry=header.next_entry + 1,
        )

    def chain(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield the physical offsets of messages under a hash, the newest first; None for other entries.

        Those whose time cannot be in the range are others. Entries have whole seconds since the file's first
        message, from 0 on, so a time below 0 or above the largest is unknown: the clock was set.
        """
        header = self.header
        number = self._previous(_HEADER.size + hashed % self._slots * _SLOT.size)
        while 0 < number < header.next_entry:
            data = self._filesystem.pread(self._file, _ENTRY.size, self._entries_at + number * _ENTRY.size)
            found, offset, seconds, previous = _ENTRY.unpack(data)
            second_ms = header.begin_timestamp_ms + seconds * 1000
            may_match = (second_ms <= end_ms or not seconds) and (
                begin_ms < second_ms + 1000 or seconds == _INT_MAX
            )
            yield offset if found == hashed and may_match else None
            if previous >= number:  # No valid chain goes forwards.
                return
            number = previous

    def save_header(self) -> None:
        """Write the header, which makes the entries added before visible."""
        self._filesystem.pwrite(self._file, _HEADER.pack(*self.header), 0)

    def sync(self) -> None:
        """Flush the file to the disk."""
        self._filesystem.fsync(self._file)

    def close(self) -> None:
        """Close the descriptor."""
        self._filesystem.close(self._file)

    def _previous(self, slot_at: int) -> int:
        number: int = _SLOT.unpack(self._filesystem.pread(self._file, _SLOT.size, slot_at))[0]
        return number if 0 < number < self.header.next_entry else 0
