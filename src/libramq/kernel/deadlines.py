"""Deadlines: everything that an engine has to do later, in one queue; what happens when a deadline stays due
in the past.

The engine wakes only when something is due. Times are monotonic.
"""

import heapq
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

Action = Callable[[MonotonicMs], None]

#: Ours: how many entries of past or moved deadlines are kept before the queue is cleaned.
STALE_MAX = 1024
#: Ours: how often in a row a deadline may set itself for now, each time to do some more: five times as
#: often as a broker may have members, of which it has most, to go through.
TURNS_MAX: Final = 1_000_000
#: Ours: the pace of a deadline that, by a bug, is due again as soon as it has acted: often enough to keep
#: working, badly.
OVERDUE_AGAIN_MS: Final = 1_000


class StaysDue(Exception):
    """A deadline has set itself in the past, or for now time and again: by a bug, as that never ends."""


class Deadline:
    """Something to do at a time that can be moved. `action` is called with the current time."""

    __slots__ = ("_action", "_deadlines", "_name", "_not_before_ms", "_turns", "due_ms")

    def __init__(self, deadlines: "Deadlines", action: Action, name: str) -> None:
        self._deadlines = deadlines
        self._action = action
        self._name = name  # Empty: the action's, which takes time to find out.
        #: How often in a row it was due again when it had acted; until when it rests if that was too often.
        self._turns = 0
        self._not_before_ms: MonotonicMs | None = None
        self.due_ms: MonotonicMs | None = None

    def at(self, due_ms: MonotonicMs | None) -> None:
        """Act at this time only; None: not at all."""
        queue, before_ms = self._deadlines, self.due_ms
        if self._not_before_ms is not None and due_ms is not None:
            due_ms = max(due_ms, self._not_before_ms)
        if due_ms == before_ms:
            return
        if due_ms is not None and queue.floor_ms is not None and due_ms < queue.floor_ms:
            due_ms = queue.floor_ms
        self.due_ms = due_ms
        heap = queue._heap
        queue._count += (due_ms is not None) - (before_ms is not None)
        if due_ms is not None:
            queue._sequence += 1
            heapq.heappush(heap, (due_ms, queue._sequence, self))
        if len(heap) > 2 * queue._count + STALE_MAX:
            queue._clean()
        next_ms = queue.next_due_ms
        if before_ms is not None and before_ms == next_ms:
            while heap and heap[0][2].due_ms != heap[0][0]:  # Past and moved entries.
                heapq.heappop(heap)
            queue.next_due_ms = heap[0][0] if heap else None
        elif due_ms is not None and (next_ms is None or due_ms < next_ms):
            queue.next_due_ms = due_ms

    def by(self, due_ms: MonotonicMs) -> None:
        """Act at this time at the latest."""
        if self.due_ms is None or due_ms < self.due_ms:
            self.at(due_ms)

    def cancel(self) -> None:
        """Do not act."""
        self.at(None)

    def _act(self, now_ms: MonotonicMs) -> None:
        """Act; raises StaysDue. Each turn of one that stays due would look like a stall until then."""
        self._not_before_ms = None
        overdue_ms = None
        try:
            self._action(now_ms)
        finally:
            overdue_ms = self._rest_if_due(now_ms)
        if overdue_ms is not None:
            often = "" if overdue_ms else f" for the {TURNS_MAX}th time in a row"
            raise StaysDue(f"{self.called} is due, since {overdue_ms} ms{often}, after its turn: our error")

    @property
    def called(self) -> str:
        """Return its name, or its action's, for the log."""
        action = getattr(self._action, "func", self._action)  # Of a partial.
        return self._name or getattr(action, "__qualname__", repr(action))

    def _rest_if_due(self, now_ms: MonotonicMs) -> int | None:
        """Let it rest if it is due again in the past (return since how long), or too often; else None."""
        due_ms = self.due_ms
        if due_ms is None or due_ms > now_ms:
            self._turns = 0
            return None
        self._turns += 1
        if due_ms == now_ms and self._turns < TURNS_MAX:
            return None
        self._turns, self._not_before_ms = 0, now_ms + OVERDUE_AGAIN_MS
        self.at(due_ms)
        return now_ms - due_ms


class Deadlines:
    """The queue of deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[MonotonicMs, int, Deadline]] = []
        self._sequence = 0
        self._count = 0
        #: When `run` has something to do next; None: never, as things are. It is read several times per
        #: request, so it is stored.
        self.next_due_ms: MonotonicMs | None = None
        #: A time that has come: what is set for one before, being late already, counts as due then; but a
        #: deadline that its own action sets in the past rests.
        self.floor_ms: MonotonicMs | None = None
        #: When `run` was called last: what was due before may be so still, as there was too much of it.
        self.ran_ms: MonotonicMs | None = None
        #: Called with a deadline whose action failed.
        self.failed: Callable[[Deadline, Exception], None] = _log_failure

    def __len__(self) -> int:
        return self._count

    def new(self, action: Action, name: str = "") -> Deadline:
        """Return a new deadline, which is not set yet. name: for the log."""
        return Deadline(self, action, name)

    def set(self, due_ms: MonotonicMs, action: Action) -> Deadline:
        """Return a new deadline that runs the action at the given time."""
        deadline = Deadline(self, action, "")
        deadline.at(due_ms)
        return deadline

    def run(self, now_ms: MonotonicMs, is_over: Callable[[], bool] | None = None) -> None:
        """Run the actions that are due until the turn's time is over, one at least; the others stay due.

        A failing one is reported and does not stop the others.
        """
        # Actions set for now wait for the next run: one that is always due does not block the rest.
        last, self.floor_ms, self.ran_ms = self._sequence, None, now_ms
        while (due_ms := self.next_due_ms) is not None and due_ms <= now_ms and self._heap[0][1] <= last:
            deadline = self._heap[0][2]
            deadline.at(None)
            try:
                deadline._act(now_ms)
            except Exception as error:
                self.failed(deadline, error)
            if is_over is not None and is_over():
                break

    def clear(self) -> None:
        """Cancel all; each may be set again."""
        for _, _, deadline in self._heap:
            deadline.due_ms = None
        self._heap.clear()
        self._count, self.next_due_ms = 0, None

    def _clean(self) -> None:
        latest: dict[Deadline, tuple[MonotonicMs, int, Deadline]] = {}
        for entry in self._heap:
            if entry[2].due_ms == entry[0]:
                latest[entry[2]] = entry
        self._heap[:] = latest.values()
        heapq.heapify(self._heap)


def _log_failure(_: Deadline, error: Exception) -> None:
    log.error("a timer's callback failed", exc_info=error)
