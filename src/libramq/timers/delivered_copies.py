"""The delivered copies: how a starting broker recognises due messages, of timers or delay levels, that were
already delivered by an earlier process or a slave's master, so that none comes twice.

    delayOffset.json ───► │ m1  m2  m3  m4 │   of a level, due before the log ends
    log                   … m1' m2' …          their copies: m1 and m2 are not delivered again

A level's offset is written every 10 s, and a slave fetches it every 10 s; the copies are in the log at once.
A copy stands for one message: the one with its unique key, birth time and number of attempts. A message
without a unique key is delivered again: two of them may look the same, and neither may be lost.

Ours; Apache's broker delivers again.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from libramq.catalog.destinations import Destinations
from libramq.clock import WallMs
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.store.log.append import undamaged
from libramq.store.message_store import MessageStore

#: Ours: the messages one call reads from a queue, in some 10 µs each.
READ_MAX: Final = 64
#: Ours: the search for copies begins this long before the log's end, or when the message was due if earlier.
SINCE_MS: Final = 15_000
#: Ours: tolerance, as a delay is measured by the monotonic clock and a store time by the wall clock.
SLACK_MS: Final = 1_000
#: Ours: messages examined per queue; beyond that, due messages are delivered again.
LOOKED_AT_MAX: Final = 50_000

_Key = tuple[str | None, ...]


class DeliveredCopies:
    """Finds copies in the log as it was when `begin` was called. destinations: the current ones."""

    def __init__(self, store: MessageStore, destinations: Destinations) -> None:
        self._store = store
        self._destinations = destinations
        self._log_end = self._last_ms = 0
        self._queues: dict[tuple[str, int], _Queue] = {}
        #: The messages whose copies were found, by place.
        self._found: set[int] = set()

    def begin(self) -> None:
        """Start searching the log up to its current end; waits for the disk."""
        self._log_end, self._last_ms = self._store.end, self._store.copy.last_stored_ms()
        self._queues.clear()
        self._found.clear()

    @property
    def count(self) -> int:
        """Return the number of copies in memory, including those already matched."""
        waiting = sum(len(places) for queue in self._queues.values() for places in queue.copies.values())
        return waiting + len(self._found)

    @property
    def is_looking(self) -> bool:
        """Return whether the search is on: between `begin` and `end`."""
        return self._log_end > 0

    def end(self) -> None:
        """Stop searching and forget all copies."""
        self._log_end = 0
        self._queues.clear()
        self._found.clear()

    def passed_in_ms(self, wall_ms: WallMs) -> int:
        """Return how long it takes until every message that may have a copy is past its due time."""
        return self._last_ms + SLACK_MS + 1 - int(wall_ms)

    def passed(self, wall_ms: WallMs) -> None:
        """Note that everything due before a time is delivered; `end` if no later message can have a copy."""
        if self.is_looking and self.passed_in_ms(wall_ms) <= 0:
            self.end()

    def has(self, message: MessageExt, due_ms: int) -> bool | None:
        """Return whether the log has a message's copy; None: call again, there is more to read.

        Searches the queue to which the message would be delivered now, and the one it was sent to.
        due_ms: by the wall clock. May raise ColdRead.
        """
        if message.physical_offset >= self._log_end or due_ms > self._last_ms + SLACK_MS:
            return False
        if not message.properties.get(p.UNIQ_KEY):
            return False
        if message.physical_offset in self._found:
            return True
        topic = message.properties.get(p.REAL_TOPIC, names.SCHEDULE_TOPIC)
        sent_to = p.whole_number(message.properties.get(p.REAL_QUEUE_ID, ""), digits_max=9)
        queue_id = self._destinations.queue_for(topic, sent_to or 0)
        # The number of queues may have changed since its delivery: a slave's table is up to 10 s old.
        for each in dict.fromkeys((queue_id, queue_id if sent_to is None else sent_to)):
            has_copy = self._has_in(message, topic, each, due_ms)
            if has_copy is not False:
                return has_copy
        return False

    def _has_in(self, message: MessageExt, topic: str, queue_id: int, due_ms: int) -> bool | None:
        queue = self._queues.get((topic, queue_id))
        if queue is None or due_ms - SLACK_MS < queue.since_ms:
            since_ms = min(due_ms - SLACK_MS, self._last_ms - SINCE_MS)
            begin = self._store.offset_by_timestamp(topic, queue_id, since_ms)
            end = min(self._store.first_offset_at(topic, queue_id, self._log_end), begin + LOOKED_AT_MAX)
            queue = self._queues[topic, queue_id] = _Queue(topic, queue_id, since_ms, begin, end)
        if not queue.is_read and not self._read(queue):
            return None
        places = queue.copies.get(_key(message))
        while places:
            if places.popleft() > message.physical_offset:
                self._found.add(message.physical_offset)
                return True
        return False

    def _read(self, queue: "_Queue") -> bool:
        """Read on; return whether everything has been read."""
        read = self._store.read(queue.topic, queue.queue_id, queue.next_offset, READ_MAX)
        for copy in undamaged(read.data):
            is_copy = p.DELAY in copy.properties or p.TIMER_OUT_MS in copy.properties
            if is_copy and copy.queue_offset < queue.end:
                queue.copies.setdefault(_key(copy), deque()).append(copy.physical_offset)
        queue.next_offset = max(read.next_offset, queue.next_offset + 1)
        return queue.is_read


@dataclass(slots=True)
class _Queue:
    """A queue, the copies found in it, and the part still to read."""

    topic: str
    queue_id: int
    since_ms: int
    next_offset: int
    end: int
    copies: dict[_Key, deque[int]] = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        return self.next_offset >= self.end


def _key(message: MessageExt) -> _Key:
    properties = message.properties
    return (
        properties.get(p.UNIQ_KEY),
        properties.get(p.DELAY),
        properties.get(p.REAL_QUEUE_ID),
        str(message.born_timestamp_ms),
        str(message.reconsume_times),
    )
