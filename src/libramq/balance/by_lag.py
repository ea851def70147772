"""By lag: a queue with many waiting messages carries more load than one that is up to date.

    weight of a queue = 1 + its lag / the group's mean lag, rounded down
    load of a member  = the weights of its queues / its capacity

If nothing waits, all queues weigh 1. The best answer cannot be computed fast: this one starts from what
members hold, assigns heavy queues first, and moves a queue only if its giver and its taker end more even.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final

from libramq.balance.group import Group
from libramq.message.queue import MessageQueue

#: Ours: smaller lags come and go by themselves and are no reason to move a queue.
LAG_UNIT_MIN: Final = 1_000


def weights(queues: Sequence[MessageQueue], lag: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the weight of each queue."""
    waiting = {queue: max(0, lag.get(queue, 0)) for queue in queues}
    unit = max(LAG_UNIT_MIN, sum(waiting.values()) // max(1, len(waiting)))
    return {queue: 1 + count // unit for queue, count in waiting.items()}


def even_by_lag(
    group: Group,
    topics: Iterable[str],
    held: Sequence[Sequence[MessageQueue]],
    capacities: Sequence[int],
    weight: Mapping[MessageQueue, int],
) -> list[list[MessageQueue]]:
    """Return all members' queues of these topics, in the members' order."""
    scales = _Scales(group, capacities)
    taken: set[MessageQueue] = set()
    for member, queues in enumerate(held):
        for queue in queues:
            scales.put(member, queue, weight[queue])
        taken.update(queues)
    free = [queue for topic in topics for queue in group.queues[topic] if queue not in taken]
    for queue in sorted(free, key=lambda queue: -weight[queue]):
        if (lightest := scales.lightest(queue.topic)) is not None:
            scales.put(lightest, queue, weight[queue])
    while scales.even_out(weight):
        pass
    return scales.shares


class _Scales:
    """The scales: each member's load, and the lightest subscriber of each topic."""

    def __init__(self, group: Group, capacities: Sequence[int]) -> None:
        self._capacities = capacities
        self.shares: list[list[MessageQueue]] = [[] for _ in group.members]
        self._loads = [0] * len(group.members)
        sets: dict[frozenset[str], int] = {}
        self._set_of = [sets.setdefault(member.topics, len(sets)) for member in group.members]
        self._sets_of_topic = {
            topic: tuple(number for topics, number in sets.items() if topic in topics)
            for topic in group.queues
        }
        # Outdated entries are dropped when they reach the top.
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in sets]
        for member, number in enumerate(self._set_of):
            self._heaps[number].append((0.0, member))
        for heap in self._heaps:
            heapify(heap)

    def put(self, member: int, queue: MessageQueue, weight: int) -> None:
        self.shares[member].append(queue)
        self._weigh(member, weight)

    def lightest(self, topic: str) -> int | None:
        """Return the subscriber with the least load; the first of several."""
        tops = [self._top(number) for number in self._sets_of_topic[topic]]
        return min(tops)[1] if tops else None

    def even_out(self, weight: Mapping[MessageQueue, int]) -> bool:
        """Let each member, the heaviest first, give away queues while that evens loads; return any moved."""
        moved = False
        for giver in sorted(range(len(self._loads)), key=lambda member: (-self._relative(member), member)):
            moved |= self._give_away(giver, weight)
        return moved

    def _give_away(self, giver: int, weight: Mapping[MessageQueue, int]) -> bool:
        """Give away the best queue, repeatedly; return whether there was one."""
        by_takers: dict[tuple[int, ...], list[tuple[int, MessageQueue]]] = {}
        for queue in self.shares[giver]:
            by_takers.setdefault(self._sets_of_topic[queue.topic], []).append((weight[queue], queue))
        for queues in by_takers.values():
            queues.sort()
        handed_over: set[MessageQueue] = set()
        while (best := self._best_move(giver, by_takers)) is not None:
            taker, queues, place = best
            each, queue = queues.pop(place)
            handed_over.add(queue)
            self._weigh(giver, -each)
            self.put(taker, queue, each)
        self.shares[giver] = [queue for queue in self.shares[giver] if queue not in handed_over]
        return bool(handed_over)

    def _best_move(
        self, giver: int, by_takers: Mapping[tuple[int, ...], list[tuple[int, MessageQueue]]]
    ) -> tuple[int, list[tuple[int, MessageQueue]], int] | None:
        """Return the best move's taker and queue: a weight near half of the difference evens out most."""
        lowest, best = self._relative(giver), None
        for sets, queues in by_takers.items():
            taker = min(self._top(number) for number in sets)[1]
            room = self._loads[giver] * self._capacities[taker] - self._loads[taker] * self._capacities[giver]
            ideal = room // (self._capacities[giver] + self._capacities[taker])
            above = bisect_right(queues, ideal, key=itemgetter(0))
            for place in (above - 1, above):
                if taker != giver and 0 <= place < len(queues):
                    each = queues[place][0]
                    after = max(self._relative(giver, -each), self._relative(taker, each))
                    if after < lowest:
                        lowest, best = after, (taker, queues, place)
        return best

    def _relative(self, member: int, change: int = 0) -> float:
        return (self._loads[member] + change) / self._capacities[member]

    def _weigh(self, member: int, weight: int) -> None:
        self._loads[member] += weight
        heappush(self._heaps[self._set_of[member]], (self._relative(member), member))

    def _top(self, number: int) -> tuple[float, int]:
        heap = self._heaps[number]
        while heap[0][0] != self._relative(heap[0][1]):
            heappop(heap)
        return heap[0]
