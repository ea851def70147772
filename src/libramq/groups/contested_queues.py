"""The contested queues: those that members take from each other, again and again after a moment."""

from collections import deque
from typing import Final

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue

#: Ours: two of the Java client's long polls (brokerSuspendMaxTimeMillis) and some: who reads a queue has
#: asked for more by then.
READING_MS_MAX: Final = 40_000


class ContestedQueues:
    """One group's queues, and when each was taken from its owner the last two times."""

    def __init__(self) -> None:
        self._taken_at_ms: dict[MessageQueue, deque[MonotonicMs]] = {}

    def taken(self, queue: MessageQueue, now_ms: MonotonicMs) -> None:
        """Note that a queue got another owner."""
        self._taken_at_ms.setdefault(queue, deque(maxlen=2)).append(now_ms)

    def clear(self) -> None:
        """Forget all: the group has changed, and queues have reason to move."""
        self._taken_at_ms.clear()

    def read_by_two(self, *, since_ms: MonotonicMs, now_ms: MonotonicMs) -> list[MessageQueue]:
        """Return the queues that were taken twice since then, the last time a moment ago."""
        return sorted(
            queue
            for queue, taken_at_ms in self._taken_at_ms.items()
            if len(taken_at_ms) == 2
            and taken_at_ms[0] > since_ms
            and taken_at_ms[1] > now_ms - READING_MS_MAX
        )
