"""Held pulls: requests that found no message and wait for one (long polling).

A pull is woken when its queue has a message at or after the offset it wants, or when its time is up. The
broker runs a woken pull again, without the right to be held. Upstream: PullRequestHoldService.java.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs

T = TypeVar("T")

#: Ours: one pull a queue and consumer; a million would be some 300 MB.
HELD_PULLS_MAX: Final = 200_000
#: Ours: a client with more queues than that looks again and again instead.
HELD_PULLS_PER_OWNER_MAX: Final = 20_000

Key = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class HeldPull(Generic[T]):
    """One pull that waits: for which queue and offset, for whom, and until when (monotonic)."""

    topic: str
    queue_id: int
    offset: int
    owner: Hashable
    until_ms: MonotonicMs
    request: T


class HeldPulls(Generic[T]):
    """All pulls that wait: by queue, by owner, and by deadline."""

    def __init__(self) -> None:
        self._by_queue: dict[Key, dict[HeldPull[T], None]] = {}
        self._by_owner: dict[Hashable, dict[HeldPull[T], None]] = {}
        self._deadlines: list[tuple[MonotonicMs, int, HeldPull[T]]] = []
        self._sequence = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def may_hold(self, owner: Hashable) -> bool:
        """Whether another pull of this owner can be held."""
        return self._count < HELD_PULLS_MAX and len(self._by_owner.get(owner, ())) < HELD_PULLS_PER_OWNER_MAX

    def hold(self, pull: HeldPull[T]) -> None:
        """Keep a pull until it is woken or its time is up."""
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_owner.setdefault(pull.owner, {})[pull] = None
        self._sequence += 1
        heapq.heappush(self._deadlines, (pull.until_ms, self._sequence, pull))
        self._count += 1

    def wake(self, topic: str, queue_id: int, max_offset: int) -> list[HeldPull[T]]:
        """Take out the pulls of a queue that want an offset below `max_offset`."""
        pulls = self._by_queue.get((topic, queue_id))
        if not pulls:
            return []
        woken = [pull for pull in pulls if pull.offset < max_offset]
        for pull in woken:
            self._remove(pull)
        self._tidy()
        return woken

    def take(self, topic: str, queue_id: int, is_wanted: Callable[[T], bool]) -> list[HeldPull[T]]:
        """Take out the pulls of a queue whose requests are wanted, whatever they wait for."""
        taken = [pull for pull in self._by_queue.get((topic, queue_id), ()) if is_wanted(pull.request)]
        for pull in taken:
            self._remove(pull)
        self._tidy()
        return taken

    def take_where(self, is_wanted: Callable[[HeldPull[T]], bool]) -> list[HeldPull[T]]:
        """Take out pulls of whatever queues; looks at every one, for what happens seldom."""
        taken = [pull for pulls in self._by_queue.values() for pull in pulls if is_wanted(pull)]
        for pull in taken:
            self._remove(pull)
        self._tidy()
        return taken

    def expire(self, now_ms: MonotonicMs) -> list[HeldPull[T]]:
        """Take out the pulls whose time is up."""
        expired: list[HeldPull[T]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            pull = heapq.heappop(self._deadlines)[2]
            if self._remove(pull):
                expired.append(pull)
        return expired

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """When `expire` has something to do next, at the earliest; None: nothing waits."""
        return self._deadlines[0][0] if self._deadlines else None

    def remove_owner(self, owner: Hashable) -> None:
        """Forget the pulls of a connection that ended."""
        for pull in list(self._by_owner.get(owner, ())):
            self._remove(pull)
        self._tidy()

    def _remove(self, pull: HeldPull[T]) -> bool:
        owned = self._by_owner.get(pull.owner)
        if owned is None or pull not in owned:
            return False
        key = (pull.topic, pull.queue_id)
        queued = self._by_queue[key]
        del owned[pull], queued[pull]
        if not owned:
            del self._by_owner[pull.owner]
        if not queued:
            del self._by_queue[key]
        self._count -= 1
        return True

    def _tidy(self) -> None:
        """Drop the deadlines of pulls that are gone, once they are the most."""
        if len(self._deadlines) > 2 * self._count + 1024:
            live = {id(pull) for pulls in self._by_owner.values() for pull in pulls}
            self._deadlines = [entry for entry in self._deadlines if id(entry[2]) in live]
            heapq.heapify(self._deadlines)
