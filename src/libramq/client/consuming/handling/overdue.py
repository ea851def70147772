"""The overdue handlers: those that have run longer than allowed (max_processing_ms).

Kafka's client leaves its group for the same reason (max.poll.interval.ms).
"""

from collections.abc import Iterable
from typing import Final

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due, ProcessingDue
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.timers import DueItems
from libramq.clock import MonotonicMs

#: Ours: how often to look, as a fraction of the allowed time, and at least.
CHECKS: Final = 10
CHECK_MS_MAX: Final = 5_000


class Overdue:
    """Looks for overdue handlers, and knows when the last one has returned."""

    def __init__(self, settings: ConsumerSettings, timers: DueItems[Due], table: QueueTable) -> None:
        self._max_ms = settings.max_processing_ms
        self._timers = timers
        self._table = table
        self._deliveries: set[Delivery] = set()

    def __len__(self) -> int:
        return len(self._deliveries)

    def watch(self, now_ms: MonotonicMs) -> None:
        """Set the next check."""
        self._timers.at(now_ms + min(self._max_ms // CHECKS, CHECK_MS_MAX), ProcessingDue())

    def look(self, now_ms: MonotonicMs) -> None:
        """Find the overdue handlers of owned queues; queues being given up have a deadline of their own."""
        for owned in self._table.each():
            if owned.is_ours:
                self._deliveries.update(
                    delivery
                    for delivery in owned.work.deliveries
                    if delivery.is_under_way and now_ms - delivery.began_ms > self._max_ms
                )

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Note that handlers have returned."""
        self._deliveries.difference_update(deliveries)
