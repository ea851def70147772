"""The rounds: work that is due by a deadline and reads the store, without making the loop wait for the disk.

What is not in memory is read by a thread, and the round is run again; so a round may be cut off at any read,
and continues there. Where what a thread has read is gone again, the loop finally waits for the disk.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore

#: Ours: a round looks at a few queues, each by two reads.
WARMINGS_MAX: Final = 64


class Rounds:
    """Runs `act` when a round is due. again_ms: how soon after an error that it raised."""

    def __init__(
        self, store: MessageStore, kernel: Kernel, act: Callable[[MonotonicMs], None], *, again_ms: int
    ) -> None:
        self._store = store
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._act = act
        self._again_ms = again_ms
        self._deadline = kernel.deadlines.new(self._run)
        #: How many times in a row a thread has read for the round.
        self._warmings = 0
        #: Whether a thread reads for the round now; it is run again then.
        self.is_reading = False

    @property
    def due_ms(self) -> MonotonicMs | None:
        """Return when the next round is due; None: not before something happens."""
        return self._deadline.due_ms

    def by(self, due_ms: MonotonicMs) -> None:
        """Run a round at a moment, unless one is due before."""
        self._deadline.by(due_ms)

    def _run(self, now_ms: MonotonicMs) -> None:
        if self.is_reading:
            return
        try:
            if self._warmings < WARMINGS_MAX:
                with self._store.without_waiting():
                    self._act(now_ms)
            else:
                self._act(now_ms)
        except ColdRead as cold:
            self.is_reading = True
            self._warmings += 1
            self._effects.run(Thread.READ, partial(self._store.warm, (cold.stretch,)), self._read)
            return
        except BaseException:
            self._deadline.by(now_ms + self._again_ms)
            raise
        self._warmings = 0

    def _read(self, _: object) -> None:
        self.is_reading = False
        self._deadline.by(self._clock.monotonic_ms())
