"""Deadlines: everything an engine has to do later, in one queue; how a deadline that stays due in the past is
handled.

The engine wakes only when something is due. Times are monotonic.
"""

import heapq
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

Action = Callable[[MonotonicMs], None]

#: Ours: the entries of past or moved deadlines that are kept before the queue is cleaned.
STALE_MAX = 1024
#: Ours: how often in a row a deadline may set itself for now to continue its work: five times the largest
#: number of objects it may have to go through, a broker's members.
TURNS_MAX: Final = 1_000_000
#: Ours: the interval of a deadline that, by a bug, is due again right after acting: it keeps working, if
#: badly.
OVERDUE_AGAIN_MS: Final = 1_000


class StaysDue(Exception):
    """A deadline keeps setting itself for the past, or for now: a bug, because that never ends."""


class Deadline:
    """Something to do at a time that can be moved. `action` is called with the current time."""

    __slots__ = ("_action", "_deadlines", "_name", "_not_before_ms", "_turns", "due_ms")

    def __init__(self, deadlines: "Deadlines", action: Action, name: str) -> None:
        self._deadlines = deadlines
        self._action = action
        self._name = name  # If empty, the action's name is used, which takes time to determine.
        #: How often in a row it was due again after acting; until when it rests after too many turns.
        self._turns = 0
        self._not_before_ms: MonotonicMs | None = None
        self.due_ms: MonotonicMs | None = None

    def at(self, due_ms: MonotonicMs | None) -> None:
        """Act only at this time; None: never."""
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
            while heap and heap[0][2].due_ms != heap[0][0]:  # Skip past and moved entries.
                heapq.heappop(heap)
            queue.next_due_ms = heap[0][0] if heap else None
        elif due_ms is not None and (next_ms is None or due_ms < next_ms):
            queue.next_due_ms = due_ms

    def by(self, due_ms: MonotonicMs) -> None:
        """Act at this time at the latest."""
        if self.due_ms is None or due_ms < self.due_ms:
            self.at(due_ms)

    def cancel(self) -> None:
        """Cancel the action."""
        self.at(None)

    def _act(self, now_ms: MonotonicMs) -> None:
        """Act; raises StaysDue. Otherwise each turn of a deadline that stays due would look like a stall."""
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
        """Return its name, or the action's, for the log."""
        action = getattr(self._action, "func", self._action)  # For a partial.
        return self._name or getattr(action, "__qualname__", repr(action))

    def _rest_if_due(self, now_ms: MonotonicMs) -> int | None:
        """Suspend it if it is due in the past or too often; return by how much it is overdue, or None."""
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
        #: When `run` is due next; None: never, in the present state. Stored because every request reads it
        #: several times.
        self.next_due_ms: MonotonicMs | None = None
        #: A time already reached: deadlines set for an earlier time count as due at this one; but a deadline
        #: that its own action sets in the past is suspended.
        self.floor_ms: MonotonicMs | None = None
        #: The last call of `run`, which may have left due deadlines because there were too many.
        self.ran_ms: MonotonicMs | None = None
        #: Called with a deadline whose action failed.
        self.failed: Callable[[Deadline, Exception], None] = _log_failure

    def __len__(self) -> int:
        return self._count

    def new(self, action: Action, name: str = "") -> Deadline:
        """Return a new, unset deadline. name: for the log."""
        return Deadline(self, action, name)

    def set(self, due_ms: MonotonicMs, action: Action) -> Deadline:
        """Return a new deadline that runs the action at the given time."""
        deadline = Deadline(self, action, "")
        deadline.at(due_ms)
        return deadline

    def run(self, now_ms: MonotonicMs, is_over: Callable[[], bool] | None = None) -> None:
        """Run due actions until the turn's time is over, at least one; the others stay due.

        A failing action is reported and does not stop the others.
        """
        # Actions set for now wait for the next run, so that one that is always due does not block the rest.
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
        """Cancel all deadlines; each may be set again."""
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
