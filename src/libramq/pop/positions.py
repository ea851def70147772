"""The positions: the offset from which each group pops each queue next, ahead of the committed offset, and
when it may be committed.

A position advances when check points are journalled, and is committed once these are on disk: an offset that
outlived its check point would lose the messages between. `pop_loading` restores positions from check points.
Any other change of a group's offset moves its position as well.
"""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

#: Group, topic, queue.
QueueOfGroup = tuple[str, str, int]


class _Position(msgspec.Struct, gc=False):
    """offset: where to continue reading. committed: the offset last seen in the table of commits."""

    offset: int
    committed: int | None


class Positions:
    """All positions that are, or were, ahead of their committed offsets."""

    def __init__(self) -> None:
        self._positions: dict[QueueOfGroup, _Position] = {}
        #: Commits waiting for the disk: the log's end, the queue, its position, the offset.
        self.waiting: deque[tuple[int, QueueOfGroup, _Position, int]] = deque()

    def __len__(self) -> int:
        return len(self._positions)

    def find(self, queue: QueueOfGroup, committed: int | None) -> int | None:
        """Return the position to read from; None if the committed offset decides."""
        known = self._positions.get(queue)
        return known.offset if known is not None and known.committed == committed else None

    def is_moved(self, queue: QueueOfGroup, committed: int | None) -> bool:
        """Return whether the offset was changed elsewhere since it was committed from here."""
        known = self._positions.get(queue)
        return known is not None and known.committed != committed

    def set(self, queue: QueueOfGroup, offset: int, committed: int | None) -> None:
        """Continue at an offset that was set elsewhere."""
        self._positions[queue] = _Position(offset, committed)

    def advance(self, queue: QueueOfGroup, offset: int, committed: int | None, log_end: int) -> None:
        """Continue at an offset, which will be committed once the log is on disk up to `log_end`."""
        known = self._positions.get(queue)
        if known is None:
            known = self._positions[queue] = _Position(offset, committed)
        else:
            known.offset, known.committed = offset, committed
        self.waiting.append((log_end, queue, known, offset))

    def forget(self, is_gone: Callable[[QueueOfGroup], bool]) -> None:
        """Remove the positions of deleted queues; examines every one, so only for rare events."""
        for queue in [queue for queue in self._positions if is_gone(queue)]:
            del self._positions[queue]

    def due(self, flushed_offset: int) -> Iterator[tuple[QueueOfGroup, int]]:
        """Yield the offsets whose check points are on disk."""
        while self.waiting and self.waiting[0][0] <= flushed_offset:
            _, queue, position, offset = self.waiting.popleft()
            if self._positions.get(queue) is position:  # Otherwise it was set elsewhere meanwhile.
                yield queue, offset

    def committed(self, queue: QueueOfGroup, committed: int | None) -> None:
        """Note that an offset is committed."""
        known = self._positions[queue]
        known.committed = committed
