"""The contested queues: those that members take from each other repeatedly, after a moment."""

from collections import deque
from typing import Final

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue

#: Ours: a bit more than two of the Java client's long polls (brokerSuspendMaxTimeMillis): every reader of a
#: queue has pulled again by then.
READING_MS_MAX: Final = 40_000


class ContestedQueues:
    """One group's queues, and the last two times when each was taken from its owner."""

    def __init__(self) -> None:
        self._taken_at_ms: dict[MessageQueue, deque[MonotonicMs]] = {}

    def taken(self, queue: MessageQueue, now_ms: MonotonicMs) -> None:
        """Note that a queue has another owner."""
        self._taken_at_ms.setdefault(queue, deque(maxlen=2)).append(now_ms)

    def clear(self) -> None:
        """Start over: the group has changed, and queues have a reason to move."""
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
