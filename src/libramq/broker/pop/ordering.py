"""Ordering: how a broker performs ordered pops. Each change is journalled before it takes effect, and a queue
that becomes free wakes held pops; `pop/ordered.py` decides.

So a kill frees no queue. Apache's broker writes its file every 10 s, and a kill makes it deliver twice.
Upstream: ConsumerOrderInfoManager.java, AckMessageProcessor.ackOrderly.
"""

import heapq
from collections.abc import Callable, Sequence

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.clock import MonotonicMs, read_clock
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.parts import Kernel
from libramq.pop.ordered import OrderedPop, OrderTable, popped_again
from libramq.pop.positions import QueueOfGroup


class Ordering:
    """Blocks queues and frees them."""

    def __init__(self, table: OrderTable, offsets: OffsetCommits, kernel: Kernel) -> None:
        self._table = table
        self._offsets = offsets
        self._clock = kernel.clock
        #: Called with a topic and a group that may pop again.
        self.visible: Callable[[str, str], None] = lambda topic, group: None
        #: The time of the latest forgotten pop, whose handles are void.
        self._forgotten_ms = 0
        self._free: list[tuple[MonotonicMs, QueueOfGroup]] = []
        self._deadline = kernel.deadlines.new(self._tick)
        for queue, pop in table.pops.items():
            self._await(queue, pop)

    def is_blocked(self, queue: QueueOfGroup, attempt_id: str | None) -> bool:
        """Return whether a queue is blocked by its last pop; the repetition of that pop is not blocked."""
        pop = self._table.pops.get(queue)
        if pop is None or (attempt_id is not None and attempt_id == pop.attempt_id):
            return False
        return pop.free_ms > self._clock.monotonic_ms()

    def pop_time(self, queues: Sequence[QueueOfGroup]) -> int:
        """Return the time of a new pop: now, or later than the queues' last pops, whose handles are void."""
        last = [pop.pop_time_ms for queue in queues if (pop := self._table.pops.get(queue)) is not None]
        return max([int(self._clock.wall_ms()), self._forgotten_ms + 1, *(each + 1 for each in last)])

    def popped(
        self,
        queue: QueueOfGroup,
        start: int,
        offsets: Sequence[int],
        *,
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> OrderedPop:
        """Block a queue popped from `start` on; raises BrokerError if the disk refuses."""
        pop = popped_again(
            self._table.pops.get(queue),
            offsets,
            pop_time_ms=pop_time_ms,
            now_ms=self._clock.monotonic_ms(),
            invisible_ms=invisible_ms,
            attempt_id=attempt_id,
        )
        self._table.put(queue, pop)
        group, topic, queue_id = queue
        if self._offsets.query(group, topic, queue_id) != start:
            self._offsets.commit(group, topic, queue_id, start)
        self._await(queue, pop)
        return pop

    def acknowledge(self, queue: QueueOfGroup, pop_time_ms: int, offset: int) -> None:
        """Mark a message as done, and commit up to the first that is not done.

        Raises BrokerError for a message that was not popped.
        """
        group, topic, queue_id = queue
        pop = self._table.pops.get(queue)
        committed = self._offsets.query(group, topic, queue_id) or 0
        if pop is None or offset < committed or pop.pop_time_ms != pop_time_ms:
            return  # It was popped again, or is done.
        index = pop.index_of(offset)
        if index is None:
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}",
            )
        free_ms = pop.free_ms
        pop.done |= 1 << index
        if pop.is_done:
            self._table.remove(queue)
        else:
            self._table.put(queue, pop)
        self._offsets.commit(group, topic, queue_id, pop.next_offset)
        if pop.is_done or pop.free_ms <= self._clock.monotonic_ms():
            self.visible(topic, group)
        elif pop.free_ms < free_ms:  # The other messages become visible sooner.
            self._await(queue, pop)

    def in_flight(self, queue: QueueOfGroup, pop_time_ms: int) -> Sequence[int]:
        """Return the messages of a queue's last pop, if that pop has this time."""
        pop = self._table.pops.get(queue)
        return pop.offsets if pop is not None and pop.pop_time_ms == pop_time_ms else ()

    def change(self, queue: QueueOfGroup, pop_time_ms: int, offset: int, invisible_ms: int) -> int | None:
        """Set how long a message stays invisible from now on; return the end relative to its pop.

        None if the message is not in flight.
        """
        pop = self._table.pops.get(queue)
        index = pop.index_of(offset) if pop is not None and pop.pop_time_ms == pop_time_ms else None
        if pop is None or index is None or pop.done >> index & 1:
            return None
        now = read_clock(self._clock)
        pop.due_ms[index] = now.monotonic_ms + invisible_ms
        self._table.put(queue, pop)
        self._await(queue, pop)
        # The pop's time is in the future if the clock was set back.
        return max(int(now.wall_ms) - pop_time_ms, 0) + invisible_ms

    def forget(self, queue: QueueOfGroup) -> None:
        """Free a queue whose offset was reset; acknowledgements of its last pop no longer move the offset."""
        pop = self._table.pops.get(queue)
        if pop is not None:
            self._forgotten_ms = max(self._forgotten_ms, pop.pop_time_ms)
            self._table.remove(queue)

    def topic_deleted(self, topic: str) -> None:
        """Forget a deleted topic's queues."""
        self._forget_where(lambda queue: queue[1] == topic)

    def group_removed(self, group: str) -> None:
        """Free a removed group's queues, for a new group of the same name."""
        self._forget_where(lambda queue: queue[0] == group)

    def _forget_where(self, is_gone: Callable[[QueueOfGroup], bool]) -> None:
        for queue in [queue for queue in self._table.pops if is_gone(queue)]:
            self.forget(queue)

    def _await(self, queue: QueueOfGroup, pop: OrderedPop) -> None:
        heapq.heappush(self._free, (pop.free_ms, queue))
        self._deadline.by(pop.free_ms)
        if len(self._free) > 2 * len(self._table.pops) + 1024:
            self._free = [(pop.free_ms, queue) for queue, pop in self._table.pops.items()]
            heapq.heapify(self._free)

    def _tick(self, now_ms: MonotonicMs) -> None:
        """Wake held pops for the queues that have become free."""
        free = []
        while self._free and self._free[0][0] <= now_ms:
            _, queue = heapq.heappop(self._free)
            pop = self._table.pops.get(queue)
            if pop is not None and pop.free_ms <= now_ms:
                free.append(queue)
        if self._free:
            self._deadline.by(self._free[0][0])
        for group, topic, _ in free:
            self.visible(topic, group)
