"""Delivery: when due messages of delay levels and timers are stored in their topics, and how soon a failed
delivery is retried.

Both run in rounds: they sleep until the next message is due, and continue when one is stored. A slave leaves
delivery to its master; a master that asks its slaves first holds its rounds (`rounds`).
"""

from typing import Final

from libramq.broker.files.delay_schedule import DelaySchedule
from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.message import names
from libramq.store.message_store import MessageStore
from libramq.store.rounds import Rounds
from libramq.timers.timer_files import TimerFiles

#: Ours: delay before delivery is retried because the store accepts no messages or the next is not flushed.
AGAIN_MS: Final = 100
#: Ours: the longest sleep while timers wait. If the wall clock is set forward, messages are at most this
#: late.
LOOK_MS: Final = 10_000


class LevelDelivery:
    """Delivers due messages of delay levels; an `arrivals.TopicListener`. is_held: its rounds begin held."""

    topic = names.SCHEDULE_TOPIC

    def __init__(
        self, schedule: DelaySchedule, store: MessageStore, kernel: Kernel, *, is_held: bool = False
    ) -> None:
        self._schedule = schedule
        self._store = store
        self._clock = kernel.clock
        self._is_slave = store.config.is_copy
        self.rounds = Rounds(
            store, kernel, self._deliver, again_ms=AGAIN_MS, is_held=is_held or self._is_slave
        )
        self.rounds.by(self._clock.monotonic_ms())

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a delay level has a new message."""
        if not self._is_slave:
            self._schedule.level_grew(queue_id)
        if not self.rounds.is_held:
            self._look(self._clock.monotonic_ms(), wait_ms_min=0)

    def _deliver(self, now_ms: MonotonicMs) -> bool:
        if self._schedule.deliver(now_ms):
            return True
        self._look(now_ms, wait_ms_min=AGAIN_MS)
        return False

    def _look(self, now_ms: MonotonicMs, *, wait_ms_min: int) -> None:
        """Set the deadline; due but undelivered messages wait for the store."""
        due_ms = self._schedule.next_due_ms(now_ms)
        if due_ms is not None:
            self.rounds.by(max(due_ms, now_ms + wait_ms_min) if due_ms <= now_ms else due_ms)


class TimerDelivery:
    """Delivers timer messages; an `arrivals.TopicListener`. is_held: its rounds begin held."""

    topic = names.TIMER_TOPIC

    def __init__(self, files: TimerFiles, store: MessageStore, kernel: Kernel, *, is_held: bool) -> None:
        self._is_slave = store.config.is_copy  # Its master delivers them.
        self._files = files
        self._timers = files.timers
        self._store = store
        self._clock = kernel.clock
        self.rounds = Rounds(
            store, kernel, self._advance, again_ms=AGAIN_MS, is_held=is_held or self._is_slave
        )
        self.rounds.by(self._clock.monotonic_ms())

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a timer message was stored; entries of POP alone need no delivery."""
        if not self.rounds.is_held and self._timers.skip_entries() < end:
            self.rounds.by(self._clock.monotonic_ms())

    def close(self) -> None:
        """Finish delivering the current slot, so that none of it is delivered again after a start."""
        if not self._is_slave:
            self._timers.finish_slot(self._clock.wall_ms())

    def _advance(self, now_ms: MonotonicMs) -> bool:
        self._files.set_may_wait(self._store.may_wait)
        try:
            is_done = self._timers.advance(self._clock.wall_ms())
        finally:
            self._files.set_may_wait(True)
        if is_done:
            due_ms = self._timers.next_due_ms()
            if due_ms is not None:
                wait_ms = int(due_ms) - int(self._clock.wall_ms())
                self.rounds.by(now_ms + max(0, min(wait_ms, LOOK_MS)))
        elif self._timers.is_refused:
            self.rounds.by(now_ms + AGAIN_MS)
        return not is_done and not self._timers.is_refused
