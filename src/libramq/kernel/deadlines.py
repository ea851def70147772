"""Deadlines: everything that an engine has to do later, in one queue with one `next_due_ms`.

The engine wakes only when something is due. Times are monotonic.
"""

import heapq
from collections.abc import Callable

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

Action = Callable[[MonotonicMs], None]

#: Ours: how many entries of past or moved deadlines are kept before the queue is cleaned.
STALE_MAX = 1024


class Deadline:
    """Something to do at a time that can be moved. `action` is called with the current time."""

    __slots__ = ("_action", "_deadlines", "due_ms")

    def __init__(self, deadlines: "Deadlines", action: Action) -> None:
        self._deadlines = deadlines
        self._action = action
        self.due_ms: MonotonicMs | None = None

    def at(self, due_ms: MonotonicMs | None) -> None:
        """Act at this time only; None: not at all."""
        if due_ms != self.due_ms:
            self._deadlines._move(self, due_ms)

    def by(self, due_ms: MonotonicMs) -> None:
        """Act at this time at the latest."""
        if self.due_ms is None or due_ms < self.due_ms:
            self._deadlines._move(self, due_ms)

    def cancel(self) -> None:
        """Do not act."""
        if self.due_ms is not None:
            self._deadlines._move(self, None)


class Deadlines:
    """The queue of deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[MonotonicMs, int, Deadline]] = []
        self._sequence = 0
        self._count = 0
        #: When `run` has something to do next; None: never, as things are. It is read several times per
        #: request, so it is stored.
        self.next_due_ms: MonotonicMs | None = None

    def __len__(self) -> int:
        return self._count

    def new(self, action: Action) -> Deadline:
        """Return a new deadline, which is not set yet."""
        return Deadline(self, action)

    def set(self, due_ms: MonotonicMs, action: Action) -> Deadline:
        """Return a new deadline that runs the action at the given time."""
        deadline = Deadline(self, action)
        self._move(deadline, due_ms)
        return deadline

    def run(self, now_ms: MonotonicMs) -> None:
        """Run the actions that are due. A failing one is logged and does not stop the others."""
        # Actions set for now wait for the next run: one that is always due does not block the rest.
        last = self._sequence
        while (due_ms := self.next_due_ms) is not None and due_ms <= now_ms and self._heap[0][1] <= last:
            deadline = self._heap[0][2]
            self._move(deadline, None)
            try:
                deadline._action(now_ms)
            except Exception:
                log.exception("a timer's callback failed")

    def _move(self, deadline: Deadline, due_ms: MonotonicMs | None) -> None:
        before_ms, deadline.due_ms = deadline.due_ms, due_ms
        self._count += (due_ms is not None) - (before_ms is not None)
        if due_ms is not None:
            self._sequence += 1
            heapq.heappush(self._heap, (due_ms, self._sequence, deadline))
        if len(self._heap) > 2 * self._count + STALE_MAX:
            self._clean()
        next_ms = self.next_due_ms
        if before_ms is not None and before_ms == next_ms:
            self._find_next()
        elif due_ms is not None and (next_ms is None or due_ms < next_ms):
            self.next_due_ms = due_ms

    def _find_next(self) -> None:
        """Drop past and moved entries from the top of the heap."""
        heap = self._heap
        while heap and heap[0][2].due_ms != heap[0][0]:
            heapq.heappop(heap)
        self.next_due_ms = heap[0][0] if heap else None

    def _clean(self) -> None:
        latest: dict[Deadline, tuple[MonotonicMs, int, Deadline]] = {}
        for entry in self._heap:
            if entry[2].due_ms == entry[0]:
                latest[entry[2]] = entry
        self._heap = list(latest.values())
        heapq.heapify(self._heap)
