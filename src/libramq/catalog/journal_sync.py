"""The journal sync: when the tables' journals are flushed, and which replies wait for it (SYNC_FLUSH).

    append ─► wrote ─► when_synced ─► plan ─► fsyncs, on the log's thread ─► complete ─► answers

Under SYNC_FLUSH no table content is sent before its journal is on the disk. Under ASYNC_FLUSH nothing waits:
a table is written whole, with an fsync, half a second after its first change.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class SyncPlan(NamedTuple):
    """A pending fsync. through: how many changes in all are durable afterwards."""

    paths: tuple[Path, ...]
    directories: tuple[Path, ...]
    through: int


class JournalSync:
    """The journals of all tables. waits: SYNC_FLUSH.

    written, synced: counts of changes in the journals, and of those on the disk.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._paths: dict[Path, None] = {}
        self._directories: dict[Path, None] = {}
        self.written = self.synced = 0
        #: Whether a reply has begun to wait, so that a sync should begin at once; the sync clears this.
        self.is_wanted = False
        #: Called when there is something to sync.
        self.changed: Callable[[], None] = lambda: None
        self._failure: str | None = None
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []

    @property
    def is_synced(self) -> bool:
        """Return whether everything written is as durable as the mode promises."""
        return self.synced == self.written

    def require(self) -> None:
        """Raise OSError if a sync has failed: durability cannot be promised any more."""
        if self._failure is not None:
            raise OSError(errno.EROFS, f"{self._failure}; restart the broker")

    def created(self, path: Path) -> None:
        """Note a new journal, whose directory entry has to be synced as well."""
        if self._waits:
            self._directories |= dict.fromkeys((path.parent, path.parent.parent))

    def wrote(self, path: Path) -> None:
        """Note a line that was written, or found at startup and may not be on the disk."""
        if self._waits:
            self._paths[path] = None
            self.written += 1
            self.changed()

    def sync_with_log(self, path: Path) -> None:
        """Sync a file before later appends to the log count as flushed, in either mode.

        No reply waits for it.
        """
        self._paths[path] = None
        self._directories |= dict.fromkeys((path.parent, path.parent.parent))

    def when_synced(self, then: Callable[[bool], None], *, through: int | None = None) -> None:
        """Call `then` with True once so many changes (by default all) are on the disk; False on failure."""
        through = self.written if through is None else through
        if through <= self.synced or self._failure is not None:
            then(self._failure is None)
            return
        self._waiting.append((through, then))
        self.is_wanted = True
        self.changed()

    def plan(self) -> SyncPlan | None:
        """Return the fsyncs that are due, to be run once; None if there are none."""
        if not self._paths:
            return None
        plan = SyncPlan(tuple(self._paths), tuple(self._directories), self.written)
        self._paths.clear()
        self._directories.clear()
        return plan

    def complete(self, through: int) -> None:
        """Note that changes are on the disk."""
        self.synced = max(self.synced, through)
        ready = [then for ticket, then in self._waiting if ticket <= self.synced]
        self._waiting = [entry for entry in self._waiting if entry[0] > self.synced]
        for then in ready:
            then(True)

    def fail(self, reason: str) -> None:
        """Stop syncing: after a failure the kernel may have dropped pages, so later syncs prove nothing."""
        self._failure = reason
        waiting, self._waiting = self._waiting, []
        for _, then in waiting:
            then(False)
