"""Timer delivery: moves the timers on when messages come and when their time does. Without any, it sleeps."""

from typing import Final

from libramq.broker.messages.rounds import Rounds
from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.message.names import TIMER_TOPIC
from libramq.store.message_store import MessageStore
from libramq.timers.timer_files import TimerFiles

#: Ours: how soon delivery is retried if the store accepts no messages.
AGAIN_MS: Final = 100
#: Ours: the longest sleep while messages wait. If the wall clock is set forward, they are no later than this.
LOOK_MS: Final = 10_000


class TimerDelivery:
    """Delivers timer messages; an `arrivals.TopicListener`. is_held: not before `begin`."""

    topic = TIMER_TOPIC

    def __init__(self, files: TimerFiles, store: MessageStore, kernel: Kernel, *, is_held: bool) -> None:
        self._is_slave = store.config.is_copy  # Its master delivers them.
        self._is_held = is_held
        self._files = files
        self._timers = files.timers
        self._store = store
        self._clock = kernel.clock
        self._rounds = Rounds(store, kernel, self._advance, again_ms=AGAIN_MS)
        self._look()

    def hold(self) -> None:
        """Deliver nothing until `begin`."""
        self._is_held = True

    def begin(self) -> None:
        """Deliver from now on."""
        self._is_held = False
        self._look()

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a timer message was stored; after entries of POP alone there is nothing to do."""
        if self._delivers and self._timers.skip_entries() < end:
            self._look()

    @property
    def _delivers(self) -> bool:
        return not self._is_slave and not self._is_held

    def _look(self) -> None:
        if self._delivers:
            self._rounds.by(self._clock.monotonic_ms())

    def close(self) -> None:
        """Finish the slot that is being delivered, so that none of it is delivered again after a start."""
        if not self._is_slave:
            self._timers.finish_slot(self._clock.wall_ms())

    def _advance(self, now_ms: MonotonicMs) -> bool:
        if not self._delivers:
            return False
        self._files.set_may_wait(self._store.may_wait)
        try:
            is_done = self._timers.advance(self._clock.wall_ms())
        finally:
            self._files.set_may_wait(True)
        if is_done:
            self._sleep(now_ms)
        elif self._timers.is_refused:
            self._rounds.by(now_ms + AGAIN_MS)
        return not is_done and not self._timers.is_refused

    def _sleep(self, now_ms: MonotonicMs) -> None:
        due_ms = self._timers.next_due_ms()
        if due_ms is not None:
            wait_ms = int(due_ms) - int(self._clock.wall_ms())
            self._rounds.by(now_ms + max(0, min(wait_ms, LOOK_MS)))
