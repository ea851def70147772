"""The removal: directories of deleted topics, put out of the way at once and removed by a thread.

    consumequeue/T ─► libra.removed/0 ─► gone

A rename takes microseconds, whatever the directory has, and a topic of the same name can be made at once. A
kill amid the removal leaves nothing in the place of the topic, where an opening would build again what a
queue lacks. Before files are removed the rename is on the disk. What is left is removed by the next opening.
Where a power cut undoes the rename, the whole topic is back, and `Deletions` knows that it
was deleted.

Apache's brokers do not look into the directory.
"""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from libramq.filesystem import FileSystem
from libramq.logs import get_logger

log = get_logger(__name__)

DIRECTORY: Final = "libra.removed"


class Removal:
    """The removed directories of one store."""

    def __init__(self, filesystem: FileSystem, root: Path) -> None:
        self._filesystem = filesystem
        self._root = root / DIRECTORY
        self._number = 0
        self._parents: dict[Path, None] = {}
        #: What was put here since work was taken.
        self.left: list[Path] = []

    def put(self, directory: Path) -> None:
        """Put a directory out of the way; a missing one is ignored. OSError if the disk refuses."""
        if not self._filesystem.exists(directory):
            return
        self._filesystem.makedirs(self._root)
        while self._filesystem.exists(removed := self._root / str(self._number)):
            self._number += 1
        try:
            self._filesystem.rename(directory, removed)
        except OSError as failed:
            if failed.errno != errno.EXDEV:  # `consumequeue` may be a link to another disk.
                raise
            self._filesystem.remove_tree(directory)
            return
        self._parents |= dict.fromkeys((directory.parent, self._root, self._root.parent))
        self.left.append(removed)

    def take_work(self) -> Callable[[], None]:
        """Return work for a thread: the removal of what was put here since the last call."""
        work = partial(_remove, self._filesystem, tuple(self._parents), tuple(self.left))
        self._parents.clear()
        self.left.clear()
        return work

    def remove_left(self) -> None:
        """Remove what an earlier process has left, waiting for the disk."""
        if self._filesystem.exists(self._root):
            _remove(self._filesystem, (self._root.parent,), (self._root,))


def _remove(filesystem: FileSystem, parents: tuple[Path, ...], directories: tuple[Path, ...]) -> None:
    try:
        for parent in parents:
            filesystem.sync_directory(parent)
    except OSError as failed:
        log.error("files of deleted topics are not removed before the next start", reason=str(failed))
        return
    for directory in directories:
        try:
            filesystem.remove_tree(directory)
        except OSError as failed:
            log.error("a deleted topic's files cannot be removed", path=str(directory), reason=str(failed))
