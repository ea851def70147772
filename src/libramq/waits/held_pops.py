"""Held pops: which waiting pop gets a new message, and how many may wait for a group.

The purgatory's index by topic and group: whichever queue of a topic receives a message, one waiting pop of
each group can take it. A group's retry topics lead to the pops of their original topic.
Upstream: PopLongPollingService.java.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Parked, Purgatory

T = TypeVar("T")

#: BrokerConfig.popPollingSize: held pops of one group on one topic and queue.
HELD_PER_GROUP_MAX: Final = 1024
#: The queue id of a pop that takes from any queue.
ANY_QUEUE: Final = -1


@dataclass(eq=False, slots=True)
class HeldPop(Parked, Generic[T]):
    """One held pop. names: its topic, then its group's retry topics, whose messages it can take as well."""

    names: Sequence[str]
    group: str
    queue_id: int
    until_ms: MonotonicMs
    request: T


class HeldPops(Generic[T]):
    """All held pops, by topic and group."""

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self._topics: dict[str, dict[str, dict[HeldPop[T], None]]] = {}
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def may_hold(self, connection: Connection, topic: str, group: str, queue_id: int) -> bool:
        """Return whether another pop of this connection can be held."""
        return self.count(topic, group, queue_id) < HELD_PER_GROUP_MAX and self._purgatory.has_room(
            connection
        )

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue."""
        return self._counts[topic, group, queue_id]

    def groups(self, topic: str) -> list[str]:
        """Return the groups that wait for messages of a topic, or of a retry topic."""
        return list(self._topics.get(topic, ()))

    def topics(self) -> list[str]:
        """Return the topics and retry topics that pops wait for."""
        return list(self._topics)

    def hold(self, pop: HeldPop[T], expired: Callable[[HeldPop[T]], None]) -> None:
        """Park a pop until it is taken, its time is up (then `expired` is called) or its connection ends."""
        for name in pop.names:
            self._topics.setdefault(name, {}).setdefault(pop.group, {})[pop] = None
        self._counts[pop.names[0], pop.group, pop.queue_id] += 1
        self._count += 1
        self._purgatory.park(pop, pop.until_ms, expired, self._forget)

    def take(self, topic: str, group: str, queue_id: int = ANY_QUEUE) -> HeldPop[T] | None:
        """Take out a group's first pop for a message of a queue; ANY_QUEUE: regardless of queue."""
        for pop in self._topics.get(topic, {}).get(group, ()):
            # A retry topic has queues of its own.
            if queue_id in (ANY_QUEUE, pop.queue_id) or pop.queue_id == ANY_QUEUE or pop.names[0] != topic:
                self._purgatory.release(pop)
                return pop
        return None

    def take_all(self, topic: str) -> list[HeldPop[T]]:
        """Take out all pops of a topic."""
        groups = self._topics.get(topic, {}).values()
        taken = [pop for pops in groups for pop in pops if pop.names[0] == topic]
        for pop in taken:
            self._purgatory.release(pop)
        return taken

    def _forget(self, pop: HeldPop[T]) -> None:
        for name in pop.names:
            groups = self._topics[name]
            pops = groups[pop.group]
            del pops[pop]
            if not pops:
                del groups[pop.group]
                if not groups:
                    del self._topics[name]
        key = (pop.names[0], pop.group, pop.queue_id)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        self._count -= 1
