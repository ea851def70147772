"""The config ledger: a table of configurations with a journal of changes and a file of Apache's: when a
change is on the disk, and how both are read at a start.

    <file>.journal.N   every change since the last fold, one JSON line each, written before it takes effect
    <file>             Apache's file with the whole table, written by a thread soon after, with a copy as .bak

Upstream writes the whole table at each change (common/ConfigManager.java), which with ten thousand topics
delays all clients at each new one. A fold begins a new journal, writes the table, and removes the older
journals; after a crash at any moment, the files give the same table again. A power cut may bring removed
journals back, and apply them to the newer table: so they are on the disk before that is, as a part of one
would take back what came after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from libramq.catalog.config_file import ConfigFile
from libramq.catalog.journal_sync import JournalSync
from libramq.filesystem import FileSystem, make_directory, safe_child, sync_file
from libramq.formats.tables import DataVersion
from libramq.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")
C = TypeVar("C")


#: The version of tables that have none.
NO_VERSION: Final = DataVersion()


class ConfigChange(msgspec.Struct, Generic[C], frozen=True, omit_defaults=True):
    """One line of a journal: an entry's current value, None if it was removed."""

    name: str
    config: C | None
    version: DataVersion = NO_VERSION


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The content that a fold writes; `run_fold` may do so in a thread. journals: those it makes needless."""

    filesystem: FileSystem
    file: ConfigFile
    value: object
    journals: tuple[Path, ...]
    journals_through: int


def run_fold(plan: FoldPlan) -> None:
    """Write the whole table, after its journals are on the disk."""
    for journal in plan.journals:
        sync_file(plan.filesystem, journal)
    plan.file.save(plan.value)


class ConfigLedger(Generic[C]):
    """The file of one table and its journals.

    kind: the type of an entry. changed: called when a fold is due. journals: tracks what is on the disk.
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
        self._path = path
        self._config_file = ConfigFile(filesystem, path)
        self._decoder = msgspec.json.Decoder(ConfigChange[kind])  # type: ignore[valid-type]
        self._prefix = path.name + ".journal."
        self._numbers = self._numbers_on_disk()
        self._number = max(self._numbers, default=0)
        self._journal_path = self._journal(self._number)
        self._file: int | None = None
        self._end = 0
        self._has_changes = False
        self._changed = changed

    def load(self, kind: type[T]) -> T | None:
        """Return the table as last folded; StoreCorrupt if the file exists and cannot be read."""
        return self._config_file.load(kind)

    def replay(self, apply: Callable[[ConfigChange[C]], None]) -> None:
        """Apply the changes since then; a line that a crash cut off was never acknowledged."""
        for number in self._numbers:
            text = self._filesystem.read_text(self._journal(number)) or ""
            lines = text.split("\n")  # Not splitlines(): names may have U+2028 or U+0085 in them.
            for count, line in enumerate(lines, 1):
                try:
                    change = self._decoder.decode(line)
                except msgspec.DecodeError:
                    if count < len(lines):
                        path = str(self._journal(number))
                        log.warning("a change in a journal cannot be read and is lost", path=path)
                    continue
                if change.config is None:
                    self._config_file.forget(change.name)
                apply(change)
            self._note_change()
            self._journals.wrote(self._journal(number))  # It may be in the page cache only.

    def append(self, name: str, config: C | None, version: DataVersion = NO_VERSION) -> None:
        """Journal one change; raises OSError if the disk refuses, and then it must not take effect."""
        self.append_all((ConfigChange(name, config, version),))

    def append_all(self, changes: Sequence[ConfigChange[C]]) -> None:
        """Journal changes by one write; raises OSError, as above."""
        self._note_change()  # If it takes effect all the same, the next fold has it.
        self._journals.require()
        if self._file is None:
            self._begin()
        assert self._file is not None
        lines = b"".join([msgspec.json.encode(each) + b"\n" for each in changes])
        try:
            self._filesystem.pwrite(self._file, lines, self._end)
        except OSError:
            self.abandon()  # Half a line may be there: the next one goes to another file.
            raise
        self._end += len(lines)
        for each in changes:
            if each.config is None:
                self._config_file.forget(each.name)
        self._journals.wrote(self._journal_path)

    def plan_fold(self, value: Callable[[], object]) -> FoldPlan | None:
        """Return the fold that is due, if any; `run_fold` it, then `complete_fold` or `fail_fold`."""
        if not self._has_changes:
            return None
        self._has_changes = False
        self.abandon()
        journals = tuple(map(self._journal, self._numbers))
        return FoldPlan(self._filesystem, self._config_file, value(), journals, self._number)

    def complete_fold(self, plan: FoldPlan) -> None:
        """Remove the older journals: the table is written."""
        self.is_failing = False
        for number in [each for each in self._numbers if each <= plan.journals_through]:
            self._filesystem.unlink(self._journal(number))
            self._numbers.remove(number)

    def fail_fold(self) -> None:
        """Keep the journals: the table was not written, and the next fold is due."""
        self.is_failing = True
        self._note_change()

    def _note_change(self) -> None:
        self._has_changes = True
        if self._changed is not None:
            self._changed()

    def close(self, value: Callable[[], object]) -> None:
        """Fold, waiting for the disk, and close; the journals are kept if the disk refuses."""
        plan = self.plan_fold(value)
        try:
            if plan is not None:
                run_fold(plan)
                self.complete_fold(plan)
        except OSError as error:
            log.error("a table was not written; its journal is kept", reason=str(error))
        finally:
            self.abandon()

    def _begin(self) -> None:
        if not self._filesystem.exists(self._path.parent):
            make_directory(self._filesystem, self._path.parent)
        self._number += 1
        self._numbers.append(self._number)
        self._journal_path = self._journal(self._number)
        self._file = self._filesystem.open(self._journal_path, write=True, create=True)
        self._end = 0
        self._journals.created(self._journal_path)

    def abandon(self) -> None:
        """Close the journal; the next change begins another one."""
        if self._file is not None:
            self._filesystem.close(self._file)
            self._file = None

    def _numbers_on_disk(self) -> list[int]:
        names = self._filesystem.listdir(self._path.parent)
        ends = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return sorted(int(end) for end in ends if end.isascii() and end.isdecimal())

    def _journal(self, number: int) -> Path:
        return safe_child(self._path.parent, f"{self._prefix}{number:010d}")
