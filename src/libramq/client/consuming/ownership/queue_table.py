"""The queue table: the queues that are ours or being given up, and which of them the user has paused."""

from collections.abc import Iterable
from typing import Final

from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.ownership.process_queue import Delivery, ProcessQueue, QueueState
from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue

#: ProcessQueue.PULL_MAX_IDLE_TIME.
PULL_IDLE_MS_MAX: Final = 120_000


class QueueTable:
    """The process queues, by queue."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._generation = 0
        self._all_paused = False
        self._paused: set[MessageQueue] = set()
        self._left_behind: set[Delivery] = set()  # Their queues are gone, but their handlers run.
        #: Called when a queue could not be taken, or one that we gave up could be taken again.
        self.needs_rebalance = False

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._queues

    def get(self, queue: MessageQueue) -> ProcessQueue | None:
        """Return the process queue of an owned queue."""
        return self._queues.get(queue)

    def current(self, queue: MessageQueue, generation: int) -> ProcessQueue | None:
        """Return the process queue of a request, unless the queue was lost since."""
        owned = self._queues.get(queue)
        return owned if owned is not None and owned.generation == generation and not owned.dropped else None

    def is_current(self, process_queue: ProcessQueue) -> bool:
        """Return whether it is still the one in use for its queue."""
        return self._queues.get(process_queue.queue) is process_queue

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return our queues of a topic, without those being given up."""
        return [queue for queue, owned in self._queues.items() if queue.topic == topic and not owned.dropped]

    def all(self) -> list[MessageQueue]:
        """Return every queue that is ours or being given up."""
        return list(self._queues)

    def each(self) -> list[ProcessQueue]:
        """Return every process queue, ours or being given up."""
        return list(self._queues.values())

    def ours(self) -> list[MessageQueue]:
        """Return the queues that are ours now, sorted."""
        return sorted(
            owned.queue
            for owned in self._queues.values()
            if not owned.dropped and owned.state is not QueueState.LOCKING
        )

    def idle(self, now_ms: MonotonicMs) -> list[MessageQueue]:
        """Return queues without a pull for longer than any pull may take."""
        return [
            queue
            for queue, owned in self._queues.items()
            if not owned.dropped
            and not owned.paused
            and owned.state is not QueueState.LOCKING
            and now_ms - owned.last_pull_ms > PULL_IDLE_MS_MAX
        ]

    def add(self, queue: MessageQueue, now_ms: MonotonicMs) -> ProcessQueue:
        """Add a queue that was assigned to us."""
        self._generation += 1
        owned = self._queues[queue] = ProcessQueue(queue, self._generation, self._lease, now_ms=now_ms)
        owned.paused = self._all_paused or queue in self._paused
        return owned

    def remove(self, owned: ProcessQueue) -> None:
        """Remove a queue."""
        owned.dropped = True
        owned.state = QueueState.GONE
        del self._queues[owned.queue]
        self._left_behind.update(delivery for delivery in owned.deliveries if delivery.started)

    def running(self) -> list[Delivery]:
        """Return the deliveries with running handlers, including those of removed queues."""
        found = [each for owned in self._queues.values() for each in owned.deliveries if each.started]
        return found + list(self._left_behind)

    def returned(self, delivery: Delivery) -> None:
        """Note that a handler has returned."""
        self._left_behind.discard(delivery)

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """Mark queues as paused, whether they are ours or not yet; None for every queue."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)
        for queue, owned in self._queues.items():
            owned.paused = self._all_paused or queue in self._paused

    def resume(self, queues: Iterable[MessageQueue] | None, now_ms: MonotonicMs) -> list[ProcessQueue]:
        """Remove the marks; None for all. Return our queues that continue."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        going_on = []
        for queue, owned in self._queues.items():
            if owned.paused and not (self._all_paused or queue in self._paused):
                owned.paused = False
                owned.last_pull_ms = now_ms
                going_on.append(owned)
        return going_on
