"""The handler deadlines: when a handler that does not return (consume_timeout_ms) is abandoned, and its
messages are redelivered.

Only its own messages are redelivered; its place is free for others, and a late result is ignored. At most as
many handlers are abandoned at a time as may run, since threads cannot be killed.
Upstream: ConsumeMessageConcurrentlyService.cleanExpireMsg (consumeTimeout), which leaves out orderly ones.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.consumption import Consumption
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how often to check within the allowed time.
CHECKS: Final = 10
#: Ours: the longest time between two checks.
CHECK_MS_MAX: Final = 60_000


class HandlerDeadlines:
    """Looks for overdue handlers, and remembers the abandoned ones."""

    def __init__(
        self,
        settings: ConsumerSettings,
        kernel: ConsumerKernel,
        table: QueueTable,
        consumption: Consumption,
        coordination: MemberCoordination,
    ) -> None:
        self._settings = settings
        self._effects = kernel.effects
        self._timer = kernel.deadlines.new(self._due)
        self._table = table
        self._consumption = consumption
        self._coordination = coordination
        self._abandoned: set[Delivery] = set()

    def watch(self, now_ms: MonotonicMs) -> None:
        """Set the next check."""
        delay_ms = min(self._settings.consume_timeout_ms // CHECKS, CHECK_MS_MAX)
        self._timer.at(now_ms + delay_ms)

    def _due(self, now_ms: MonotonicMs) -> None:
        """Abandon overdue handlers, as if they had failed."""
        self.watch(now_ms)
        timeout_ms = self._settings.consume_timeout_ms
        expired = [each for each in self._abandoned if now_ms - each.began_ms > timeout_ms]
        self._coordination.ended(expired, now_ms)
        late = self._late(now_ms)
        self.overrun(late, now_ms)
        self._coordination.ended(late, now_ms)

    def overrun(self, deliveries: Sequence[Delivery], now_ms: MonotonicMs) -> None:
        """Abandon handlers as if they had failed, up to the limit.

        Handlers beyond max_processing_ms count as slow until they return, or consume_timeout_ms is over.
        """
        late = deliveries[: self._settings.threads - len(self._abandoned)]
        if not late:
            return
        self._abandoned.update(late)
        failed = [(delivery, HandlerOutcome.LATER) for delivery in late]
        self._effects.add(fx.Abandon(tuple(late)))
        self._consumption.handled(failed, now_ms)

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> None:
        """Handle results; those of abandoned handlers are ignored."""
        counting, returned = [], []
        for result in results:
            delivery = result[0]
            self._table.returned(delivery)
            returned.append(delivery)
            if delivery in self._abandoned:
                self._abandoned.discard(delivery)
            else:
                counting.append(result)
        self._consumption.handled(counting, now_ms)
        self._coordination.ended(returned, now_ms)

    def _late(self, now_ms: MonotonicMs) -> list[Delivery]:
        """Return the overdue handlers that may be abandoned."""
        timeout_ms = self._settings.consume_timeout_ms
        late = [
            delivery
            for delivery in self._table.running()
            if delivery not in self._abandoned and now_ms - delivery.began_ms > timeout_ms
        ]
        room = self._settings.threads - len(self._abandoned)
        for position, delivery in enumerate(late):
            first = delivery.messages[0]
            log.error(
                "a handler does not return; its messages are redelivered"
                if position < room
                else "a handler does not return, and the limit of abandoned handlers is reached",
                topic=first.topic,
                message_id=first.message_id,
                consume_timeout_ms=timeout_ms,
                configured="PushConsumer(consume_timeout_ms=…)",
            )
        return late[:room]
