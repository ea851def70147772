"""The unwritten pops of an acting slave: which messages it has handed out, in memory alone, and which offset
may be committed.

    queue   0 … │ ✓ ✓ │ ○ ✓ ○ ✓ │ …
               first  done      next

Everything before the first message that is not done may be committed: what is behind it would be lost with
this memory. A message that was not acknowledged in time is handed out again.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from libramq.pop.positions import Positions, QueueOfGroup

#: Ours: messages that a group may have of one queue, from the first that is not done on. Then it gets none
#: that it has not had.
UNSETTLED_MAX: Final = 16_384


@dataclass(slots=True)
class _Queue:
    """One group's messages of one queue. next_offset: behind the last that was handed out.

    open: a heap of what was handed out, down to the first that is not done; done: what of that is done.
    again: what is to be handed out again, sorted.
    """

    next_offset: int
    open: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)


class Unwritten(Positions):
    """The queues of which messages were handed out. changed: those of which more may be committed.

    starts: where the master had popped up to, by its journal.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[QueueOfGroup, _Queue] = {}
        self.changed: dict[QueueOfGroup, None] = {}
        self.starts: Mapping[QueueOfGroup, int] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def next_offset(self, queue: QueueOfGroup) -> int | None:
        """Return where a queue is read on; None if nothing of it was looked at."""
        found = self._queues.get(queue)
        return found.next_offset if found is not None else None

    def again(self, queue: QueueOfGroup) -> Sequence[int]:
        """Return what is to be handed out again."""
        found = self._queues.get(queue)
        return found.again if found is not None else ()

    def is_full(self, queue: QueueOfGroup) -> bool:
        """Return whether no further message of a queue may be handed out before others are done."""
        found = self._queues.get(queue)
        return found is not None and len(found.open) >= UNSETTLED_MAX

    def handed_out(self, queue: QueueOfGroup, offsets: Sequence[int], next_offset: int) -> None:
        """Note messages as handed out, for the first time or again; the queue is read on at `next_offset`."""
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Queue(offsets[0] if offsets else next_offset)
        again = set(found.again).intersection(offsets)
        if again:
            found.again = [each for each in found.again if each not in again]
        for offset in offsets:
            if offset not in again:
                heapq.heappush(found.open, offset)
        found.next_offset = max(found.next_offset, next_offset)
        self.changed[queue] = None

    def done(self, queue: QueueOfGroup, offsets: Sequence[int]) -> None:
        """Note messages as acknowledged."""
        found = self._queues.get(queue)
        if found is not None:
            found.done.update(offsets)
            while found.open and found.open[0] in found.done:
                found.done.remove(heapq.heappop(found.open))
            self.changed[queue] = None

    def give_again(self, queue: QueueOfGroup, offsets: Sequence[int]) -> None:
        """Have messages handed out again: they were not acknowledged in time."""
        found = self._queues.get(queue)
        if found is not None:
            for offset in offsets:
                insort(found.again, offset)

    def first_open(self, queue: QueueOfGroup) -> int:
        """Return the first message of a queue that is not done."""
        found = self._queues[queue]
        return found.open[0] if found.open else found.next_offset

    def forget(self, is_gone: Callable[[QueueOfGroup], bool]) -> None:
        """Forget queues of groups or topics that do not exist any more."""
        for queue in [queue for queue in self._queues if is_gone(queue)]:
            del self._queues[queue]
            self.changed.pop(queue, None)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self.changed.clear()
        self.starts = {}
