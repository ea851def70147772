"""The deletions: the log positions at which topics, groups and queue messages were deleted, so that a
recovery does not bring them back.

    libra.deletions    two equal lines per deletion: crc of the rest, 8 digits | physical offset | JSON name

    topic              a topic was deleted: records before the offset are not of a later topic of that name
    /group             a group was removed: pops before the offset are not of a later group of that name
    topic/queue id     the queue's messages before the offset were deleted; their queue offsets are not reused

The log keeps the records of a deleted topic until their file is removed, and has no record of the deletion.
After a power cut, recovery would rebuild their units, mixed with those of a new topic of the same name or
under the deleted name. So the log's end is noted before queues are removed, and the note is on the disk
before any later append counts as flushed.

The file lies beside Apache's. Apache's brokers ignore it and rebuild such units as they always did.
"""

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from libramq.filesystem import FileSystem, opened
from libramq.logs import get_logger

log = get_logger(__name__)

FILE_NAME: Final = "libra.deletions"
#: The key of the deletions in the table of committed offsets that slaves copy; Apache's slaves ignore it.
COPIED_AS: Final = "libraDeletions"
#: Ours: at this size the file is rewritten without outdated lines.
REWRITE_BYTES: Final = 1 << 20
_NOTE: Final = re.compile(r'([0-9a-f]{8}) (([0-9]+) ("(?:[^"\\]|\\.)*"))')


class Deletions:
    """The deletions file of one store. Offsets are physical."""

    def __init__(self, filesystem: FileSystem, root: Path) -> None:
        self._filesystem = filesystem
        self._path = root / FILE_NAME
        self._ends: dict[str, int] = {}
        self._size = 0
        self._rewrite_bytes = REWRITE_BYTES
        #: Whether the file has outdated or missing lines.
        self.is_stale = False
        #: Whether the file has unflushed lines.
        self.is_dirty = False

    def end_of(self, topic: str) -> int:
        """Return the offset below which records of a topic belong to a deleted one."""
        return self._ends.get(topic, 0)

    def end_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset below which messages of a queue were deleted, with their topic or without it."""
        return max(self.end_of(topic), self.end_of(_queue_name(topic, queue_id)))

    def end_of_group(self, group: str) -> int:
        """Return the offset below which pops of a group belong to a removed one."""
        return self.end_of(_group_name(group))

    def ends(self) -> dict[str, int]:
        """Return the end of every deleted topic, queue and group, by its name in the file."""
        return dict(self._ends)

    def load(self, *, end: int | None = None) -> None:
        """Read the intact lines: a power cut may leave a torn last line, and bits may flip anywhere.

        end: the offset up to which notes are valid; None: all of them are.
        """
        text = self._filesystem.read_text(self._path) or ""
        *lines, rest = text.split("\n")
        notes = [list(_notes(line)) for line in lines]
        for name, noted in chain.from_iterable(notes):
            self._ends[name] = max(noted, self.end_of(name))
        unreadable = notes.count([])
        if unreadable:
            log.warning(
                "notes of deletions cannot be read; data deleted by a note without a copy may come back",
                path=str(self._path),
                unreadable=unreadable,
            )
        self._size = len(text)
        self.is_stale = rest != "" or any(len(found) != 1 for found in notes)
        if end is not None:
            self.bound(end=end)

    def note(self, topic: str, end: int) -> None:
        """Note a deleted topic whose records lie before an offset; raises OSError if the disk refuses."""
        if self.is_stale or self._size >= self._rewrite_bytes:
            self._rewrite(self._ends | {topic: end})
            return
        data = _encode(topic, end)
        self._filesystem.makedirs(self._path.parent)
        with opened(self._filesystem, self._path, write=True, create=True) as file:
            self._filesystem.pwrite(file, data, self._size)
        self._ends[topic] = end
        self._size += len(data)
        self.is_dirty = True

    def note_queue(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a queue's messages before an offset are deleted."""
        self.note(_queue_name(topic, queue_id), end)

    def note_group(self, group: str, end: int) -> None:
        """Note a removed group whose pops lie before an offset."""
        self.note(_group_name(group), end)

    def take_unsynced(self) -> tuple[Path, ...]:
        """Return the file if it needs a flush, and mark it flushed."""
        paths = (self._path,) if self.is_dirty else ()
        self.is_dirty = False
        return paths

    def bound(self, *, first: int = 0, end: int) -> None:
        """Drop deletions before the log's first record; lower the others to `end`, where new topics begin."""
        bounded = {topic: min(at, end) for topic, at in self._ends.items() if min(at, end) > first}
        self.is_stale = self.is_stale or bounded != self._ends
        self._ends = bounded

    def save(self) -> bool:
        """Rewrite the file if it is outdated, and wait for the disk; return False if the disk refuses.

        Nothing may be appended to the log before: a record of a new topic would not survive a power cut.
        """
        if self.is_stale:
            with contextlib.suppress(OSError):
                self._rewrite(self._ends)
        return not self.is_stale

    def _rewrite(self, ends: dict[str, int]) -> None:
        data = b"".join(_encode(topic, end) for topic, end in ends.items())
        self._filesystem.replace_text(self._path, data.decode(), backup=False)
        self._ends = ends
        self.is_stale = self.is_dirty = False
        self._size = len(data)
        self._rewrite_bytes = max(REWRITE_BYTES, 2 * self._size)


def _queue_name(topic: str, queue_id: int) -> str:
    """Return a queue's name in the file; no topic has it, because topics are directories without a slash."""
    return f"{topic}/{queue_id}"


def _group_name(group: str) -> str:
    """Return a group's name in the file; no topic or queue name begins with a slash."""
    return f"/{group}"


def _encode(topic: str, end: int) -> bytes:
    """Return a note as two equal lines, because nothing else keeps the deleted data from coming back."""
    rest = f"{end} {json.dumps(topic)}".encode()
    return b"%08x %s\n" % (zlib.crc32(rest), rest) * 2


def _notes(line: str) -> Iterator[tuple[str, int]]:
    """Yield the name and offset of each note in a line; two if a flipped bit joined two lines."""
    for note in _NOTE.finditer(line):
        crc, rest, end, topic = note.groups()
        if f"{zlib.crc32(rest.encode()):08x}" == crc:
            yield json.loads(topic), int(end)
