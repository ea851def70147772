"""The duplicates: messages that we are given again after a queue has moved, although we had handled them.

Only what one member can know of: it counts messages below the highest offset that it handled itself when the
queue was its own before. What somebody else handled in between, it does not see.
Ours; Kafka and RocketMQ leave this to the user.
"""

from collections.abc import Sequence
from typing import Final

from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

#: Ours: of how many queues it is remembered how far we were; the one that was handled first is forgotten.
QUEUES_MAX: Final = 100_000


class Duplicates:
    """How far we ever were, and how many messages came again since the coordinator was told."""

    def __init__(self) -> None:
        self._handled: dict[MessageQueue, int] = {}
        self.count = 0

    def handled(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """A handler is done with messages of a queue, ours or no longer so."""
        highest = messages[-1].queue_offset
        if highest >= self._handled.get(queue, -1):
            self._handled[queue] = highest
            if len(self._handled) > QUEUES_MAX:
                del self._handled[next(iter(self._handled))]

    def highest(self, queue: MessageQueue) -> int:
        """The highest offset of a queue that was handled here; -1 for none."""
        return self._handled.get(queue, -1)

    def arrived(self, messages: Sequence[MessageExt], highest: int) -> None:
        """Messages came of a queue of which we had handled so much when it became ours again."""
        if messages[0].queue_offset <= highest:
            self.count += sum(message.queue_offset <= highest for message in messages)
