"""The old files: checked every 10 s while the commit log has more than one file, and removed by a thread.

So are the files of deleted topics, at once.

Upstream: DefaultMessageStore.CleanCommitLogService, cleanResourceInterval.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from libramq.clock import MonotonicMs, WallMs
from libramq.errors import SyncFailed
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel, Phase
from libramq.logs import get_logger
from libramq.store.message_store import MessageStore
from libramq.store.retention.cleaning import Steps
from libramq.store.retention.retention import Retention

log = get_logger(__name__)

#: MessageStoreConfig.cleanResourceInterval.
CLEAN_MS: Final = 10_000
#: CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES: for so many rounds every hour is one of deleteWhen.
MANUAL_ROUNDS: Final = 20

#: Called at the end of a cleaning, with its failure if there was one.
CleaningEnded = Callable[[BaseException | None], None]


class OldFiles:
    """Runs the store's cleanings, one at a time."""

    def __init__(self, store: MessageStore, retention: Retention, kernel: Kernel) -> None:
        self._store = store
        self._retention = retention
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadline = kernel.deadlines.new(self._clean)
        self._steps: Steps | None = None
        self._manual_rounds = 0
        #: Who waits for a cleaning of queues: the next one, and the one under way.
        self._requested: list[CleaningEnded] = []
        self._waiting: list[CleaningEnded] = []
        kernel.soon(Phase.TIMERS, self.look)

    def retain(self, retention: Retention) -> None:
        """Set how long messages are kept, from the next round on."""
        self._retention = retention

    def look(self) -> None:
        """Remove the files of deleted topics; schedule a check, if there may be more to remove."""
        if self._store.removal.left:
            self._effects.run(Thread.DISK, self._store.removal.take_work(), _removed)
        if self._deadline.due_ms is None and self._steps is None and self._store.cleaning.may_find:
            self._deadline.at(self._clock.monotonic_ms() + CLEAN_MS)

    def delete_expired_now(self) -> None:
        """Delete expired files for MANUAL_ROUNDS, whatever the hour; the first round is due at once."""
        self._manual_rounds = MANUAL_ROUNDS
        if self._steps is None:
            self._deadline.at(self._clock.monotonic_ms())

    def clean_queues(self, ended: CleaningEnded) -> None:
        """Remove files of queues that lead before the log; `ended` is called then, with a failure if any."""
        self._requested.append(ended)
        if self._steps is None:
            self._deadline.at(self._clock.monotonic_ms())

    def _clean(self, _: MonotonicMs) -> None:
        if self._requested:
            self._waiting, self._requested = self._requested, []
            self._steps = self._store.cleaning.clean_queues()
        else:
            retention = self._retention
            if self._manual_rounds:
                self._manual_rounds -= 1
                retention = replace(retention, delete_hours=frozenset(range(24)))
            self._steps = self._store.cleaning.clean(retention, _hour_of)
        self._proceed(None)

    def _proceed(self, result: Any) -> None:
        """Continue with the result of the last piece of work."""
        steps, self._steps = self._steps, None
        assert steps is not None
        failure: BaseException | None = None
        try:
            work = steps.throw(result) if isinstance(result, BaseException) else steps.send(result)
        except StopIteration:
            pass
        except SyncFailed as error:
            log.error("the disk cannot be flushed; the store accepts no more messages", reason=str(error))
            self._store.fail_flush(error)
            failure = error
        except OSError as error:
            log.warning("old files cannot be deleted now; retrying", reason=str(error))
            failure = error
        else:
            self._steps = steps
            self._effects.run(Thread.DISK, work, self._proceed)
            return
        waiting, self._waiting = self._waiting, []
        for ended in waiting:
            ended(failure)
        if self._requested:
            self._deadline.at(self._clock.monotonic_ms())
        else:
            self.look()


def _removed(result: object) -> None:
    if isinstance(result, BaseException):
        log.error("the files of deleted topics are not removed before the next start", exc_info=result)


def _hour_of(wall_ms: WallMs) -> int:
    """Return the hour of the day, in the broker's time zone."""
    return datetime.fromtimestamp(int(wall_ms) / 1000).astimezone().hour
