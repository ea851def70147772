"""The overdue handlers: those that have run longer than allowed (max_processing_ms).

    overdue ─► the coordinator hears of it ─┬► others get our queues: the message is sent back from them
                                            └► there are no others: a success counts, however late

Kafka's client leaves its group for the same reason (max.poll.interval.ms).
"""

from collections.abc import Iterable
from typing import Final

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.ownership.state import QueueState
from libramq.clock import MonotonicMs
from libramq.kernel.deadlines import Deadline

#: Ours: how often to look, as a fraction of the allowed time, and at least.
CHECKS: Final = 10
CHECK_MS_MAX: Final = 5_000


class Overdue:
    """Looks for overdue handlers, and knows when the last one has returned."""

    def __init__(self, settings: ConsumerSettings, timer: Deadline, table: QueueTable) -> None:
        """timer: of the next check."""
        self._max_ms = settings.max_processing_ms
        self._timer = timer
        self._table = table
        self._deliveries: set[Delivery] = set()

    def __len__(self) -> int:
        return len(self._deliveries)

    def watch(self, now_ms: MonotonicMs) -> None:
        """Set the next check."""
        self._timer.at(now_ms + min(self._max_ms // CHECKS, CHECK_MS_MAX))

    def look(self, now_ms: MonotonicMs) -> list[Delivery]:
        """Find the overdue handlers; return those whose queues are about to be granted to others."""
        late = [
            delivery
            for owned in self._table.each()
            for delivery in owned.work.deliveries
            if delivery.is_under_way and now_ms - delivery.began_ms > self._max_ms
        ]
        self._deliveries.update(late)
        return [each for each in late if _is_revoked(each)]

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Note that handlers have returned."""
        self._deliveries.difference_update(deliveries)


def _is_revoked(delivery: Delivery) -> bool:
    owned = delivery.owned
    return owned.is_revoked_by_coordinator and owned.state is QueueState.DRAINING
