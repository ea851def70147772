"""The progress: files that say how far something is done, and the one rule for all of them.

**Nothing that says "done" is durable before what it speaks of.** A delay level's offset speaks of the copies
that were delivered, a committed offset of the messages before it: if a power cut kept the file and took the
log, they would be lost for good. So a file is made in three steps:

    taken      the text, and the log's end at that moment: all that it speaks of lies before
    allowed    when the log is flushed up to there; it is asked to be
    written    on a thread, whole, with an fsync

What else marks progress in the log (timers, transactions, POP acknowledgements) belongs here too. Two things
are not files and follow the same rule elsewhere: the checkpoint waits in `store.flush`, and a journal of
commits, which the kernel may write when it likes, is cut to the recovered log before anything is appended
to it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from libramq.clock import MonotonicMs
from libramq.logs import get_logger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The next content of one file. write: may be called in a thread. written, failed: what came of it."""

    write: Callable[[], None]
    written: Callable[[], None]
    failed: Callable[[], None]


class ProgressFile:
    """One of the files. take: what it should say now; None where that is what it says."""

    def __init__(
        self, name: str, period_ms: int, take: Callable[[], Progress | None], store: MessageStore
    ) -> None:
        self.name = name
        self._period_ms = period_ms
        self._take = take
        self._store = store
        self._due_ms: MonotonicMs | None = None
        #: What it is to say and waits to be written.
        self.taken: Progress | None = None
        self._log_end = 0
        self._is_writing = False

    def is_due(self, now_ms: MonotonicMs) -> bool:
        """Take what it should say, when it is time; return whether it may be written now."""
        if self._is_writing:
            return False
        if self._due_ms is None or now_ms >= self._due_ms:
            self._due_ms = now_ms + self._period_ms
            if self.taken is None:
                self._begin()
        return self.taken is not None and self._log_end <= self._store.flushed_offset

    def write(self) -> None:
        """Write it; may be called in a thread, and `done` is to be called afterwards."""
        assert self.taken is not None
        assert self._log_end <= self._store.flushed_offset, f"{self.name} speaks of what is not durable"
        self._is_writing = True
        self.taken.write()

    def done(self, error: Exception | None = None) -> None:
        """Record that the file was written; after an error its content is collected again when due."""
        assert self.taken is not None
        taken, self.taken, self._is_writing = self.taken, None, False
        if error is None:
            taken.written()
        else:
            log.error("progress not written; retrying", file=self.name, reason=str(error))
            taken.failed()

    def finish(self) -> None:
        """Write what it should say, waiting for the disk: the log is flushed. Raises OSError."""
        if self.taken is not None:
            self.taken.failed()
        self._begin()
        if self.taken is not None:
            try:
                self.write()
            except OSError as error:
                self.done(error)
                raise
            self.done()

    def _begin(self) -> None:
        try:
            self.taken = self._take()
        except OSError as error:
            log.error("progress not written; retrying", file=self.name, reason=str(error))
        if self.taken is not None:
            self._log_end = self._store.end
            self._store.want_flush(self._log_end)
