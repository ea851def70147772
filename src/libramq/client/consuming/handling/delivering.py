"""The delivering: pulled messages are split into portions for handlers.

        concurrent    everything that came, at once
        orderly       one portion per queue; the next when that one is done

Portions hold at most batch_size messages of one topic. A paused queue's portions are held, and all are held
while the lease has expired.
Upstream: ConsumeMessageConcurrentlyService.submitConsumeRequest, ConsumeMessageOrderlyService.java.
"""

from collections.abc import Sequence

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.ownership.process_queue import Delivery, ProcessQueue
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic


class Delivering:
    """Decides which deliveries handlers get next."""

    def __init__(self, settings: ConsumerSettings, lease: Lease) -> None:
        self._lease = lease
        self._orderly = settings.orderly
        self._size = settings.batch_size
        self._retry_topic = retry_topic(settings.group)

    def arrived(self, owned: ProcessQueue, messages: Sequence[MessageExt]) -> list[fx.Effect]:
        """Handle the messages of a pull."""
        if self._orderly:
            owned.waiting.extend(messages)
            return self.next(owned)
        deliveries = [Delivery(owned, portion) for portion in self._cut(owned, messages)]
        owned.deliveries.update(deliveries)
        if self._is_kept_back(owned):
            owned.kept += deliveries
            return []
        return [fx.Deliver(deliveries)]

    def next(self, owned: ProcessQueue) -> list[fx.Effect]:
        """Return the next portion of an orderly queue, if nothing holds it."""
        if not owned.waiting or owned.deliveries or owned.sending_back:
            return []
        if owned.suspended or owned.dropped or not owned.is_locked or self._is_kept_back(owned):
            return []
        waiting = owned.waiting
        portion = [waiting.popleft()]
        while waiting and len(portion) < self._size and waiting[0].topic == portion[0].topic:
            portion.append(waiting.popleft())
        delivery = Delivery(owned, portion)
        owned.deliveries.add(delivery)
        return [fx.Deliver((delivery,))]

    def not_begun(self, delivery: Delivery) -> list[fx.Effect]:
        """Hold a delivery whose handler did not begin: queue paused or dropped, or lease expired."""
        owned = delivery.process_queue
        if owned.dropped:
            return []
        if self._orderly:
            owned.waiting.extendleft(reversed(delivery.messages))
            return self.next(owned)
        delivery.started = False
        owned.deliveries.add(delivery)
        if self._is_kept_back(owned):
            owned.kept.append(delivery)
            return []
        return [fx.Deliver((delivery,))]  # Paused and resumed in the meantime.

    def resume(self, owned: ProcessQueue) -> list[fx.Effect]:
        """Continue after a pause, or after the lease was renewed."""
        if self._is_kept_back(owned):
            return []
        if self._orderly:
            return self.next(owned)
        kept, owned.kept = owned.kept, []
        return [fx.Deliver(kept)] if kept else []

    def _is_kept_back(self, owned: ProcessQueue) -> bool:
        return owned.paused or not self._lease.holds()

    def _cut(self, owned: ProcessQueue, messages: Sequence[MessageExt]) -> list[Sequence[MessageExt]]:
        size = self._size
        if owned.queue.topic != self._retry_topic:
            return [messages[start : start + size] for start in range(0, len(messages), size)]
        cut: list[Sequence[MessageExt]] = []
        for message in messages:
            if cut and len(cut[-1]) < size and cut[-1][0].topic == message.topic:
                cut[-1] = [*cut[-1], message]
            else:
                cut.append([message])
        return cut
