"""The journal files of a table: every change since the whole table was last written, in numbered files of
which only the newest is written; and the fold, which makes the others obsolete.

    <name>.0000000007   already folded, if the table is on disk
    <name>.0000000008   being written

A fold writes the table and then removes the earlier journals: after a crash at any moment, both give the same
table again. A power cut may bring removed journals back, which would be applied to the newer table. So they
are on disk before it is, because a part of one would undo later changes.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from libramq.filesystem import FileSystem, PendingWrite, make_directory, safe_child, sync_file


class JournalFiles:
    """The files of one table in a directory. path, end: the newest file and its size."""

    def __init__(self, filesystem: FileSystem, directory: Path, name: str) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._prefix = f"{name}."
        names = filesystem.listdir(directory)
        ends = [each.removeprefix(self._prefix) for each in names if each.startswith(self._prefix)]
        self.numbers = sorted(int(end) for end in ends if end.isascii() and end.isdecimal())
        self._number = max(self.numbers, default=0)
        self.path = self.path_of(self._number)
        self._file: int | None = None
        self.end = 0
        #: Whether the outcome of a fold is still pending.
        self.is_folding = False

    @property
    def is_open(self) -> bool:
        """Return whether the newest file is being written."""
        return self._file is not None

    def path_of(self, number: int) -> Path:
        """Return the path of a file."""
        return safe_child(self._directory, f"{self._prefix}{number:010d}")

    def begin(self) -> None:
        """Begin a new file for further changes, unless the current one is still empty."""
        if self.is_open and not self.end:
            return
        self.close()
        if not self._filesystem.exists(self._directory):
            make_directory(self._filesystem, self._directory)
        path = self.path_of(self._number + 1)
        self._file = self._filesystem.open(path, write=True, create=True)
        self.path, self.end = path, 0
        self._number += 1
        self.numbers.append(self._number)

    def write(self, data: bytes) -> None:
        """Write changes at once; they then outlive the process. Raises OSError."""
        if self._file is None:
            self.begin()
        assert self._file is not None
        try:
            self._filesystem.pwrite(self._file, data, self.end)
        except OSError:
            # A partial write may be left. If it stays, later changes go to another file; on a full disk each
            # refused change would otherwise begin one, thousands a second.
            try:
                self._filesystem.truncate(self._file, self.end)
            except OSError:
                self.close()
            raise
        self.end += len(data)

    def close(self) -> None:
        """Close the newest file; the next change begins another one."""
        file, self._file = self._file, None  # Forgotten even if that fails: its number may be reused.
        if file is not None:
            self._filesystem.close(file)

    def remove(self, number: int) -> None:
        """Remove a file."""
        self._filesystem.unlink(self.path_of(number))
        self.numbers.remove(number)

    def fold(
        self, save: Callable[[], None], *, written: Callable[[], None], failed: Callable[[], None]
    ) -> PendingWrite:
        """Close the newest file; return a write of the whole table, which makes all closed files obsolete.

        Its outcome must be taken before another fold begins: of two at once, the older table might be written
        last, when the journals after it are gone.
        """
        assert not self.is_folding, f"a fold of {self._prefix}* is under way"
        self.is_folding = True
        if self.end:  # An empty file stays in use: a full disk would leave one for each refused fold.
            self.close()
        numbers = [each for each in self.numbers if not (self.is_open and each == self._number)]
        paths = list(map(self.path_of, numbers))

        def write() -> None:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):  # An operator removed it.
                    sync_file(self._filesystem, path)
            save()

        def remove() -> None:
            self.is_folding = False
            written()
            for number in numbers:
                self.remove(number)

        def keep() -> None:
            self.is_folding = False
            failed()

        return PendingWrite(write=write, written=remove, failed=keep)
