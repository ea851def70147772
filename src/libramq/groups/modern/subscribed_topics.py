"""The topics of a modern group: their subscribers, the limit of partitions, and the interval of checks."""

from collections.abc import Callable, KeysView, Mapping
from typing import Final

from libramq.clock import MonotonicMs

#: Ours: a heartbeat checks a group's topics for changes at most this often.
TOPICS_LOOK_MS: Final = 1_000
#: Ours: a check takes some microseconds per topic, so groups with very many topics check less often.
LOOK_MS_PER_TOPIC: Final = 1
#: Ours: the partitions of a group; a missing topic counts as one. Assigning this many to a thousand members
#: takes a thread 50 to 100 ms, and some seconds if subscriptions differ.
PARTITIONS_MAX: Final = 10_000
#: Ours: the memory of a subscribed topic's name, besides its characters.
NAME_BYTES: Final = 120
#: Returns the number of a topic's partitions; 0 if there is no such topic.
CountOf = Callable[[str], int]


class SubscribedTopics:
    """The topics of one group.

    counts: the assigned partitions of each topic, `count` in total. name_bytes: the approximate memory of the
    subscribed names.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.count = 0
        self.name_bytes = 0
        #: The number of subscribers of each topic; looking through all members takes long if each names many.
        self._subscribers: dict[str, int] = {}
        self._looked_ms: MonotonicMs | None = None

    @property
    def names(self) -> KeysView[str]:
        """Return the topics that members subscribe to."""
        return self._subscribers.keys()

    def restore(self, counts: Mapping[str, int]) -> None:
        """Restore the partitions that were assigned before a restart."""
        self.counts, self.count = dict(counts), sum(counts.values())

    def subscribe(self, before: frozenset[str], now: frozenset[str]) -> None:
        """Note a member's change of topics."""
        if now is before:
            return
        for topic in now - before:
            self._subscribers[topic] = self._subscribers.get(topic, 0) + 1
            self.name_bytes += NAME_BYTES + len(topic)
        for topic in before - now:
            self.name_bytes -= NAME_BYTES + len(topic)
            self._subscribers[topic] -= 1
            if not self._subscribers[topic]:
                del self._subscribers[topic]

    def are_too_many(self, more: frozenset[str], count_of: CountOf) -> bool:
        """Return whether the group would have too many partitions with these topics."""
        new = sum(max(count_of(topic), 1) for topic in more - self.counts.keys())
        return bool(new) and sum(max(count, 1) for count in self.counts.values()) + new > PARTITIONS_MAX

    def look(self, count_of: CountOf, now_ms: MonotonicMs, *, is_due: bool) -> str | None:
        """Check the partitions if due; return a known topic whose count changed."""
        pause_ms = max(TOPICS_LOOK_MS, LOOK_MS_PER_TOPIC * len(self.counts))
        is_due = is_due and not self.names <= self.counts.keys()  # Most members name known topics.
        if not is_due and self._looked_ms is not None and now_ms - self._looked_ms < pause_ms:
            return None
        self._looked_ms = now_ms
        before = self.counts
        counts = _within_bounds({topic: count_of(topic) for topic in sorted(self.names)}, before)
        if counts == before:
            return None
        self.counts, self.count = counts, sum(counts.values())
        return next((topic for topic, count in counts.items() if before.get(topic, count) != count), None)


def _within_bounds(counts: dict[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the partitions to assign; before: those assigned until now.

    Topics may be created or get more partitions after members subscribed to them. Partitions beyond
    PARTITIONS_MAX then have no reader.
    """
    if sum(counts.values()) <= PARTITIONS_MAX:
        return counts
    bounded = {topic: min(count, before.get(topic, 0)) for topic, count in counts.items()}
    room = PARTITIONS_MAX - sum(bounded.values())
    for topic, count in counts.items():
        more = min(count - bounded[topic], room)
        bounded[topic] += more
        room -= more
    return bounded
