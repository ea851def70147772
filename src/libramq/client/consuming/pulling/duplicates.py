"""The duplicates: how many messages are delivered again after a queue has moved, although this member had
handled them.

It counts what one member can know: messages below the highest offset that it handled itself when it owned the
queue before. What other members handled in between, it cannot see.
Ours; Kafka and RocketMQ leave this to the user.
"""

from collections.abc import Sequence
from typing import Final

from libramq.client.consuming.pulling.pulled_records import queue_offset_at
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

#: Ours: for how many queues the highest offset is remembered; the oldest is forgotten first.
QUEUES_MAX: Final = 100_000


class Duplicates:
    """Our highest handled offsets, and how many messages were redelivered since the last report."""

    def __init__(self) -> None:
        self._handled: dict[MessageQueue, int] = {}
        self.count = 0

    def handled(self, queue: MessageQueue, highest: int) -> None:
        """Note the last offset that a handler has processed, whether the queue is still ours or not."""
        if highest >= self._handled.get(queue, -1):
            self._handled[queue] = highest
            if len(self._handled) > QUEUES_MAX:
                del self._handled[next(iter(self._handled))]

    def highest(self, queue: MessageQueue) -> int:
        """Return the highest offset of a queue that was handled here; -1 for none."""
        return self._handled.get(queue, -1)

    def arrived(self, messages: Sequence[MessageExt], highest: int) -> None:
        """Count messages of a queue of which we had handled up to `highest` before it became ours again."""
        if queue_offset_at(messages, 0) <= highest:
            self.count += sum(message.queue_offset <= highest for message in messages)
