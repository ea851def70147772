"""Delivery: the timer of the delay levels. It runs only while there are delayed messages."""

from typing import Final

from libramq.broker.messages.rounds import Rounds
from libramq.broker.messages.schedule import DelaySchedule
from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.message.names import SCHEDULE_TOPIC
from libramq.store.message_store import MessageStore

#: Ours: how soon delivery is retried if the store accepts no messages, or the next message is not flushed.
AGAIN_MS: Final = 100


class Delivery:
    """Delivers due messages; an `arrivals.TopicListener`. A slave leaves that to its master.

    is_held: nothing is delivered before `begin`.
    """

    topic = SCHEDULE_TOPIC

    def __init__(
        self, schedule: DelaySchedule, store: MessageStore, kernel: Kernel, *, is_held: bool = False
    ) -> None:
        self._schedule = schedule
        self._store = store
        self._clock = kernel.clock
        self._rounds = Rounds(store, kernel, self._deliver, again_ms=AGAIN_MS)
        self._is_slave = store.config.is_copy
        self._is_held = is_held or self._is_slave
        if not self._is_held:
            self.begin()

    def hold(self) -> None:
        """Deliver nothing until `begin`."""
        self._is_held = True

    def begin(self) -> None:
        """Deliver from now on."""
        self._is_held = False
        self._rounds.by(self._clock.monotonic_ms())

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a delay level has a new message."""
        if not self._is_slave:
            self._schedule.level_grew(queue_id)
        if not self._is_held:
            self._look(self._clock.monotonic_ms(), wait_ms_min=0)

    def _deliver(self, now_ms: MonotonicMs) -> bool:
        if self._is_held:
            return False
        if self._schedule.deliver(now_ms):
            return True
        self._look(now_ms, wait_ms_min=AGAIN_MS)
        return False

    def _look(self, now_ms: MonotonicMs, *, wait_ms_min: int) -> None:
        """Set the deadline; due messages that were not delivered wait for the store."""
        due_ms = self._schedule.next_due_ms(now_ms)
        if due_ms is not None:
            self._rounds.by(max(due_ms, now_ms + wait_ms_min) if due_ms <= now_ms else due_ms)
