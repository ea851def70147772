"""The delivering: pulled messages cut into portions for handlers.

    concurrent    everything that came, at once
    orderly       one portion a queue; the next when that one is done with

Portions hold at most batch_size messages of one topic. A paused queue keeps its portions back, and so do all
while the lease is over.
Upstream: ConsumeMessageConcurrentlyService.submitConsumeRequest, ConsumeMessageOrderlyService.java.
"""

from collections.abc import Sequence

from libramq.client.core import effects as fx
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.lease import Lease
from libramq.client.core.process_queue import Delivery, ProcessQueue
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic


class Delivering:
    """The deliveries that handlers get next."""

    def __init__(self, settings: ConsumerSettings, lease: Lease) -> None:
        self._lease = lease
        self._orderly = settings.orderly
        self._size = settings.batch_size
        self._retry_topic = retry_topic(settings.group)

    def arrived(self, owned: ProcessQueue, messages: Sequence[MessageExt]) -> list[fx.Effect]:
        """A pull brought messages."""
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
        """The next portion of a queue in order, when nothing keeps it."""
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
        """A handler did not begin: its queue was paused or dropped, or the lease was over."""
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
        return [fx.Deliver((delivery,))]  # Paused and resumed before we heard of it.

    def resume(self, owned: ProcessQueue) -> list[fx.Effect]:
        """A pause is over, or the lease holds again."""
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
