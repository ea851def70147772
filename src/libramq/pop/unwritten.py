"""The unwritten pops of an acting slave: which messages it has handed out, recorded in memory alone, and
which offset may be committed.

    queue   0 … │ ✓ ✓ │ ○ ✓ ○ ✓ │ …
               first  done      next

Everything before the first unfinished message may be committed: a commit behind it would lose messages
together with this memory. A message not acknowledged in time is handed out again.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from libramq.pop.positions import Positions, QueueOfGroup

#: Ours: how far a group may get ahead of its first unfinished message of a queue. Beyond that it only gets
#: messages again.
UNSETTLED_MAX: Final = 16_384


@dataclass(slots=True)
class _Queue:
    """One group's messages of one queue. next_offset: the one after the last message handed out.

    open: a heap of the messages handed out, from the first unfinished one on; done: the finished ones of
    these. again: those to hand out again, sorted.
    """

    next_offset: int
    open: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)


class Unwritten(Positions):
    """The queues with messages handed out. changed: those of which more may be committed.

    starts: the master's positions, by its journal.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[QueueOfGroup, _Queue] = {}
        self.changed: dict[QueueOfGroup, None] = {}
        self.starts: Mapping[QueueOfGroup, int] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def next_offset(self, queue: QueueOfGroup) -> int | None:
        """Return the offset to continue a queue from; None if it has not been read."""
        found = self._queues.get(queue)
        return found.next_offset if found is not None else None

    def again(self, queue: QueueOfGroup) -> Sequence[int]:
        """Return the offsets to hand out again."""
        found = self._queues.get(queue)
        return found.again if found is not None else ()

    def is_full(self, queue: QueueOfGroup) -> bool:
        """Return whether no new message of a queue may be handed out until others are done."""
        found = self._queues.get(queue)
        return found is not None and len(found.open) >= UNSETTLED_MAX

    def handed_out(self, queue: QueueOfGroup, offsets: Sequence[int], next_offset: int) -> None:
        """Note messages as handed out, first or again; reading continues at `next_offset`."""
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
        """Schedule messages to be handed out again, as they were not acknowledged in time."""
        found = self._queues.get(queue)
        if found is not None:
            for offset in offsets:
                insort(found.again, offset)

    def first_open(self, queue: QueueOfGroup) -> int:
        """Return the offset of a queue's first unfinished message."""
        found = self._queues[queue]
        return found.open[0] if found.open else found.next_offset

    def forget(self, is_gone: Callable[[QueueOfGroup], bool]) -> None:
        """Forget queues of deleted groups or topics."""
        for queue in [queue for queue in self._queues if is_gone(queue)]:
            del self._queues[queue]
            self.changed.pop(queue, None)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self.changed.clear()
        self.starts = {}
