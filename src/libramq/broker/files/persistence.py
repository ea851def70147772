"""Persistence: when changed tables are written to their files by a thread (topics and groups after 0.5 s,
offsets every 5 s).

    topics, groups, fences, coordinated groups     0.5 s after a change; the journal has it at once
    committed offsets, delay levels' offsets       `progress`: once the messages before them are durable
"""

from functools import partial
from typing import Any, Final

from libramq.broker.files.files import BrokerFiles
from libramq.catalog.config_ledger import ConfigLedger
from libramq.clock import MonotonicMs
from libramq.filesystem import PendingWrite
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: delay until topics.json has a new topic; the journal has it at once.
FOLD_MS: Final = 500
#: Ours: how often to check whether a progress file may be written.
PROGRESS_MS: Final = 100


class Persistence:
    """Writes changed tables. A file has one write at a time."""

    def __init__(self, files: BrokerFiles, kernel: Kernel) -> None:
        self._files = files
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._fold = kernel.deadlines.new(self._fold_tables)
        self._progress = kernel.deadlines.new(self._write_progress)
        self._folds_running = 0
        files.tables.changed, files.ledger.changed = self._fold_later, self._write_later
        if files.tables.has_changes:
            self._fold_later()
        self.look()

    def look(self) -> None:
        """Write progress; that of a pop or a delivery waits for the next timer, within 1 s."""
        if self._progress.due_ms is None and self._files.has_progress and self._files.store.lost is None:
            self._write_later()

    def _fold_later(self) -> None:
        if self._fold.due_ms is None and not self._folds_running:
            self._fold.at(self._clock.monotonic_ms() + FOLD_MS)

    def _write_later(self) -> None:
        if self._progress.due_ms is None:
            self._progress.at(self._clock.monotonic_ms() + PROGRESS_MS)

    def _fold_tables(self, _: MonotonicMs) -> None:
        if self._files.store.lost is not None:
            return
        for ledger, fold in self._files.tables.plan_folds():
            self._folds_running += 1
            self._effects.run(Thread.DISK, fold.write, partial(self._folded, ledger, fold))

    def _folded(self, ledger: ConfigLedger[Any], fold: PendingWrite, result: object) -> None:
        self._folds_running -= 1
        if isinstance(result, BaseException):
            if not ledger.is_failing:
                log.error("a table was not written; its journal is kept", reason=str(result))
            fold.failed()
        else:
            fold.written()
        if self._files.tables.has_changes:
            self._fold_later()

    def _write_progress(self, now_ms: MonotonicMs) -> None:
        if self._files.store.lost is not None:
            return
        for file in self._files.progress:
            if file.is_due(now_ms):
                file.begin_writing()
                self._effects.run(Thread.DISK, file.write, file.done)
