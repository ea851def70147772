"""The key index: finds messages by their keys, in Apache's index files, brought up to date on demand.

        query ─► read the log from the last query on, some records at a time ─► look up ─► compare keys

Indexing a message costs a tenth of storing it, and most are never searched for. So nothing is indexed before
a query; the log is read from the end of the newest file on. That file is not trusted after an unclean end,
nor is any after one whose header is impossible: they are built again. Files whose messages are all deleted
are removed by the next query.

Everything here waits for the disk and runs on a thread, one call at a time.
Upstream: store/index/IndexService.java, DefaultMessageStore.queryMessage.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final

from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.message.record import BLANK_BYTES, RECORD_BYTES_MAX, RECORD_BYTES_MIN, RecordHead, peek_record
from libramq.store.index.index_file import IndexFile, key_hash
from libramq.store.index.message_keys import has_items, keys_of, keys_of_all, with_key
from libramq.store.log.log_scan import LogScan
from libramq.store.reading.read_only_files import FileRemoved, ReadOnlyFiles

log = get_logger(__name__)

#: Ours: how much one call of `advance` handles, some 0.1 s of each: records, their keys, and bytes, for their
#: checksums.
STRETCH: Final = 5_000
STRETCH_KEYS: Final = 20_000
STRETCH_BYTES: Final = 64 * 1024 * 1024
#: Ours: how much of a search one step does, some 0.1 s: entries of the index, and records at the price of
#: RECORD_LOOKS entries and one more for every page.
STRETCH_LOOKS: Final = 20_000
RECORD_LOOKS: Final = 10
_PAGE_BYTES: Final = 4_096
#: yyyyMMddHHmmssSSS.
NAME_DIGITS: Final = 17
#: The last day that has such a name; no checksum covers the times of messages.
_DATED_MS_MAX: Final = 253_402_200_000_000


class KeyIndex:
    """The index files of a store. is_trusted: the store was closed cleanly when they were last written."""

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
        #: The newest indexed message: its store time, and its position.
        self.last_timestamp_ms, self.last_offset = 0, -1

    def advance(self, until: int) -> bool:
        """Index the next part of the log; return whether everything before `until` is indexed."""
        try:
            return self._advance(until)
        except FileRemoved:  # The next call continues behind it.
            return False

    def _advance(self, until: int) -> bool:
        with closing(ReadOnlyFiles(self._filesystem, self._log_directory)) as files:
            if self._position is None or self._was_cut():
                self._position = self._open(until)
            self._remove_before(files.min_offset)
            scan = LogScan(files, max(self._position, files.min_offset), protected=until)
            heads = (found for found in scan if isinstance(found, RecordHead))
            is_done = self._put(files, heads, until)
            if is_done and scan.end <= until:  # Else `until` is within a record, which is not indexed yet.
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
        """Yield the records of a topic with this key, the newest first; before them None after each stretch.

        bytes_max: no further record is returned from this size on. until: the end of the log for the reader.
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
            if name in self._names:  # Others may have removed it since.
                with closing(self._file(name)) as index:
                    yield from index.chain(hashed, begin_ms, end_ms)

    def _open(self, until: int) -> int:
        """Return from where on the log is not indexed yet."""
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
                    self._remove_from(count)
                    break
            after = header.end_offset
        while self._names:
            with closing(self._file(self._names[-1])) as index:
                header = index.header
            end_offset, end_timestamp_ms = header.end_offset, header.end_timestamp_ms
            if header.next_entry > 1 and end_offset < until and self._is_end(end_offset, end_timestamp_ms):
                self.last_timestamp_ms, self.last_offset = end_timestamp_ms, end_offset
                return end_offset  # The start of its last record, which `_put` skips.
            self._remove(self._names.pop())  # Empty, or of another log than this one is now.
        self.last_timestamp_ms, self.last_offset = 0, -1
        return 0

    def _lacks(self, after: int, begin: int) -> bool:
        """Return whether the log has a message with keys between two index files: one was lost."""
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
        """Return whether the newest indexed record is gone: slaves' logs are cut where they differ."""
        return self.last_offset >= 0 and not self._is_end(self.last_offset, self.last_timestamp_ms)

    def _is_end(self, end_offset: int, end_timestamp_ms: int) -> bool:
        """Return whether the record at an index's end is the one that was indexed, or is deleted."""
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
        """Index records; return whether it was all of them, not a full stretch."""
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
        """Have the next query build the newest file again: the disk does not have all of it."""
        self._position, self._is_trusted = None, False

    def _with_room(self, index: IndexFile | None, timestamp_ms: int) -> IndexFile:
        """Return a file with room for another entry: the given one, the newest, or a new one."""
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
                index.save_header()
                index.sync()
            except OSError:
                self._distrust()
                raise

    def _file(self, name: str) -> IndexFile:
        path = self._directory / name
        return IndexFile(self._filesystem, path, slots=self._slots, entries_max=self._entries_max)

    def _remove_before(self, min_offset: int) -> None:
        """Remove files whose messages are all deleted; the newest stays, as it holds the index's end."""
        while len(self._names) > 1:
            with closing(self._file(self._names[0])) as index:
                if index.header.end_offset >= min_offset:
                    return
            self._remove(self._names.pop(0))

    def _remove_from(self, count: int) -> None:
        """Keep so many files, and remove those after them."""
        log.warning("an index file is damaged, or one before it lost; built again", file=self._names[count])
        while len(self._names) > count:
            self._remove(self._names.pop())

    def _remove(self, name: str) -> None:
        log.info("an index file is removed", file=name)
        self._filesystem.unlink(self._directory / name)


def _keys(files: ReadOnlyFiles, head: RecordHead) -> list[str]:
    """Return the keys of a record's messages. FileRemoved if it must be read, and is gone."""
    if not has_items(head):
        return keys_of(head)
    return keys_of_all(files.read(head.physical_offset, head.size), head)


def _record(files: ReadOnlyFiles, offset: int, until: int) -> bytes | None:
    """Return the record at an offset from an index, if there is a readable one."""
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
    """Return a file's name by the time of its first message, after the existing ones."""
    timestamp_ms = min(max(timestamp_ms, 0), _DATED_MS_MAX)
    name = f"{datetime.fromtimestamp(timestamp_ms / 1000):%Y%m%d%H%M%S}{timestamp_ms % 1000:03d}"
    return max(name, f"{int(after) + 1:0{NAME_DIGITS}d}") if after else name
