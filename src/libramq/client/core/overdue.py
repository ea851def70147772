"""The overdue handlers: those that have run for longer than a handler may (max_processing_ms).

Kafka's client leaves its group for the same reason (max.poll.interval.ms).
"""

from collections.abc import Iterable
from typing import Final

from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.due import Due, ProcessingDue
from libramq.client.core.process_queue import Delivery
from libramq.client.core.queue_table import QueueTable
from libramq.client.core.timers import Timers
from libramq.clock import MonotonicMs

#: Ours: how often to look, as a part of the time that is allowed, and at least.
CHECKS: Final = 10
CHECK_MS_MAX: Final = 5_000


class Overdue:
    """Looks for them, and knows when the last one has returned."""

    def __init__(self, settings: ConsumerSettings, timers: Timers[Due], table: QueueTable) -> None:
        self._max_ms = settings.max_processing_ms
        self._timers = timers
        self._table = table
        self._deliveries: set[Delivery] = set()

    def __len__(self) -> int:
        return len(self._deliveries)

    def watch(self, now_ms: MonotonicMs) -> None:
        """Look again after a while."""
        self._timers.at(now_ms + min(self._max_ms // CHECKS, CHECK_MS_MAX), ProcessingDue())

    def look(self, now_ms: MonotonicMs) -> None:
        """Find those of queues that are ours; of queues that we give up, nobody waits for them for ever."""
        for owned in self._table.each():
            if not owned.dropped:
                self._deliveries.update(
                    delivery
                    for delivery in owned.deliveries
                    if delivery.started and now_ms - delivery.began_ms > self._max_ms
                )

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Handlers have returned."""
        self._deliveries.difference_update(deliveries)
