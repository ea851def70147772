"""The delivering to a program that fetches: every pull's messages are one batch, in the order of the queue.

Batches are passed on at once; whether messages may be taken is looked up when they are (`FetchedBatch.take`).
"""

from collections.abc import Sequence

from libramq.client.consuming import effects as fx
from libramq.client.consuming.fetching.fetched_batch import FetchedBatch
from libramq.client.consuming.handling.delivering import Delivering
from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.signals import Steps
from libramq.message.message import MessageExt


class FetchDelivering(Delivering):
    """Passes batches on."""

    def arrived(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> Steps:
        """Pass the messages of a pull on."""
        batch = FetchedBatch(owned, messages)
        owned.work.deliveries.add(batch)
        return [fx.Deliver((batch,))]

    def next(self, owned: OwnedQueue) -> Steps:
        """Do nothing: everything that came was passed on."""
        return []

    def not_begun(self, delivery: Delivery) -> Steps:
        """Do nothing: a batch that may not be taken yet stays where it is."""
        return []

    def resume(self, owned: OwnedQueue) -> Steps:
        """Have the batches looked at again that could not be taken."""
        return [fx.Deliver(())]
