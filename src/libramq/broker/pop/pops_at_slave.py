"""Pops at an acting slave: which messages groups get while the master is gone. They are in flight in memory
alone; only offsets are written.

    taken ─► in flight, in memory ─┬─► acknowledged ─► done
                                   └─► due ─► taken again

When the master is back, or the slave ends, the master hands out again the messages in flight here. Attempts
are not counted: a failing message comes back for as long as the slave acts.

Upstream: PopMessageProcessor, whose slaves pop as masters do. Apache's slave sends check points to other
masters (EscapeBridge.putMessageToSpecificQueue), and keeps them in memory if that fails.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.pop.acknowledging import Acknowledging
from libramq.broker.pop.popping import Popping
from libramq.broker.pop.reviving import AGAIN_MS
from libramq.broker.pop.taking import PopSelection, Share, Taking, queue_offsets
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.parts import Kernel
from libramq.kernel.work import PORTION
from libramq.pop.check_point import Key
from libramq.pop.entries import MESSAGES_MAX
from libramq.pop.unwritten import Unwritten
from libramq.store.reading.read import ReadResult, ReadStatus
from libramq.store.rounds import Rounds

#: Ours: greatest distance between messages of one check point; BatchAck names them by a bit set.
DISTANCE_MAX: Final = 4_096


class PopsAtSlave:
    """Hands messages out again, and forgets everything when the slave stops acting.

    may_serve: returns whether pops are served: the slave acts, and knows its master's pops.
    """

    def __init__(
        self,
        files: BrokerFiles,
        popping: Popping,
        acknowledging: Acknowledging,
        kernel: Kernel,
        *,
        may_serve: Callable[[], bool],
    ) -> None:
        assert files.pop.unwritten is not None
        self._unwritten, self._in_flight = files.pop.unwritten, files.pop.in_flight
        self._popping = popping
        #: Marks messages of check points in flight here as done.
        self.acknowledge = acknowledging.acknowledge_sets
        self.may_serve = may_serve
        self._store, self._end = files.store, 0
        self._was_serving = False
        self._rounds = Rounds(files.store, kernel, self._hand_out_again, again_ms=AGAIN_MS)

    def has(self, key: Key) -> bool:
        """Return whether a check point is in flight here."""
        return self._in_flight.find(key) is not None

    def settle(self) -> None:
        """Set the deadline; forget everything if the master is back.

        A truncated log counts as its return: offsets may soon mean other messages.
        """
        before, self._end = self._end, self._store.end
        is_serving = self.may_serve()
        if self._was_serving and (self._end < before or not is_serving):
            self._unwritten.clear()
            for each in list(self._in_flight):
                self._in_flight.acknowledge(each, (1 << len(each.diffs)) - 1)
            refusal = broker_error(ResponseCode.SYSTEM_BUSY, "this slave does not act any more")
            self._popping.refuse_held(refusal)
        self._was_serving = is_serving
        if not self._rounds.is_running:
            self._look()

    def _look(self) -> None:
        """Set the deadline for the next check point that falls due."""
        due_ms = self._in_flight.next_due_ms
        if due_ms is not None:
            self._rounds.by(due_ms)

    def _hand_out_again(self, now_ms: MonotonicMs) -> bool:
        """Hand out the messages of the next due check point; return whether there was one."""
        check_point = self._in_flight.next_due(now_ms)
        if check_point is None:
            self._look()
            return False
        queue = check_point.group, check_point.topic, check_point.queue_id
        self._unwritten.give_again(queue, check_point.open_offsets())
        self._in_flight.acknowledge(check_point, (1 << len(check_point.diffs)) - 1)
        self._popping.visible(check_point.topic, check_point.group)
        return True


class TakingAtSlave(Taking):
    """Finds a group's next messages, beginning with unacknowledged ones, as no retry topic is written.

    Offsets are committed up to the first message that is not done, so that losing this memory loses no
    message; the master gets the offsets when it is back (`broker/cluster/table_copies.py`).
    """

    _positions: Unwritten

    def has_any(self, wanted: PopSelection, only: tuple[str, int] | None = None) -> bool:
        """Return whether a group has messages to take; only: in this queue."""
        queues = self._queues(wanted, only)
        return super().has_any(wanted, only) or any(
            self._positions.again((wanted.group, topic, queue_id)) for topic, queue_id in queues
        )

    def position(self, wanted: PopSelection, topic: str, queue_id: int) -> int:
        """Return the offset from which a group reads a queue next."""
        queue = (wanted.group, topic, queue_id)
        known = self._positions.next_offset(queue)
        if known is not None:
            return known
        committed = self._offsets.query(*queue)
        start = committed if committed is not None else self._first(wanted, topic, queue_id)
        return max(start, self._positions.starts.get(queue, 0))

    def move_on(self, group: str, share: Share, log_end: int) -> None:
        """Note messages as handed out."""
        self._positions.handed_out((group, share.topic, share.queue_id), share.offsets, share.next_offset)

    def settle(self) -> bool:
        """Commit the offsets of done messages, some queues at a time; return whether more wait."""
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
        """Return messages that were not acknowledged in time, as a read; None if there are none."""
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
