"""The config ledger: durability for a table of configurations, by a journal of changes and a file in Apache's
format. Both are read at startup.

    <file>.journal.N   every change since the last fold, one JSON line each, written before it takes effect
    <file>             Apache's file with the whole table, written by a thread soon after, with a copy as .bak

Upstream writes the whole table at each change (common/ConfigManager.java); with ten thousand topics, each new
one delays all clients.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from libramq.catalog.config_file import ConfigFile
from libramq.catalog.journal_sync import JournalSync
from libramq.filesystem import FileSystem, PendingWrite
from libramq.formats.tables import DataVersion
from libramq.journal_files import JournalFiles
from libramq.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")
C = TypeVar("C")


#: The version in tables without versions.
NO_VERSION: Final = DataVersion()


class ConfigChange(msgspec.Struct, Generic[C], frozen=True, omit_defaults=True):
    """One line of a journal: an entry's current value, None if it was removed."""

    name: str
    config: C | None
    version: DataVersion = NO_VERSION


class ConfigLedger(Generic[C]):
    """The file of one table and its journals.

    kind: the type of an entry. changed: called when a fold is due. journals: tracks durable changes.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: Path,
        kind: type[C],
        changed: Callable[[], None] | None = None,
        journals: JournalSync | None = None,
    ) -> None:
        self.is_failing = False  # Whether the last fold failed.
        self._journals = journals or JournalSync()
        self._filesystem = filesystem
        self._config_file = ConfigFile(filesystem, path)
        self._decoder = msgspec.json.Decoder(ConfigChange[kind])  # type: ignore[valid-type]
        self._files = JournalFiles(filesystem, path.parent, path.name + ".journal")
        self._has_changes = False
        self._changed = changed

    def load(self, kind: type[T]) -> T | None:
        """Return the table as last folded; StoreCorrupt if the file exists and cannot be read."""
        return self._config_file.load(kind)

    def replay(self, apply: Callable[[ConfigChange[C]], None]) -> None:
        """Apply the changes since the last fold; a line truncated by a crash was never acknowledged."""
        for path in map(self._files.path_of, self._files.numbers):
            text = self._filesystem.read_text(path) or ""
            lines = text.split("\n")  # Not splitlines(): names may have U+2028 or U+0085 in them.
            for count, line in enumerate(lines, 1):
                try:
                    change = self._decoder.decode(line)
                except msgspec.DecodeError:
                    if count < len(lines):
                        log.warning("a change in a journal cannot be read and is lost", path=str(path))
                    continue
                if change.config is None:
                    self._config_file.forget(change.name)
                apply(change)
            self._note_change()
            self._journals.wrote(path)  # The line may be in the page cache only.

    def append(self, name: str, config: C | None, version: DataVersion = NO_VERSION) -> None:
        """Journal one change. Raises OSError if the disk refuses; then the change must not take effect."""
        self.append_all((ConfigChange(name, config, version),))

    def append_all(self, changes: Sequence[ConfigChange[C]]) -> None:
        """Journal changes in one write; raises OSError, as above."""
        self._note_change()  # Even on failure: if a change takes effect anyway, the next fold includes it.
        self._journals.require()
        if not self._files.is_open:
            self._files.begin()
            self._journals.created(self._files.path)
        self._files.write(b"".join([msgspec.json.encode(each) + b"\n" for each in changes]))
        for each in changes:
            if each.config is None:
                self._config_file.forget(each.name)
        self._journals.wrote(self._files.path)

    def plan_fold(self, value: Callable[[], object]) -> PendingWrite | None:
        """Return the write of the whole table, if one is due."""
        if not self._has_changes:
            return None
        self._has_changes = False
        save = partial(self._config_file.save, value())

        def written() -> None:
            self.is_failing = False

        def failed() -> None:
            self.is_failing = True
            self._note_change()

        return self._files.fold(save, written=written, failed=failed)

    def _note_change(self) -> None:
        self._has_changes = True
        if self._changed is not None:
            self._changed()

    def close(self, value: Callable[[], object]) -> None:
        """Fold, waiting for the disk, and close; the journals are kept if the disk refuses."""
        self._files.is_folding = False  # The threads have ended; the results of their folds are not handled.
        plan = self.plan_fold(value)
        try:
            if plan is not None:
                plan.write()
                plan.written()
        except OSError as error:
            log.error("a table was not written; its journal is kept", reason=str(error))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the journal; the next change begins a new one."""
        self._files.close()
