"""The queue table: the queues that are owned or being released, and which of them start no handlers because
the user has paused them or their `on_assigned` still runs.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from libramq.client.consuming.queues.owned_queue import Delivery, HeldMessages, Lease, OwnedQueue, QueueState
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue

#: ProcessQueue.PULL_MAX_IDLE_TIME.
PULL_IDLE_MS_MAX: Final = 120_000


class QueueTable:
    """The owned queues, by queue."""

    def __init__(self, lease: Lease, new_held: Callable[[], HeldMessages] = HeldMessages) -> None:
        self.lease = lease
        self._new_held = new_held
        self._queues: dict[MessageQueue, OwnedQueue] = {}
        self._all_paused = False
        self._paused: set[MessageQueue] = set()
        #: Running hooks by queue, which may be lost and assigned again before they return.
        self._hooks: Counter[MessageQueue] = Counter()
        self._left_behind: set[Delivery] = set()  # Running handlers of removed queues.

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._queues

    def get(self, queue: MessageQueue) -> OwnedQueue | None:
        """Return the owned queue of a queue."""
        return self._queues.get(queue)

    def is_current(self, owned: OwnedQueue) -> bool:
        """Return whether this is still the current ownership of its queue."""
        return self._queues.get(owned.queue) is owned

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return our queues of a topic, without those being released."""
        return [
            queue
            for queue, owned in self._queues.items()
            if queue.topic == topic and (owned.is_ours or owned.state is QueueState.MOVING)
        ]

    def each(self) -> list[OwnedQueue]:
        """Return every queue that is owned or being released."""
        return list(self._queues.values())

    def ours(self) -> list[MessageQueue]:
        """Return our queues, sorted."""
        return sorted(
            owned.queue
            for owned in self._queues.values()
            if owned.is_ours and owned.state is not QueueState.LOCKING
        )

    def idle(self, now_ms: MonotonicMs) -> list[MessageQueue]:
        """Return queues without a pull for longer than any pull may take."""
        return [
            queue
            for queue, owned in self._queues.items()
            if owned.is_ours
            and owned.state is not QueueState.LOCKING
            and not self.is_paused(queue)
            and now_ms - owned.cursor.last_ms > PULL_IDLE_MS_MAX
        ]

    def work(self) -> ConsumerStatistics:
        """Return the current work; handled: the done messages of unfinished batches."""
        owned = self.each()
        deliveries = [each for one in owned for each in one.work.deliveries]
        # First: messages that the program finishes meanwhile would count twice.
        done = sum(each.done_count for each in deliveries)
        in_flight = sum(each.in_hand_count for each in deliveries)
        lags = [_lag(each) for each in owned if each.is_ours]
        known = [lag for lag in lags if lag is not None]
        return ConsumerStatistics(
            queues=len(lags),
            waiting=sum(len(each.held) for each in owned) - in_flight - done,
            in_flight=in_flight,
            handled=done,
            lag=sum(known) if known else None,
            queues_without_lag=len(lags) - len(known),
        )

    def add(self, queue: MessageQueue, now_ms: MonotonicMs) -> OwnedQueue:
        """Add a queue that was assigned to us."""
        owned = self._queues[queue] = OwnedQueue(queue, self.lease, now_ms=now_ms, new_held=self._new_held)
        return owned

    def remove(self, owned: OwnedQueue) -> None:
        """Remove a queue."""
        owned.state = QueueState.GONE
        del self._queues[owned.queue]
        self._left_behind.update(delivery for delivery in owned.work.deliveries if delivery.started)

    def running(self) -> list[Delivery]:
        """Return the deliveries with running handlers, including those of removed queues."""
        found = [each for owned in self._queues.values() for each in owned.work.deliveries if each.started]
        return found + list(self._left_behind)

    def returned(self, delivery: Delivery) -> None:
        """Note that a handler has returned."""
        self._left_behind.discard(delivery)

    # Pauses, which outlast ownership.

    @property
    def is_all_paused(self) -> bool:
        """Return whether the user has paused all queues."""
        return self._all_paused

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the user has paused a queue, owned or not, or its `on_assigned` still runs."""
        return self._all_paused or queue in self._paused or queue in self._hooks

    def hook_begins(self, queue: MessageQueue) -> None:
        """Note that the listener is called for a queue, which is read once it has returned."""
        self._hooks[queue] += 1

    def hook_ended(self, queue: MessageQueue) -> None:
        """Note that the listener has returned."""
        self._hooks[queue] -= 1
        if self._hooks[queue] <= 0:
            del self._hooks[queue]

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """Mark queues as paused; None for every queue."""
        if queues is None:
            self._all_paused = True
        else:
            self._paused.update(queues)

    def resume(self, queues: Iterable[MessageQueue] | None) -> None:
        """Resume queues; None for every queue."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)


def _lag(owned: OwnedQueue) -> int | None:
    end = owned.cursor.end_offset
    if end is None:
        return None
    if not owned.held:  # All pulled messages are done; the filter skipped the rest.
        return max(0, end - owned.cursor.next_offset)
    done = sum(each.done_count for each in owned.work.deliveries)
    return max(0, end - owned.continues_at - done)
