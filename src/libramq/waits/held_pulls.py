"""Held pulls: which waiting pulls a new message wakes, by offset and filter; how long one may be held
(SUSPEND_MS_MAX), and how many for a queue and connection.

The purgatory's index by queue: a pull is taken out when its queue has a message at or after its offset with
one of its tags. The broker runs a woken pull again; a pull that matches none of the new messages is moved
behind them in place, at a hundredth of that cost. Tags are compared at once, other filters when it is the
pull's turn (`is_passed_over`). Upstream: PullRequestHoldService.java.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.filter.subscription import MessageFilter
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Parked, Purgatory

T = TypeVar("T")

#: Ours: the Java client asks for 15 s, proxies for 20 s; no pull should be held forever.
SUSPEND_MS_MAX: Final = 120_000
#: Ours: held pulls of one connection on one queue. A client has one per group, a proxy some dozens.
HELD_PER_QUEUE_AND_CONNECTION_MAX: Final = 64
#: Ours: held pulls on one queue, so that a send wakes thousands at most. A group has one per queue.
HELD_PER_QUEUE_MAX: Final = 10_000
#: Ours: the bytes of new messages' properties, times a filter's lookups, examined in one step. Beyond that,
#: the pull is run again, which reads in its own steps.
LOOKUP_BYTES_MAX: Final = 1024 * 1024

Key = tuple[str, int]


#: Returns the tag codes of a queue's messages from an offset on, or None if they are not in memory.
NewCodes = Callable[[int], frozenset[int] | None]
#: Returns their stored properties, or None if they are not in memory.
NewProperties = Callable[[int], list[bytes] | None]


class Passes:
    """Which filters match one of a queue's new messages; most pulls of a queue share filter and offset.

    end: the new messages have lower offsets.
    """

    __slots__ = ("_found", "_new_properties", "_read", "end")

    def __init__(self, end: int, new_properties: NewProperties) -> None:
        self.end = end
        self._new_properties = new_properties
        self._read: dict[int, list[bytes] | None] = {}
        self._found: dict[tuple[int, MessageFilter], bool] = {}

    def any(self, offset: int, message_filter: MessageFilter) -> bool:
        """Return whether a message from an offset on matches, or may match if checking it takes too long."""
        key = (offset, message_filter)
        found = self._found.get(key)
        if found is None:
            if offset not in self._read:
                self._read[offset] = self._new_properties(offset)
            new = self._read[offset]
            found = self._found[key] = (
                new is None
                or sum(map(len, new)) * message_filter.weight > LOOKUP_BYTES_MAX
                or any(map(message_filter.matches, new))
            )
        return found


@dataclass(eq=False, slots=True)
class HeldPull(Parked, Generic[T]):
    """One held pull: its queue and offset, its connection, and its (monotonic) deadline.

    tag_codes: of the wanted messages; None: all. message_filter: an additional condition, if any; passes: the
    new messages to check against it.
    """

    topic: str
    queue_id: int
    offset: int
    until_ms: MonotonicMs
    request: T
    tag_codes: frozenset[int] | None = None
    message_filter: MessageFilter | None = None
    passes: Passes | None = None

    def is_passed_over(self) -> bool:
        """Return whether no new message matches the filter; if so, move the pull behind them."""
        passes, self.passes = self.passes, None
        if passes is None or self.message_filter is None or passes.any(self.offset, self.message_filter):
            return False
        self.offset = passes.end
        return True


class _Queue(Generic[T]):
    """The held pulls of one queue."""

    __slots__ = ("by_connection", "pulls")

    def __init__(self) -> None:
        self.pulls: dict[HeldPull[T], None] = {}
        self.by_connection: dict[Connection, int] = {}


class HeldPulls(Generic[T]):
    """All held pulls, by queue."""

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        #: Takes out a pull, to be answered now; False if it is no longer held.
        self.release = purgatory.release
        self._unlink = self._forget  # One bound method for all pulls, of which there may be very many.
        #: Only queues with held pulls.
        self._queues: dict[Key, _Queue[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        """Return whether a pull is held on a queue: its topic and id."""
        return key in self._queues

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return the earliest deadline of a pull; None: nothing waits. Looks at every pull."""
        return min((pull.until_ms for queue in self._queues.values() for pull in queue.pulls), default=None)

    def may_hold(self, connection: Connection, topic: str, queue_id: int) -> bool:
        """Return whether another pull of this connection can be held on a queue."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None and (
            len(queue.pulls) >= HELD_PER_QUEUE_MAX
            or queue.by_connection.get(connection, 0) >= HELD_PER_QUEUE_AND_CONNECTION_MAX
        ):
            return False
        return self._purgatory.has_room(connection)

    def hold(self, pull: HeldPull[T], expired: Callable[[HeldPull[T]], None]) -> None:
        """Park a pull until it is woken, its time is up (then `expired` is called) or its connection ends."""
        queue = self._queues.get((pull.topic, pull.queue_id))
        if queue is None:
            queue = self._queues[pull.topic, pull.queue_id] = _Queue()
        queue.pulls[pull] = None
        queue.by_connection[pull.connection] = queue.by_connection.get(pull.connection, 0) + 1
        self._count += 1
        self._purgatory.park(pull, pull.until_ms, expired, self._unlink)

    def matching(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        new_codes: NewCodes = lambda _: None,
        new_properties: NewProperties = lambda _: None,
        *,
        by_ms: MonotonicMs | None = None,
    ) -> list[HeldPull[T]]:
        """Return the pulls that match a message below `max_offset`, which stay held; move the others there.

        Pulls with other filters are included, and may be passed over when it is their turn. by_ms: moved
        pulls expire at this time at the latest.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return []
        known: dict[int, frozenset[int] | None] = {}
        passes: Passes | None = None
        woken = []
        for pull in queue.pulls:
            offset, tag_codes = pull.offset, pull.tag_codes
            if offset >= max_offset:
                continue
            if tag_codes is not None:
                if offset not in known:  # Nearly all wait at the same offset.
                    known[offset] = new_codes(offset)
                codes = known[offset]
                if codes is not None and codes.isdisjoint(tag_codes):
                    pull.offset = max_offset
                    if by_ms is not None and by_ms < pull.until_ms:  # Only if needed; thousands may wait.
                        self.expire_by(pull, by_ms)
                    continue
            if pull.message_filter is not None:
                pull.passes = passes = passes or Passes(max_offset, new_properties)
            woken.append(pull)
        return woken

    def expire_by(self, pull: HeldPull[T], by_ms: MonotonicMs) -> None:
        """Make a pull expire no later than a time."""
        if by_ms < pull.until_ms:
            pull.until_ms = by_ms
            self._purgatory.expire_by(pull, by_ms)

    def take(self, topic: str, queue_id: int, is_wanted: Callable[[T], bool]) -> list[HeldPull[T]]:
        """Take out the pulls of a queue whose requests match, regardless of new messages."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return []
        return self.take_out([pull for pull in queue.pulls if is_wanted(pull.request)])

    def of_topic(self, topic: str) -> list[HeldPull[T]]:
        """Return the pulls of a topic's queues."""
        return [pull for key, queue in self._queues.items() if key[0] == topic for pull in queue.pulls]

    def every(self) -> list[HeldPull[T]]:
        """Return all pulls."""
        return [pull for queue in self._queues.values() for pull in queue.pulls]

    def take_where(self, is_wanted: Callable[[HeldPull[T]], bool]) -> list[HeldPull[T]]:
        """Take out matching pulls of any queue; examines every pull, so only for rare events."""
        return self.take_out([pull for pull in self.every() if is_wanted(pull)])

    def _forget(self, pull: HeldPull[T]) -> None:
        key = (pull.topic, pull.queue_id)
        queue = self._queues[key]
        del queue.pulls[pull]
        left = queue.by_connection[pull.connection] - 1
        if left:
            queue.by_connection[pull.connection] = left
        else:
            del queue.by_connection[pull.connection]
        if not queue.pulls:
            del self._queues[key]
        self._count -= 1

    def take_out(self, pulls: list[HeldPull[T]]) -> list[HeldPull[T]]:
        """Take out pulls, and return them."""
        for pull in pulls:
            self._purgatory.release(pull)
        return pulls
