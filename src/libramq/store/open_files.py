"""The open files: descriptors of the store's files, the longest unused closed first.

A broker may have ten thousand queues and may hold a thousand descriptors. Only the event loop uses these;
threads that flush or warm files open their own, so that no descriptor is closed under them.
"""

from collections import OrderedDict
from pathlib import Path

from libramq.filesystem import FileSystem


class OpenFiles:
    """Descriptors by path, at most `count_max`."""

    def __init__(self, filesystem: FileSystem, count_max: int) -> None:
        self._filesystem = filesystem
        self._count_max = count_max
        self._files: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: Path) -> int:
        """The descriptor of an existing file, for reading and writing."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        while len(self._files) >= self._count_max:
            self._filesystem.close(self._files.popitem(last=False)[1])
        file = self._files[path] = self._filesystem.open(path, write=True)
        return file

    def forget(self, path: Path) -> None:
        """Close a file that is about to be removed."""
        file = self._files.pop(path, None)
        if file is not None:
            self._filesystem.close(file)

    def close(self) -> None:
        """Close all of them."""
        while self._files:
            self._filesystem.close(self._files.popitem()[1])
