"""The delivering: pulled messages are split into portions for handlers.

        concurrent    everything that came, at once
        orderly       one portion per queue; the next when that one is done

Portions hold at most batch_size messages of one topic. They are held while their queue is not READING, and
while the lease has expired.
Upstream: ConsumeMessageConcurrentlyService.submitConsumeRequest, ConsumeMessageOrderlyService.java.
"""

from collections.abc import Sequence

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.queues.lease import Lease
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.queues.state import QueueState
from libramq.fencing import NO_ATTEMPTS
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic


class Delivering:
    """Decides which deliveries handlers get next."""

    def __init__(self, settings: ConsumerSettings, lease: Lease) -> None:
        self._lease = lease
        self._orderly = settings.orderly
        self._size = settings.batch_size
        self._retry_topic = retry_topic(settings.group)

    def arrived(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> Effects:
        """Handle the messages of a pull."""
        if self._orderly:
            if messages and owned.former_attempts.times:
                _count_former(owned, messages[0])
            owned.work.waiting.extend(messages)
            return self.next(owned)
        deliveries = [Delivery(owned, portion) for portion in self._cut(owned, messages)]
        owned.work.deliveries.update(deliveries)
        if self._is_kept_back(owned):
            owned.work.kept += deliveries
            return []
        return [fx.Deliver(deliveries)]

    def next(self, owned: OwnedQueue) -> Effects:
        """Return the next portion of an orderly queue, if nothing holds it."""
        work = owned.work
        waiting = work.waiting
        if not waiting or work.deliveries or work.sending_back or work.is_suspended:
            return []
        if not owned.lock.is_held or self._is_kept_back(owned):
            return []
        portion = [waiting.popleft()]
        while waiting and len(portion) < self._size and waiting[0].topic == portion[0].topic:
            portion.append(waiting.popleft())
        delivery = Delivery(owned, portion)
        work.deliveries.add(delivery)
        return [fx.Deliver((delivery,))]

    def not_begun(self, delivery: Delivery) -> Effects:
        """Hold a delivery whose handler did not begin: queue not READING, or lease expired."""
        owned = delivery.owned
        if not owned.is_ours:
            return []
        if self._orderly:
            owned.work.waiting.extendleft(reversed(delivery.messages))
            return self.next(owned)
        delivery.started = False
        owned.work.deliveries.add(delivery)
        if self._is_kept_back(owned):
            owned.work.kept.append(delivery)
            return []
        return [fx.Deliver((delivery,))]  # Paused and resumed in the meantime.

    def resume(self, owned: OwnedQueue) -> Effects:
        """Continue after a pause, or after the lease was renewed."""
        if self._is_kept_back(owned):
            return []
        if self._orderly:
            return self.next(owned)
        kept, owned.work.kept = owned.work.kept, []
        return [fx.Deliver(kept)] if kept else []

    def _is_kept_back(self, owned: OwnedQueue) -> bool:
        return owned.state is not QueueState.READING or not self._lease.holds()

    def _cut(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> list[Sequence[MessageExt]]:
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


def _count_former(owned: OwnedQueue, first: MessageExt) -> None:
    """Go on counting the attempts of a message with which the queue's former owner had failed."""
    offset, times = owned.former_attempts
    owned.former_attempts = NO_ATTEMPTS
    if first.queue_offset == offset:
        first.reconsume_times = max(first.reconsume_times, times)
