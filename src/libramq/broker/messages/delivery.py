"""Delivery: the timer of the delay levels. It runs only while there are delayed messages."""

from functools import partial
from typing import Final

from libramq.broker.messages.schedule import DELIVERED_PER_ROUND_MAX, DelaySchedule
from libramq.clock import MonotonicMs
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.message.names import SCHEDULE_TOPIC
from libramq.store.message_store import MessageStore
from libramq.store.segments import ColdRead

#: Ours: how soon delivery is retried if the store accepts no messages, or the next message is not flushed.
AGAIN_MS: Final = 100
#: Ours: each level needs two reads. Where what a thread has read is gone again, the loop waits in the end.
WARMINGS_MAX: Final = 64


class Delivery:
    """Delivers due messages; an `arrivals.Listener`. A slave leaves that to its master."""

    def __init__(self, schedule: DelaySchedule, store: MessageStore, kernel: Kernel) -> None:
        self._schedule = schedule
        self._store = store
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadline = kernel.deadlines.new(self._deliver)
        if not store.config.is_copy:
            self._deadline.at(self._clock.monotonic_ms())
        #: How often in a row a thread has read what was not in memory; whether one does so now.
        self._warmings = 0
        self._is_warming = False

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a delay level has a new message."""
        if topic == SCHEDULE_TOPIC and not self._store.config.is_copy:
            self._schedule.level_grew(queue_id)
            self._look(self._clock.monotonic_ms(), wait_ms_min=0)

    def _deliver(self, now_ms: MonotonicMs) -> None:
        if self._is_warming:
            return
        try:
            if self._warmings < WARMINGS_MAX:
                with self._store.without_waiting():
                    delivered = self._schedule.deliver(now_ms)
            else:
                delivered = self._schedule.deliver(now_ms)
            self._warmings = 0
        except ColdRead as cold:
            self._is_warming = True
            self._warmings += 1
            self._effects.run(Thread.READ, partial(self._store.warm, (cold.stretch,)), self._warmed)
            return
        except BaseException:
            self._deadline.by(now_ms + AGAIN_MS)
            raise
        if delivered >= DELIVERED_PER_ROUND_MAX:
            self._deadline.by(now_ms)
        else:
            self._look(now_ms, wait_ms_min=0 if delivered else AGAIN_MS)

    def _warmed(self, _: object) -> None:
        self._is_warming = False
        self._deadline.by(self._clock.monotonic_ms())

    def _look(self, now_ms: MonotonicMs, *, wait_ms_min: int) -> None:
        """Set the deadline; due messages that were not delivered wait for the store."""
        due_ms = self._schedule.next_due_ms(now_ms)
        if due_ms is not None:
            self._deadline.by(max(due_ms, now_ms + wait_ms_min) if due_ms <= now_ms else due_ms)
