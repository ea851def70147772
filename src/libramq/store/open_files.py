"""The open files: limits a store's descriptors, and closes the least recently used ones first.

A broker may have ten thousand queues but only a thousand descriptors. Files of the commit log that are still
being written or flushed are held: their descriptors stay open, and a thread may flush them. Only the event
loop uses the other descriptors; threads open their own, so none is closed while a thread uses it. If the
process runs out of descriptors when the loop opens another file, one of these is closed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from threading import get_ident
from typing import Final

from libramq.filesystem import DESCRIPTORS_IDLE, FileSystem

#: Ours: if descriptors are scarce, the store may use one in this many of the process's.
SHARE: Final = 4
#: Ours: the store may always have this many open.
COUNT_MIN: Final = 4


class OpenFiles:
    """Descriptors by path: at most `count_max`, not counting held ones."""

    def __init__(self, filesystem: FileSystem, count_max: int) -> None:
        self._filesystem = filesystem
        self._count_max = count_max
        self._files: OrderedDict[Path, int] = OrderedDict()
        self._held: dict[Path, int] = {}
        #: The thread of the event loop.
        self._thread = get_ident()
        filesystem.closes_if_short(self._close_one)
        #: Whether reads may wait for the disk; see `MessageStore.without_waiting`.
        self.may_wait = True

    def __len__(self) -> int:
        return len(self._files) + len(self._held)

    def get(self, path: Path) -> int:
        """Return the descriptor of an existing file, for reading and writing."""
        file = self._held.get(path)
        if file is not None:
            return file
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        self._make_room()
        self._thread = get_ident()  # Opening may close one of these (`_close_one`).
        file = self._files[path] = self._filesystem.open(path, write=True)
        return file

    def hold(self, paths: Iterable[Path]) -> list[int]:
        """Keep exactly these files open until the next call; return their descriptors."""
        wanted = dict.fromkeys(paths)
        for path in wanted:
            if path not in self._held:
                self._held[path] = self.get(path)
                del self._files[path]
        for path in [path for path in self._held if path not in wanted]:
            self._make_room()
            self._files[path] = self._held.pop(path)
        return [self._held[path] for path in wanted]

    @property
    def held_count(self) -> int:
        """Return the number of held files."""
        return len(self._held)

    def held_only(self, path: Path) -> int | None:
        """Return the descriptor of a file if it is the only held one."""
        return self._held.get(path) if len(self._held) == 1 else None

    def forget(self, path: Path) -> None:
        """Close a file that is about to be removed."""
        for files in (self._files, self._held):
            file = files.pop(path, None)
            if file is not None:
                self._filesystem.close(file)

    def close(self) -> None:
        """Close all descriptors."""
        for files in (self._files, self._held):
            while files:
                self._filesystem.close(files.popitem()[1])

    def _close_one(self) -> bool:
        """Close the least recently used file; return False if there is none or another thread calls."""
        if not self._files or get_ident() != self._thread:
            return False
        self._filesystem.close(self._files.popitem(last=False)[1])
        return True

    def _make_room(self) -> None:
        share = (self._filesystem.open_max - DESCRIPTORS_IDLE) // SHARE
        while len(self._files) >= min(self._count_max, max(COUNT_MIN, share)):
            self._filesystem.close(self._files.popitem(last=False)[1])
