"""The consumption in order: what follows when the handler of a queue's one portion has returned.

    success           ─► removed, offset moves on, next portion
    failure           ─► put back, counted; the whole queue waits, then the same messages again
      once too often  ─► sent to the retry topic, whence the broker puts it among the dead letters ─► removed

Upstream: ConsumeMessageOrderlyService.processConsumeResult, checkReconsumeTimes, sendMessageBack.
"""

from collections import deque

from libramq.client.core import effects as fx
from libramq.client.core.consumption import Consumption
from libramq.client.core.due import SuspendOver
from libramq.client.core.process_queue import Delivery, ProcessQueue
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class OrderlyConsumption(Consumption):
    """Turns handlers' outcomes into offsets, and holds up a queue that has trouble."""

    def suspend_over(self, queue: MessageQueue, generation: int) -> list[fx.Effect]:
        """A queue has waited."""
        owned = self._table.current(queue, generation)
        if owned is None:
            return []
        owned.suspended = False
        return self._delivering.next(owned)

    def _failed(self, delivery: Delivery, now_ms: int) -> list[fx.Effect]:
        owned = delivery.process_queue
        found: list[fx.Effect] = []
        again = []
        for message in delivery.messages:
            if message.reconsume_times >= self._settings.retries_max:
                owned.sending_back += 1
                found += self._send_copy(delivery, message, now_ms)
            else:
                message.reconsume_times += 1
                again.append(message)
        if again:
            owned.waiting.extendleft(reversed(again))
            self._suspend(owned, now_ms)
        return found

    def _keep(self, delivery: Delivery, message: MessageExt, now_ms: int) -> list[fx.Effect]:
        owned = delivery.process_queue
        log.warning("message could not be sent to the retry topic; its queue waits", queue=str(owned.queue))
        owned.sending_back -= 1
        message.reconsume_times += 1
        owned.waiting = deque(sorted([message, *owned.waiting], key=_offset))
        self._suspend(owned, now_ms)
        return self._go_on(delivery, now_ms)

    def _suspend(self, owned: ProcessQueue, now_ms: int) -> None:
        if not owned.suspended:
            owned.suspended = True
            due_ms = now_ms + self._settings.suspend_ms
            self._timers.at(due_ms, SuspendOver(owned.queue, owned.generation))


def _offset(message: MessageExt) -> int:
    return message.queue_offset
