"""The rounds: deadline-driven work that reads the store (delivery, reviving, transaction checks) without
making the loop wait for the disk.

A thread reads data that is not in memory, and the round is run again; so a round may stop at any read and
must continue there. If that data is evicted again and again, the loop finally waits for the disk.
"""

from collections.abc import Callable

from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Work
from libramq.logs import get_logger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Rounds:
    """Runs `act` when a round is due, and again at once while it returns True.

    again_ms: the delay after an error that `act` raised. is_held: no round begins before `begin`.
    """

    def __init__(
        self,
        store: MessageStore,
        kernel: Kernel,
        act: Callable[[MonotonicMs], bool | None],
        *,
        again_ms: int,
        is_held: bool = False,
    ) -> None:
        self._store = store
        self._clock = kernel.clock
        self._work = kernel.work
        self._act = act
        self._again_ms = again_ms
        self._deadline = kernel.deadlines.new(self._start)
        self.is_held = is_held
        #: Whether a round is under way; it may wait for a thread.
        self.is_running = False

    @property
    def due_ms(self) -> MonotonicMs | None:
        """Return when the next round is due; None if none is scheduled."""
        return self._deadline.due_ms

    def by(self, due_ms: MonotonicMs) -> None:
        """Schedule a round for a time, unless one is due earlier or rounds are held."""
        if not self.is_held:
            self._deadline.by(due_ms)

    def hold(self) -> None:
        """Stop starting and continuing rounds until `begin`."""
        self.is_held = True

    def begin(self) -> None:
        """Run a round now, and later ones when they are due."""
        self.is_held = False
        self.by(self._clock.monotonic_ms())

    def _start(self, _: MonotonicMs) -> None:
        if not self.is_running:
            self.is_running = True
            self._work(self._run())

    def _run(self) -> Work[None]:
        try:
            while (yield from self._store.reading(self._round)):
                yield None
        except Exception as error:
            self._deadline.by(self._clock.monotonic_ms() + self._again_ms)
            if not isinstance(error, LibraError | OSError):
                raise
            log.exception("a round failed, and is repeated")
        finally:
            self.is_running = False

    def _round(self) -> bool | None:
        return not self.is_held and self._act(self._clock.monotonic_ms())
