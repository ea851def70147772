"""Delivery: the timer of the delay levels. It runs only while there are delayed messages."""

from typing import Final

from libramq.broker.schedule import DELIVERED_PER_ROUND_MAX, DelaySchedule
from libramq.clock import Clock, MonotonicMs
from libramq.kernel.deadlines import Deadlines
from libramq.message.names import SCHEDULE_TOPIC

#: Ours: how soon delivery is retried if the store accepts no messages, or the next message is not flushed.
AGAIN_MS: Final = 100


class Delivery:
    """Delivers due messages; an `arrivals.Listener`."""

    def __init__(self, schedule: DelaySchedule, *, clock: Clock, deadlines: Deadlines) -> None:
        self._schedule = schedule
        self._clock = clock
        self._deadline = deadlines.new(self._deliver)
        self._deadline.at(clock.monotonic_ms())

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Note that a delay level has a new message."""
        if topic == SCHEDULE_TOPIC:
            self._schedule.level_grew(queue_id)
            self._look(self._clock.monotonic_ms(), wait_ms_min=0)

    def _deliver(self, now_ms: MonotonicMs) -> None:
        try:
            delivered = self._schedule.deliver(now_ms)
        except BaseException:
            self._deadline.by(now_ms + AGAIN_MS)
            raise
        if delivered >= DELIVERED_PER_ROUND_MAX:
            self._deadline.by(now_ms)
        else:
            self._look(now_ms, wait_ms_min=0 if delivered else AGAIN_MS)

    def _look(self, now_ms: MonotonicMs, *, wait_ms_min: int) -> None:
        """Set the deadline; due messages that were not delivered wait for the store."""
        due_ms = self._schedule.next_due_ms(now_ms)
        if due_ms is not None:
            self._deadline.by(max(due_ms, now_ms + wait_ms_min) if due_ms <= now_ms else due_ms)
