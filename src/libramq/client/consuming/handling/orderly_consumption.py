"""Orderly consumption: what happens after the handler of a queue's only portion has returned.

        done              ─► removed, offset advances, next portion
        retried           ─► put back, counted; the whole queue waits, then the same messages again
          too often       ─► sent to the retry topic, from which the broker makes it a dead letter ─► removed
        busy              ─► put back, uncounted; the whole queue waits
        rejected          ─► sent back to the broker as a dead letter ─► removed

Upstream: ConsumeMessageOrderlyService.processConsumeResult, checkReconsumeTimes, sendMessageBack.
"""

from collections import deque
from collections.abc import Iterable

from libramq.client.consuming.due import SuspendOver
from libramq.client.consuming.handling.consumption import Consumption
from libramq.client.consuming.handling.send_back import CHOSEN_BY_BROKER
from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class OrderlyConsumption(Consumption):
    """Turns results of handlers into offsets, and suspends a queue after a failure."""

    def suspend_over(self, queue: MessageQueue, generation: int) -> Steps:
        """Continue a queue after its suspension."""
        owned = self._table.same(queue, generation)
        if owned is None:
            return []
        owned.work.is_suspended = False
        return self._delivering.next(owned)

    def _retry(
        self, delivery: Delivery, retries: Iterable[tuple[MessageExt, int | None]], now_ms: MonotonicMs
    ) -> Steps:
        owned = delivery.owned
        found: Steps = []
        again, delays_ms = [], []
        for message, after_ms in retries:
            if message.reconsume_times >= self._settings.retries_max:
                owned.work.sending_back += 1
                found += self._send_copy(delivery, message, CHOSEN_BY_BROKER, now_ms)
            else:
                message.reconsume_times += 1
                again.append(message)
                delays_ms.append(self._settings.suspend_ms if after_ms is None else after_ms)
        if again:
            self._put_back(owned, again)
            self._suspend(owned, max(delays_ms), now_ms)
        return found

    def _wait(self, delivery: Delivery, busy: Iterable[tuple[MessageExt, int]], now_ms: MonotonicMs) -> Steps:
        delay_ms = min(within_ms for _, within_ms in busy)
        self._put_back(delivery.owned, [message for message, _ in busy])
        self._suspend(delivery.owned, min(delay_ms, self._settings.suspend_ms), now_ms)
        return []

    def _keep(self, delivery: Delivery, message: MessageExt, now_ms: MonotonicMs) -> Steps:
        owned = delivery.owned
        log.warning("message could not be sent to the retry topic; its queue waits", queue=str(owned.queue))
        owned.work.sending_back -= 1
        message.reconsume_times += 1
        self._put_back(owned, [message])
        self._suspend(owned, self._settings.suspend_ms, now_ms)
        return self._go_on(delivery, now_ms)

    def _put_back(self, owned: OwnedQueue, messages: Iterable[MessageExt]) -> None:
        owned.work.waiting = deque(sorted([*messages, *owned.work.waiting], key=_offset))

    def _suspend(self, owned: OwnedQueue, delay_ms: int, now_ms: MonotonicMs) -> None:
        if not owned.work.is_suspended:
            owned.work.is_suspended = True
            self._timers.at(now_ms + delay_ms, SuspendOver(owned.queue, owned.generation))


def _offset(message: MessageExt) -> int:
    return message.queue_offset
