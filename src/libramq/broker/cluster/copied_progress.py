"""The copied progress: what a slave's master has done, kept aside until this slave has what was done.

    tables kept ─► the end of the master's log ─► our log is flushed up to there ─► tables applied

A delay level's offset refers to the copies that were delivered, and a committed offset of POP to check
points in the log. Applied before these have come, either would be durable before what it speaks of: promoted,
the slave would take for delivered what it lacks. This is the rule of `broker/files/progress.py`, across two
brokers.

Tables count for the copying in which they were asked for. Once the logs are compared again they are dropped:
the master may have another log, in which their offsets mean something else.
"""

from collections.abc import Callable, Iterator, Sequence

from libramq.errors import LibraError
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Work
from libramq.store.message_store import MessageStore

#: Applies a table, with a yield after each step.
Apply = Callable[[], Iterator[None]]


class CopiedProgress:
    """The tables that wait. ended: called for each with its name, and the error that stopped it."""

    def __init__(
        self, store: MessageStore, kernel: Kernel, ended: Callable[[str, BaseException | None], None]
    ) -> None:
        self._store = store
        self._ended = ended
        self._work = kernel.work
        self._applying = self._apply(())
        self._kept: list[tuple[str, Apply]] = []
        self._log_end: int | None = None
        #: Where the master's log ended when it had done what was applied last; None: that is unknown.
        self.applied_end: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether tables wait for the log, or are being applied."""
        return self._log_end is not None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        return not self._kept

    def keep(self, name: str, apply: Apply) -> None:
        """Keep a table; `ends_at` follows."""
        self._kept.append((name, apply))

    def ends_at(self, log_end: int) -> None:
        """Note where the master's log ended after the tables were asked for."""
        self._log_end = log_end
        self.settle()

    def drop(self) -> None:
        """Forget what is kept; of a table that is being applied the rest."""
        self._kept.clear()
        self._log_end = None
        self._applying.close()

    def settle(self) -> None:
        """Apply what is kept, if the log is flushed far enough."""
        if self._log_end is None or not self._kept or self._log_end > self._store.flushed_offset:
            return
        # Whatever of it is applied from here on speaks of the log up to there.
        self.applied_end = max(self._log_end, self.applied_end or 0)
        tables, self._kept = self._kept, []
        self._applying = self._apply(tables)
        self._work(self._applying)

    def _apply(self, tables: Sequence[tuple[str, Apply]]) -> Work[None]:
        try:
            for name, apply in tables:
                error: Exception | None = None
                try:
                    yield from apply()
                except (LibraError, OSError) as failed:
                    error = failed
                self._ended(name, error)
        finally:
            self._log_end = None
