"""The handler deadlines: a handler that does not end in consume_timeout_ms is given up on.

Its messages are delivered again, they alone; the handler's place is free for others, and its end, should it
come, counts for nothing. At most as many are given up on at a time as may run: threads cannot be ended.
Upstream: ConsumeMessageConcurrentlyService.cleanExpireMsg (consumeTimeout), which leaves out those in order.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from libramq.client.core import effects as fx
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.consumption import Consumption
from libramq.client.core.coordination import Coordination
from libramq.client.core.due import DeadlineDue, Due
from libramq.client.core.effects import Effects
from libramq.client.core.handler_result import Ending, Outcome
from libramq.client.core.process_queue import Delivery
from libramq.client.core.queue_table import QueueTable
from libramq.client.core.timers import Timers
from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how often to look, as a part of the time that is allowed, and at least.
CHECKS: Final = 10
CHECK_MS_MAX: Final = 60_000


class HandlerDeadlines:
    """Looks for handlers that do not end, and remembers those that were given up on."""

    def __init__(
        self,
        settings: ConsumerSettings,
        timers: Timers[Due],
        table: QueueTable,
        consumption: Consumption,
        coordination: Coordination,
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._table = table
        self._consumption = consumption
        self._coordination = coordination
        self._abandoned: set[Delivery] = set()

    def watch(self, now_ms: MonotonicMs) -> None:
        """Look again after a while."""
        delay_ms = min(self._settings.consume_timeout_ms // CHECKS, CHECK_MS_MAX)
        self._timers.at(now_ms + delay_ms, DeadlineDue())

    def due(self, now_ms: MonotonicMs) -> Effects:
        """Give up on the handlers whose time is up, as if they had failed."""
        self.watch(now_ms)
        late = self._late(now_ms)
        if not late:
            return []
        failed = [(delivery, Outcome.LATER) for delivery in late]
        return [fx.GiveUp(tuple(late)), *self._ended(failed, now_ms)]

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> Effects:
        """Handlers have returned; the results of those that were given up on do not count."""
        counting = []
        for result in results:
            delivery = result[0]
            self._table.returned(delivery)
            if delivery in self._abandoned:
                self._abandoned.discard(delivery)
            else:
                counting.append(result)
        return self._ended(counting, now_ms)

    def _ended(self, results: Sequence[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> Effects:
        effects = self._consumption.handled(results, now_ms)
        return effects + self._coordination.ended((delivery for delivery, _ in results), now_ms)

    def _late(self, now_ms: MonotonicMs) -> list[Delivery]:
        timeout_ms = self._settings.consume_timeout_ms
        late = [
            delivery
            for delivery in self._table.running()
            if delivery not in self._abandoned and now_ms - delivery.began_ms > timeout_ms
        ]
        for delivery in late[: self._settings.threads - len(self._abandoned)]:
            self._abandoned.add(delivery)
        for delivery in late:
            first = delivery.messages[0]
            log.error(
                "a handler does not return; its messages are redelivered"
                if delivery in self._abandoned
                else "a handler does not return, and the limit of abandoned handlers is reached",
                topic=first.topic,
                message_id=first.message_id,
                consume_timeout_ms=timeout_ms,
            )
        return [delivery for delivery in late if delivery in self._abandoned]
