"""Timer delivery: moves the timers on when messages come and when their time does. Without any, it sleeps."""

from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.message.names import TIMER_TOPIC
from libramq.store.message_store import MessageStore
from libramq.store.segments import ColdRead
from libramq.timers.timer_files import TimerFiles

#: Ours: how soon delivery is retried if the store accepts no messages.
AGAIN_MS: Final = 100
#: Ours: the longest sleep while messages wait. If the wall clock is set forward, they are no later than this.
LOOK_MS: Final = 10_000
#: Ours: after so many reads by a thread in a row, the loop waits for the disk itself.
WARMINGS_MAX: Final = 64


class TimerDelivery:
    """Delivers timer messages; an `arrivals.Listener`."""

    def __init__(self, files: TimerFiles, store: MessageStore, kernel: Kernel) -> None:
        self._is_slave = store.config.is_copy  # Its master delivers them.
        self._files = files
        self._timers = files.timers
        self._store = store
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadline = kernel.deadlines.new(self._advance)
        if not self._is_slave:
            self._deadline.at(self._clock.monotonic_ms())
        #: How often in a row a thread has read what was not in memory; whether one does so now.
        self._warmings = 0
        self._is_warming = False

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a timer message was stored."""
        if topic == TIMER_TOPIC and not self._is_slave:
            self._deadline.by(self._clock.monotonic_ms())

    def _advance(self, now_ms: MonotonicMs) -> None:
        if self._is_warming:
            return
        try:
            is_done = self._advance_without_waiting()
            self._warmings = 0
        except ColdRead as cold:
            self._is_warming = True
            self._warmings += 1
            self._effects.run(Thread.READ, partial(self._store.warm, (cold.stretch,)), self._warmed)
            return
        except BaseException:
            self._deadline.by(now_ms + AGAIN_MS)
            raise
        if is_done:
            self._sleep(now_ms)
        else:
            self._deadline.by(now_ms + AGAIN_MS if self._timers.is_refused else now_ms)

    def _advance_without_waiting(self) -> bool:
        wall_ms = self._clock.wall_ms()
        if self._warmings >= WARMINGS_MAX:
            return self._timers.advance(wall_ms)
        self._files.may_wait(False)
        try:
            with self._store.without_waiting():
                return self._timers.advance(wall_ms)
        finally:
            self._files.may_wait(True)

    def _warmed(self, _: object) -> None:
        self._is_warming = False
        self._deadline.by(self._clock.monotonic_ms())

    def _sleep(self, now_ms: MonotonicMs) -> None:
        due_ms = self._timers.next_due_ms()
        if due_ms is not None:
            wait_ms = int(due_ms) - int(self._clock.wall_ms())
            self._deadline.by(now_ms + max(0, min(wait_ms, LOOK_MS)))
