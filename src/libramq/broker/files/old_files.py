"""Old files: how often a broker looks for log files to delete (10 s), and the thread that deletes them; which
files are deleted is decided in `store/retention.py`.

Files of deleted topics are deleted at once.
Upstream: DefaultMessageStore.CleanCommitLogService, cleanResourceInterval.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from libramq.clock import MonotonicMs, WallMs
from libramq.errors import SyncFailed
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.work import Work
from libramq.logs import get_logger
from libramq.store.message_store import MessageStore
from libramq.store.retention import Retention

log = get_logger(__name__)

#: MessageStoreConfig.cleanResourceInterval.
CLEAN_MS: Final = 10_000
#: CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES: rounds after a manual request in which deleteWhen is
#: ignored.
MANUAL_ROUNDS: Final = 20

#: Called at the end of a cleaning, with its failure if any.
CleaningEnded = Callable[[BaseException | None], None]


class OldFiles:
    """Runs the store's cleanings, one at a time."""

    def __init__(self, store: MessageStore, retention: Retention, kernel: Kernel) -> None:
        self._store = store
        #: How long messages are kept, from the next round on.
        self.retention = retention
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadline = kernel.deadlines.new(self._clean)
        self._is_cleaning = False
        self._work = kernel.work
        self._manual_rounds = 0
        #: Called at the end of the next cleaning of queues.
        self._requested: list[CleaningEnded] = []
        kernel.soon(Phase.TIMERS, self.look)

    def look(self) -> None:
        """Remove the files of deleted topics; schedule a check if there may be more to remove."""
        if self._store.lost is not None:
            return
        if self._store.removal.left:
            self._effects.run(Thread.DISK, self._store.removal.take_work(), _removed)
        if self._deadline.due_ms is None and not self._is_cleaning and self._store.cleaning.may_find:
            self._deadline.at(self._clock.monotonic_ms() + CLEAN_MS)

    def delete_expired_now(self) -> None:
        """Delete expired files in the next MANUAL_ROUNDS, at any hour; the first round is due at once."""
        self._manual_rounds = MANUAL_ROUNDS
        if not self._is_cleaning:
            self._deadline.at(self._clock.monotonic_ms())

    def clean_queues(self, ended: CleaningEnded) -> None:
        """Remove queue files that point to before the log; then call `ended`, with the failure if any."""
        self._requested.append(ended)
        if not self._is_cleaning:
            self._deadline.at(self._clock.monotonic_ms())

    def _clean(self, _: MonotonicMs) -> None:
        self._is_cleaning = True
        self._work(self._run())

    def _run(self) -> Work[None]:
        waiting, self._requested = self._requested, []
        failure: BaseException | None = None
        try:
            if self._store.lost is not None:  # Another store's files may have our files' names.
                failure = self._store.lost
            elif waiting:
                yield from self._store.cleaning.clean_queues()
            else:
                yield from self._store.cleaning.clean(self._next_retention(), _hour_of)
        except SyncFailed as error:
            log.error("the disk cannot be flushed; the store accepts no more messages", reason=str(error))
            self._store.fail_flush(error)
            failure = error
        except OSError as error:
            log.warning("old files cannot be deleted now; retrying", reason=str(error))
            failure = error
        finally:
            self._is_cleaning = False
        for ended in waiting:
            ended(failure)
        if self._requested:
            self._deadline.at(self._clock.monotonic_ms())
        else:
            self.look()

    def _next_retention(self) -> Retention:
        if not self._manual_rounds:
            return self.retention
        self._manual_rounds -= 1
        return replace(self.retention, delete_hours=frozenset(range(24)))


def _removed(result: object) -> None:
    if isinstance(result, BaseException):
        log.error("the files of deleted topics are not removed before the next start", exc_info=result)


def _hour_of(wall_ms: WallMs) -> int:
    """Return the hour of the day, in the broker's time zone."""
    return datetime.fromtimestamp(int(wall_ms) / 1000).astimezone().hour
