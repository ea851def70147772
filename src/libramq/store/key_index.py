"""The key index: finds messages by their keys, in Apache's index files, which each query brings up to date;
decides when a file is full or untrusted.

        query ─► read the log since the last query, some records at a time ─► look up ─► compare keys

    a file   header, 40 bytes ─ slots, 4 bytes each: the number of the newest entry ─ entries, 20 bytes each

Each slot heads a chain of entries, the newest first; entry 0 is never used. Hits may be collisions, so the
keys are compared. Indexing a message costs a tenth of storing it, and most messages are never searched for.
So nothing is indexed before a query, which reads the log from the end of the newest file. After an unclean
end the newest file is rebuilt; so are a file with an impossible header and all files after it. Each query
removes files whose messages are all deleted.

Everything here waits for the disk and runs in a thread, one call at a time.

Upstream: store/index/IndexService.java, IndexFile.java, IndexHeader.java, DefaultMessageStore.queryMessage.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from libramq.errors import LibraError, StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.message import sys_flag as flags
from libramq.message.batch import decode_properties
from libramq.message.compression import decompress_body
from libramq.message.ids import place_of
from libramq.message.inner_batch import unwrapped_items
from libramq.message.properties import KEYS, UNIQ_KEY, find_property
from libramq.message.record import BLANK_BYTES, RECORD_BYTES_MAX, RECORD_BYTES_MIN, RecordHead, peek_record
from libramq.message.tags import java_hash
from libramq.store.log.log_scan import LogScan
from libramq.store.reading.read_only_files import FileRemoved, ReadOnlyFiles

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">iqii")
#: Java's largest int: hashes and seconds are stored as ints.
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
    """Return the index's hash of a text."""
    hashed = abs(java_hash(text))
    return hashed if hashed <= _INT_MAX else 0  # Java's Math.abs leaves the smallest int negative.


class IndexFile:
    """One index file, open for reading and writing; call `save` after adding entries."""

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
                    "Set it back, or remove the directory, which is then rebuilt"
                )
            self.header = IndexHeader(*_HEADER.unpack(filesystem.pread(self._file, _HEADER.size, 0)))
            if not any(self.header):
                self.header = IndexHeader()
        except BaseException:
            filesystem.close(self._file)
            raise

    @property
    def is_possible(self) -> bool:
        """Return whether the header is possible; nothing else reveals a damaged file."""
        header = self.header
        return 1 <= header.next_entry <= self._entries_max and 0 <= header.begin_offset <= header.end_offset

    @property
    def is_full(self) -> bool:
        """Return whether the next entry needs another file."""
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

        Messages outside the time range yield None as well. Entries store whole seconds since the file's first
        message, limited to 0 and Java's largest int. A time at either limit is unknown, because the clock may
        have been set.
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
            if previous >= number:  # A valid chain never goes forwards.
                return
            number = previous

    def save(self) -> None:
        """Write the header, which makes new entries visible, and flush the file to the disk."""
        self._filesystem.pwrite(self._file, _HEADER.pack(*self.header), 0)
        self._filesystem.fsync(self._file)

    def close(self) -> None:
        """Close the descriptor."""
        self._filesystem.close(self._file)

    def _previous(self, slot_at: int) -> int:
        number: int = _SLOT.unpack(self._filesystem.pread(self._file, _SLOT.size, slot_at))[0]
        return number if 0 < number < self.header.next_entry else 0


_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()


def has_items(head: RecordHead) -> bool:
    """Return whether a record is an inner batch with messages that have keys."""
    return head.sys_flag & flags.WRAPPED == flags.WRAPPED


def keys_of(head: RecordHead) -> list[str]:
    """Return the keys of a record itself, each once: the unique one, then those of the application."""
    if head.sys_flag & flags.TRANSACTION_MASK == flags.TRANSACTION_ROLLBACK:
        return []
    return _keys_in(head.properties)


def _keys_in(properties: bytes) -> list[str]:
    unique = find_property(properties, _UNIQ_KEY)
    keys = find_property(properties, _KEYS)
    found = keys.decode("utf-8", "replace").split(" ") if keys else []
    if unique:
        found.insert(0, unique.decode("utf-8", "replace"))
    return [key for key in dict.fromkeys(found) if key]


def keys_of_all(record: bytes, head: RecordHead) -> list[str]:
    """Return the keys of a record and of the messages in it, each once."""
    found = dict.fromkeys(keys_of(head))
    for properties in _properties_of_items(record):
        found.update(dict.fromkeys(_keys_in(properties)))
    return list(found)


def with_key(record: bytes, topic: str, key: str, begin_ms: int, end_ms: int) -> list[tuple[int, bytes]]:
    """Return the messages with a key and their places: the record, or inner messages as separate records."""
    try:
        head = peek_record(record)
    except StoreCorrupt:
        return []
    if head is None or head.topic != topic or not begin_ms <= head.store_timestamp_ms <= end_ms:
        return []
    if key in keys_of(head):
        return [(head.physical_offset, record)]
    # A byte search rules out nearly all messages, because properties contain keys verbatim.
    wanted = key.encode("utf-8", "replace")
    numbers = [
        number
        for number, properties in enumerate(_properties_of_items(record))
        if (wanted in properties or not properties.isascii()) and key in _keys_in(properties)
    ]
    items = unwrapped_items(record, head, frozenset(numbers)) if numbers else []
    return [
        (place_of(head.physical_offset, number), data) for number, data in zip(numbers, items, strict=True)
    ]


def _properties_of_items(record: bytes) -> Sequence[bytes]:
    """Return the properties of an inner batch's messages; empty if the batch cannot be read.

    No records are built for the messages.
    """
    head = peek_record(record)  # A scan's head has positions in the scan's window.
    if head is None or not has_items(head):
        return ()
    try:
        body = decompress_body(record[head.body_start : head.body_end], head.sys_flag)
        found: list[bytes] = []
        start = 0
        while start < len(body):
            properties, start = decode_properties(body, start, len(body))
            found += properties
    except LibraError:
        return ()
    return found


log = get_logger(__name__)

#: Ours: one call of `advance` indexes at most this many records, some 0.1 s.
STRETCH: Final = 5_000
#: Ours: one call of `advance` adds at most this many keys, some 0.1 s.
STRETCH_KEYS: Final = 20_000
#: Ours: one call of `advance` verifies checksums of at most this many bytes, some 0.1 s.
STRETCH_BYTES: Final = 64 * 1024 * 1024
#: Ours: one step of a search looks at this many index entries, some 0.1 s.
STRETCH_LOOKS: Final = 20_000
#: Ours: reading a record costs as much as this many entries, and one more per page.
RECORD_LOOKS: Final = 10
_PAGE_BYTES: Final = 4_096
#: yyyyMMddHHmmssSSS.
NAME_DIGITS: Final = 17
#: The last time that such a name can express; store times are not checksummed and may be larger.
_DATED_MS_MAX: Final = 253_402_200_000_000


class KeyIndex:
    """The index files of a store. is_trusted: the store was closed cleanly after the last write."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: Path,
        *,
        slots: int,
        entries_max: int,
        is_trusted: bool,
        commit_log: Path | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._log_directory = commit_log or root / "commitlog"
        self._directory = root / "index"
        self._slots = slots
        self._entries_max = entries_max
        self._is_trusted = is_trusted
        self._names: list[str] = []
        self._position: int | None = None
        #: Store time and physical offset of the newest indexed message.
        self.last_timestamp_ms, self.last_offset = 0, -1

    def advance(self, until: int) -> bool:
        """Index the next part of the log; return whether everything before `until` is indexed."""
        is_done = False
        with (
            suppress(FileRemoved),  # The next call continues after the removed file.
            closing(ReadOnlyFiles(self._filesystem, self._log_directory)) as files,
        ):
            if self._position is None or self._was_cut():
                self._position = self._open(until)
            self._remove_before(files.min_offset)
            scan = LogScan(files, max(self._position, files.min_offset), protected=until)
            heads = (found for found in scan if isinstance(found, RecordHead))
            is_done = self._put(files, heads, until)
            if is_done and scan.end <= until:  # Otherwise `until` is inside a record.
                self._position = max(self._position or 0, scan.end)
        return is_done

    def find(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        bytes_max: int,
        begin_ms: int,
        end_ms: int,
        until: int,
    ) -> Generator[list[bytes] | None]:
        """Yield None after each stretch of the search, then the records of a topic with this key, the newest
        first.

        bytes_max: once the records reach this size, no more are added. until: the readable end of the log.
        """
        found: dict[int, bytes] = {}
        seen: set[int] = set()
        looks = size = 0
        with closing(ReadOnlyFiles(self._filesystem, self._log_directory)) as files:
            for offset in self._candidates(key_hash(topic, key), begin_ms, end_ms):
                looks += 1
                record = None
                if offset is not None and offset not in seen:
                    seen.add(offset)
                    record = _record(files, offset, until)
                if record is not None:
                    looks += RECORD_LOOKS + len(record) // _PAGE_BYTES
                    for place, message in reversed(with_key(record, topic, key, begin_ms, end_ms)):
                        size += len(message)
                        if found and (size > bytes_max or len(found) >= count_max):
                            break
                        found[place] = message
                    if size > bytes_max or len(found) >= count_max:
                        break
                if looks >= STRETCH_LOOKS:
                    looks = 0
                    yield None
        yield list(found.values())

    def _candidates(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        for name in reversed(self._names.copy()):
            if name in self._names:  # Another call may have removed it meanwhile.
                with closing(self._file(name)) as index:
                    yield from index.chain(hashed, begin_ms, end_ms)

    def _open(self, until: int) -> int:
        """Return the offset from which the log is not indexed yet."""
        names = self._filesystem.listdir(self._directory) if self._filesystem.exists(self._directory) else []
        self._names = sorted(name for name in names if len(name) == NAME_DIGITS and name.isdecimal())
        if self._names and not self._is_trusted:
            self._remove(self._names.pop())
        self._is_trusted = True
        after = -1
        for count, name in enumerate(self._names):
            with closing(self._file(name)) as index:
                header = index.header
                is_empty = header.next_entry == 1 and name != self._names[-1]
                if is_empty or not index.is_possible or self._lacks(after, header.begin_offset):
                    log.warning("an index file is damaged or the one before it lost; rebuilding", file=name)
                    while len(self._names) > count:
                        self._remove(self._names.pop())
                    break
            after = header.end_offset
        while self._names:
            with closing(self._file(self._names[-1])) as index:
                header = index.header
            end_offset, end_timestamp_ms = header.end_offset, header.end_timestamp_ms
            if header.next_entry > 1 and end_offset < until and self._is_end(end_offset, end_timestamp_ms):
                self.last_timestamp_ms, self.last_offset = end_timestamp_ms, end_offset
                return end_offset  # The last indexed record, which `_put` skips.
            self._remove(self._names.pop())  # The file is empty, or the log was cut or replaced since.
        self.last_timestamp_ms, self.last_offset = 0, -1
        return 0

    def _lacks(self, after: int, begin: int) -> bool:
        """Return whether the log has a message with keys between two index files, so that a file was lost."""
        with closing(ReadOnlyFiles(self._filesystem, self._log_directory)) as files:
            start = max(after, files.min_offset)
            for found in LogScan(files, start, protected=begin) if start < begin else ():
                if isinstance(found, RecordHead) and found.physical_offset > after:
                    if found.physical_offset >= begin:
                        return False
                    if _keys(files, found):
                        return True
        return False

    def _was_cut(self) -> bool:
        """Return whether the newest indexed record is gone: a slave's log is cut where it diverges."""
        return self.last_offset >= 0 and not self._is_end(self.last_offset, self.last_timestamp_ms)

    def _is_end(self, end_offset: int, end_timestamp_ms: int) -> bool:
        """Return whether the record at an index's end is the indexed one or was deleted."""
        with closing(ReadOnlyFiles(self._filesystem, self._log_directory)) as files:
            if end_offset < files.min_offset:
                return True
            record = _record(files, end_offset, files.end)
        try:
            head = peek_record(record) if record is not None else None
        except StoreCorrupt:
            return False
        expected = end_offset, end_timestamp_ms
        return head is not None and (head.physical_offset, head.store_timestamp_ms) == expected

    def _put(self, files: ReadOnlyFiles, heads: Iterator[RecordHead], until: int) -> bool:
        """Index records until a stretch is full; return False if it was."""
        index: IndexFile | None = None
        count = keys = size = 0
        try:
            for head in heads:
                end = head.physical_offset + head.size
                if end > until:
                    break
                count, size = count + 1, size + head.size
                if head.physical_offset > self.last_offset:
                    for key in _keys(files, head):
                        keys += 1
                        index = self._add(index, key, head)
                    self.last_timestamp_ms, self.last_offset = head.store_timestamp_ms, head.physical_offset
                self._position = end
                if count >= STRETCH or keys >= STRETCH_KEYS or size >= STRETCH_BYTES:
                    return False
        finally:
            if index is not None:
                self._finish(index)
        return True

    def _add(self, index: IndexFile | None, key: str, head: RecordHead) -> IndexFile:
        """Add a message under a key; return the file."""
        try:
            index = self._with_room(index, head.store_timestamp_ms)
            index.put(key_hash(head.topic, key), head.physical_offset, head.store_timestamp_ms)
        except OSError:
            self._distrust()
            raise
        return index

    def _distrust(self) -> None:
        """Make the next query rebuild the newest file, which the disk does not have completely."""
        self._position, self._is_trusted = None, False

    def _with_room(self, index: IndexFile | None, timestamp_ms: int) -> IndexFile:
        """Return a file with room for another entry: `index`, the newest, or a new one."""
        if index is None and self._names:
            index = self._file(self._names[-1])
        if index is not None and index.is_full:
            self._finish(index)
            index = None
        if index is None:
            name = _name(timestamp_ms, after=self._names[-1] if self._names else "")
            self._filesystem.makedirs(self._directory)
            index = self._file(name)
            self._names.append(name)
        return index

    def _finish(self, index: IndexFile) -> None:
        with closing(index):
            try:
                index.save()
            except OSError:
                self._distrust()
                raise

    def _file(self, name: str) -> IndexFile:
        path = self._directory / name
        return IndexFile(self._filesystem, path, slots=self._slots, entries_max=self._entries_max)

    def _remove_before(self, min_offset: int) -> None:
        """Remove files whose messages are all deleted, except the newest, which records the index's end."""
        while len(self._names) > 1:
            with closing(self._file(self._names[0])) as index:
                if index.header.end_offset >= min_offset:
                    return
            self._remove(self._names.pop(0))

    def _remove(self, name: str) -> None:
        log.info("an index file is removed", file=name)
        self._filesystem.unlink(self._directory / name)


def _keys(files: ReadOnlyFiles, head: RecordHead) -> list[str]:
    """Return the keys of a record's messages; raises FileRemoved if the record must be read but is gone."""
    if not has_items(head):
        return keys_of(head)
    return keys_of_all(files.read(head.physical_offset, head.size), head)


def _record(files: ReadOnlyFiles, offset: int, until: int) -> bytes | None:
    """Return the record at an offset taken from an index; None if it is not readable."""
    if offset < 0 or not files.has(offset):
        return None
    try:
        size = int.from_bytes(files.read(offset, BLANK_BYTES)[:4])
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX or offset + size > until:
            return None
        return files.read(offset, size)
    except FileRemoved:
        return None


def _name(timestamp_ms: int, *, after: str) -> str:
    """Return the name of a new file, from the time of its first message, sorted after all existing names."""
    timestamp_ms = min(max(timestamp_ms, 0), _DATED_MS_MAX)
    name = f"{datetime.fromtimestamp(timestamp_ms / 1000):%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}"
    return max(name, f"{int(after) + 1:0{NAME_DIGITS}d}") if after else name
