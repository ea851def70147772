"""The progress: no record of "done" becomes durable before the messages it refers to; when a file of offsets
may be written.

**Nothing that marks messages as done is durable before those messages.** A delay level's offset refers to the
copies that were delivered, a committed offset to the messages before it: if a power cut kept the file but
took the log, they would be lost for good. So a file is written in three steps:

        taken      the content, and the log's end at that moment: everything it refers to lies before
        allowed    when the log is flushed up to there; a flush is requested
        written    on a thread, whole, with an fsync

Other progress in the log (timers, transactions, POP acknowledgements) belongs here too. Two things that are
not files follow the same rule elsewhere: the checkpoint waits in `store.flush`, and a journal of commits,
which the kernel may write at any time, is cut to the recovered log before anything is appended to it.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from libramq.catalog.config_file import ConfigFile
from libramq.clock import Clock, MonotonicMs, WallMs
from libramq.filesystem import PendingWrite
from libramq.logs import get_logger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Source(Protocol):
    """The content of a progress file."""

    @property
    def has_changes(self) -> bool:
        """Return whether the file is out of date; called after most events."""

    def take(self, wall_ms: WallMs) -> PendingWrite | None:
        """Return its next content; None if it is up to date."""


class DocumentSource:
    """A source that is one document. version: returns 0 at first, and another number after each change.

    clean: called before the content is taken.
    """

    def __init__(
        self,
        file: ConfigFile,
        version: Callable[[], int],
        content: Callable[[], object],
        clean: Callable[[WallMs], None] = lambda _: None,
    ) -> None:
        self._file = file
        self._version, self._content, self._clean = version, content, clean
        self._saved = 0

    @property
    def has_changes(self) -> bool:
        """Return whether the file is out of date."""
        return self._version() != self._saved

    def take(self, wall_ms: WallMs) -> PendingWrite | None:
        """Return the file's next content; None if it is up to date."""
        self._clean(wall_ms)
        version = self._version()
        if version == self._saved:
            return None

        def written() -> None:
            self._saved = version

        return PendingWrite(write=partial(self._file.save, self._content()), written=written)


class ProgressFile:
    """A progress file."""

    def __init__(self, name: str, period_ms: int, source: Source, store: MessageStore, clock: Clock) -> None:
        self.name = name
        self._period_ms = period_ms
        self._source = source
        self._store = store
        self._clock = clock
        self._due_ms: MonotonicMs | None = None
        #: The content waiting to be written.
        self.taken: PendingWrite | None = None
        self._log_end = 0
        #: Whether a thread is writing it: from `begin_writing` to `done`.
        self.is_writing = False
        self._is_failing = False

    @property
    def has_changes(self) -> bool:
        """Return whether there is content to be written."""
        return self.taken is not None or self._source.has_changes

    def is_due(self, now_ms: MonotonicMs) -> bool:
        """Take new content if it is time; return whether it may be written now."""
        if self.is_writing:
            return False
        if self._due_ms is None or now_ms >= self._due_ms:
            self._due_ms = now_ms + self._period_ms
            if self.taken is None:
                self._begin()
        return self.taken is not None and self._log_end <= self._store.flushed_offset

    def soon(self) -> None:
        """Take new content before its time."""
        self._due_ms = None

    def begin_writing(self) -> None:
        """Note that a thread will call `write`. Everything the content refers to must stay until `done`."""
        self.is_writing = True

    def write(self) -> None:
        """Write the content; may be called in a thread, followed by `done`."""
        assert self.taken is not None
        assert self._log_end <= self._store.flushed_offset, (
            f"{self.name} refers to messages that are not durable"
        )
        self.taken.write()

    def done(self, result: object = None) -> None:
        """Take the result of `write`; after an error, the content is collected again when due."""
        assert self.taken is not None
        taken, self.taken, self.is_writing = self.taken, None, False
        if isinstance(result, Exception):
            self._note_failure(result)
            taken.failed()
        else:
            self._is_failing = False
            taken.written()

    def finish(self) -> None:
        """Write the current content and wait for the disk; the log must be flushed. Raises OSError."""
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
            self.taken = self._source.take(self._clock.wall_ms())
        except OSError as error:
            self._note_failure(error)
        if self.taken is not None:
            self._log_end = self._store.end
            self._store.want_flush(self._log_end)

    def _note_failure(self, error: Exception) -> None:
        """Log a failure once until a write succeeds, because the text log may be on the same disk."""
        if not self._is_failing:
            log.error("progress not written; retrying", file=self.name, reason=str(error))
        self._is_failing = True
