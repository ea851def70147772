"""The fetch buffer: pulled messages that the program has yet to take.

    network thread ─► put ─► batches, in the order of their arrival ─► take ─► program ─► finish ─► report

Messages that `take` returns are in progress until the program's next call: only then are they done. Batches
of a queue that may not be read now (it is paused, or our lease is over) are set aside, and retried when the
core says so. Everything but `put` is called by one thread of the program at a time.
Upstream: DefaultLitePullConsumerImpl.poll.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from libramq.client.consuming.fetching.fetched_batch import FetchedBatch
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

FetchedMessages = dict[MessageQueue, Sequence[MessageExt]]


class FetchBuffer:
    """The batches of all queues.

    report: called with batches from which no more messages will be taken. arrived: called by `put`.
    """

    def __init__(self, report: Callable[[Delivery, Ending], None], arrived: Callable[[], None]) -> None:
        self._report = report
        self._has_arrived = arrived
        self._arrived: deque[FetchedBatch | None] = deque()
        self._ready: deque[FetchedBatch] = deque()
        self._aside: dict[OwnedQueue, list[FetchedBatch]] = {}
        self._in_hand: list[FetchedBatch] = []

    def put(self, batches: Iterable[Delivery]) -> None:
        """Add pulled batches; called on the network thread. Without any: retry those set aside."""
        before = len(self._arrived)
        for batch in batches:
            assert isinstance(batch, FetchedBatch), "a program that fetches has no other deliveries"
            self._arrived.append(batch)
        if len(self._arrived) == before:
            self._arrived.append(None)
        self._has_arrived()

    @property
    def has_arrivals(self) -> bool:
        """Return whether anything has arrived since the last call of `take`."""
        return bool(self._arrived)

    def finish(self, *, is_done: bool = True) -> None:
        """Mark the messages in progress as done or, with is_done=False, as to be delivered again."""
        for batch in reversed(self._in_hand):
            self._put_back(batch, is_done=is_done)
        self._in_hand.clear()

    def finish_before(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Mark the messages in progress before these offsets as done."""
        for batch in list(self._in_hand):
            batch.finish_before(offsets.get(batch.owned.queue, 0))
            if not batch.is_under_way:
                self._in_hand.remove(batch)
                self._put_back(batch, is_done=True)

    def take(self, count_max: int) -> FetchedMessages:
        """Return the next messages by queue; earlier ones are done."""
        self.finish()
        self._sort_in()
        found: FetchedMessages = {}
        while count_max > 0 and self._ready:
            batch = self._ready.popleft()
            messages = self._taken_of(batch, count_max)
            if messages:
                count_max -= len(messages)
                queue = batch.owned.queue
                before = found.get(queue)
                found[queue] = messages if before is None else [*before, *messages]
        return found

    def take_batch(self, count_max: int) -> tuple[MessageQueue, Sequence[MessageExt]] | None:
        """Return the next messages of one pull; earlier ones are done."""
        self.finish()
        self._sort_in()
        while self._ready:
            batch = self._ready.popleft()
            messages = self._taken_of(batch, count_max)
            if messages:
                return batch.owned.queue, messages
        return None

    def take_one(self) -> MessageExt | None:
        """Return the next message; the previous one is done."""
        if len(self._in_hand) == 1:  # Nearly always, the next message is in the same batch.
            message = self._in_hand[0].take_next()
            if message is not None:
                return message
        taken = self.take_batch(1)
        return None if taken is None else taken[1][0]

    def _taken_of(self, batch: FetchedBatch, count_max: int) -> Sequence[MessageExt]:
        aside = self._aside.get(batch.owned)
        if aside is not None:  # Keeps the order of the queue.
            aside.append(batch)
            return ()
        messages = batch.take(count_max)
        if messages:
            self._in_hand.append(batch)
        elif batch.is_void:  # Checked again, after `take` has stepped back: see FetchedBatch.
            self._end(batch)
        else:
            self._aside[batch.owned] = [batch]
        return messages

    def _put_back(self, batch: FetchedBatch, *, is_done: bool) -> None:
        if batch.finish(is_done=is_done):
            self._end(batch)
        else:  # The rest of it comes next.
            self._ready.appendleft(batch)

    def _sort_in(self) -> None:
        while self._arrived:
            batch = self._arrived.popleft()
            if batch is not None:
                self._ready.append(batch)
            elif self._aside:
                again = [each for batches in self._aside.values() for each in batches]
                self._aside.clear()
                self._ready.extendleft(reversed(again))

    def _end(self, batch: FetchedBatch) -> None:
        if batch.started:
            self._report(batch, HandlerOutcome.SUCCESS)
