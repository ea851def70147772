"""Taking at an acting slave: what was not acknowledged in time comes first, as no retry topic is written.

Offsets are committed up to the first message that is not done, so that nothing is lost with this memory; the
master gets them when it is back (`broker/cluster/returned_commits.py`).
"""

from itertools import islice
from typing import Final

from libramq.broker.pop.taking import PopSelection, Share, Taking, queue_offsets
from libramq.kernel.work import PORTION
from libramq.pop.entries import MESSAGES_MAX
from libramq.pop.unwritten import Unwritten
from libramq.store.reading.read import ReadResult, ReadStatus

#: Ours: how far the messages of one check point are apart; BatchAck names them by a bit set.
DISTANCE_MAX: Final = 4_096


class TakingAtSlave(Taking):
    """Finds the next messages of a group, and what it may have again."""

    _positions: Unwritten

    def has_any(self, wanted: PopSelection, only: tuple[str, int] | None = None) -> bool:
        """Return whether a group has messages to take; only: in this queue."""
        queues = self._queues(wanted, only)
        return super().has_any(wanted, only) or any(
            self._positions.again((wanted.group, topic, queue_id)) for topic, queue_id in queues
        )

    def position(self, wanted: PopSelection, topic: str, queue_id: int) -> int:
        """Return where a group reads a queue on."""
        queue = (wanted.group, topic, queue_id)
        known = self._positions.next_offset(queue)
        if known is not None:
            return known
        committed = self._offsets.query(*queue)
        start = committed if committed is not None else self._first(wanted, topic, queue_id)
        return max(start, self._positions.starts.get(queue, 0))

    def move_on(self, group: str, share: Share, log_end: int) -> None:
        """Note what was handed out."""
        self._positions.handed_out((group, share.topic, share.queue_id), share.offsets, share.next_offset)

    def settle(self) -> bool:
        """Commit what is done, some queues at a time; return whether more wait."""
        changed = self._positions.changed
        for queue in list(islice(changed, PORTION)):
            del changed[queue]
            offset = self._positions.first_open(queue)
            if offset > (self._offsets.query(*queue) or 0):
                group, topic, queue_id = queue
                self._offsets.commit(group, topic, queue_id, offset)
        return bool(changed)

    def _read(
        self, wanted: PopSelection, topic: str, queue_id: int, position: int, room: int, *, may_wait: bool
    ) -> tuple[int, ReadResult]:
        queue = (wanted.group, topic, queue_id)
        again = self._read_again(wanted, topic, queue_id, position, room, may_wait=may_wait)
        if again is not None:
            return again
        if self._positions.is_full(queue):
            return position, ReadResult(ReadStatus.NO_MATCHED_MESSAGE, position, 0, position)
        return super()._read(wanted, topic, queue_id, position, room, may_wait=may_wait)

    def _read_again(
        self, wanted: PopSelection, topic: str, queue_id: int, position: int, room: int, *, may_wait: bool
    ) -> tuple[int, ReadResult] | None:
        """Return what was not acknowledged in time, as a read; None if there is nothing."""
        queue = (wanted.group, topic, queue_id)
        offsets: list[int] = []
        data: list[bytes | memoryview] = []
        gone: list[int] = []
        for offset in self._positions.again(queue)[: min(room, MESSAGES_MAX)]:  # Each is a read.
            if offsets and offset - offsets[0] >= DISTANCE_MAX:
                break
            read = self._read_from(wanted, topic, queue_id, offset, 1, may_wait=may_wait)
            if read.status is ReadStatus.WOULD_WAIT:
                return offset, read
            if read.status is ReadStatus.FOUND and queue_offsets(read.data) == [offset]:
                offsets.append(offset)
                data += read.data
            elif read.status is not ReadStatus.FOUND:
                gone.append(offset)
        if gone:
            self._positions.handed_out(queue, gone, position)
            self._positions.done(queue, gone)
        if not offsets:
            return None
        end = self._store.max_offset(topic, queue_id)
        size = sum(map(len, data))
        return offsets[0], ReadResult(
            ReadStatus.FOUND, position, 0, end, data=tuple(data), count=len(offsets), size=size
        )
