"""The topics of a modern group: how many members subscribe to each, how many partitions there may be, and how
often they are looked at.
"""

from collections.abc import Callable, KeysView, Mapping
from typing import Final

from libramq.clock import MonotonicMs

#: Ours: how often a group's topics are looked at; what has changed is assigned at its next heartbeat. Each
#: takes some microseconds, so groups with very many topics look less often.
TOPICS_LOOK_MS: Final = 1_000
LOOK_MS_PER_TOPIC: Final = 1
#: Ours: the partitions of a group; a topic that does not exist counts as one. To assign so many to a thousand
#: members takes 50 to 100 ms of a thread, and some seconds if their subscriptions differ.
PARTITIONS_MAX: Final = 10_000
#: Ours: the memory of a name that a member subscribes to, beside its characters.
NAME_BYTES: Final = 120
#: Returns how many partitions a topic has; 0 if there is no such topic.
CountOf = Callable[[str], int]


class SubscribedTopics:
    """The topics of one group.

    counts: the partitions of each that are assigned, which are `count` together; name_bytes: about the memory
    of what members subscribe to.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.count = 0
        self.name_bytes = 0
        #: How many members subscribe to each: to ask every member takes long where each names many.
        self._subscribers: dict[str, int] = {}
        self._looked_ms: MonotonicMs | None = None

    @property
    def names(self) -> KeysView[str]:
        """Return what members subscribe to."""
        return self._subscribers.keys()

    def restore(self, counts: Mapping[str, int]) -> None:
        """Take the partitions that were assigned before a restart."""
        self.counts, self.count = dict(counts), sum(counts.values())

    def subscribe(self, before: frozenset[str], now: frozenset[str]) -> None:
        """Note that a member has other topics."""
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
        """Look at the partitions, if it is time to; return a known topic that has others now."""
        pause_ms = max(TOPICS_LOOK_MS, LOOK_MS_PER_TOPIC * len(self.counts))
        is_due = is_due and not self.names <= self.counts.keys()  # Most members name what others did.
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
    """Return the partitions that are assigned; before: those until now.

    Topics may be made, or get more partitions, after members have subscribed to them. What is beyond
    PARTITIONS_MAX then has no reader.
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
