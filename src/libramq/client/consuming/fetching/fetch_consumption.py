"""The consumption of a program that fetches: what follows when it is done with a batch."""

from collections.abc import Iterable

from libramq.client.consuming.fetching.fetched_batch import FetchedBatch
from libramq.client.consuming.fetching.held_batches import HeldBatches
from libramq.client.consuming.handling.consumption import Consumption
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs


class FetchConsumption(Consumption):
    """Turns finished batches into offsets."""

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> Steps:
        """Handle batches of which nothing will be taken any more."""
        found: Steps = []
        for batch, _ in results:
            assert isinstance(batch, FetchedBatch), "a program that fetches has no other deliveries"
            owned = batch.owned
            if batch in owned.work.deliveries and batch.done:
                self._duplicates.handled(owned.queue, batch.offset_at(batch.done - 1))
                finished = owned.work.finished_offset()
                if self._table.is_current(owned):
                    assert isinstance(owned.held, HeldBatches), "a program that fetches holds batches"
                    owned.held.remove_batch(batch.offset_at(0))
                    assert finished is not None, "something of it is done"
                    self._offsets.advance(owned.queue, finished)
            owned.work.deliveries.discard(batch)
            found += self._go_on(batch, now_ms)
        return found
