"""The topics of a coordinated group: the subscribed topics, their queues, and the wait for unknown topics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue

#: Ours: a group waits this long for a topic's queues; afterwards it keeps the held ones.
TOPIC_WAIT_MS_MAX: Final = 1_000


class WatchedTopics:
    """Topics by name; a topic is watched while a group subscribes to it.

    find: returns the sorted queues of a newly watched topic; None while they are unknown. absent: brokers
    whose master is gone while a slave serves their queues.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, None]] = {}
        #: The sorted queues of each topic with known queues.
        self.queues: dict[str, tuple[MessageQueue, ...]] = {}
        self.find: Callable[[str], Sequence[MessageQueue] | None] = lambda _: None
        self.absent: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def groups(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return list(self._groups.get(topic, ()))

    def watch(self, group: str, topics: Iterable[str], *, finds: bool = True) -> None:
        """Add a group's subscriptions. finds: look up new topics' queues; otherwise `update` brings them."""
        for topic in topics:
            if finds and topic not in self._groups and (queues := self.find(topic)) is not None:
                self.queues[topic] = tuple(queues)
            self._groups.setdefault(topic, {})[group] = None

    def unwatch(self, group: str, topics: Iterable[str]) -> None:
        """Remove subscriptions of a group."""
        for topic in topics:
            groups = self._groups.get(topic, {})
            groups.pop(group, None)
            if not groups:
                self._groups.pop(topic, None)
                self.queues.pop(topic, None)

    def update(self, topic: str, queues: Sequence[MessageQueue]) -> bool:
        """Set a topic's queues; return whether they have changed for a subscribed group."""
        sorted_queues = tuple(sorted(set(queues)))
        if topic not in self._groups or self.queues.get(topic) == sorted_queues:
            return False
        self.queues[topic] = sorted_queues
        return True


def change_of(before: Sequence[MessageQueue], queues: Sequence[MessageQueue]) -> Reason:
    """Return the reason why a topic's queues have changed."""
    same = {queue.broker_name for queue in before} == {queue.broker_name for queue in queues}
    return Reason.QUEUE_COUNT_CHANGED if same else Reason.BROKER_CHANGED


class GroupTopics:
    """One group's subscriptions among all watched topics."""

    def __init__(self, group: str, watched: WatchedTopics) -> None:
        self._group = group
        self.watched = watched
        self._subscribed: set[str] = set()
        self._wait_until_ms = MonotonicMs(0)

    def add(self, topics: Iterable[str], *, now_ms: MonotonicMs) -> None:
        """Add subscriptions."""
        new = [topic for topic in topics if topic not in self._subscribed]
        if new:
            self._subscribed.update(new)
            self._wait_until_ms = now_ms + TOPIC_WAIT_MS_MAX
            self.watched.watch(self._group, new)

    def restore(self, topics: Iterable[str]) -> None:
        """Restore subscriptions; the group is balanced once their queues are reported."""
        restored = list(topics)
        self._subscribed.update(restored)
        self.watched.watch(self._group, restored, finds=False)

    def begin(self, *, now_ms: MonotonicMs) -> None:
        """Start waiting for the topics' queues."""
        self._wait_until_ms = now_ms + TOPIC_WAIT_MS_MAX

    def keep(self, topics: Iterable[str]) -> None:
        """Replace the subscriptions."""
        gone = sorted(self._subscribed.difference(topics))
        if gone:
            self._subscribed.difference_update(gone)
            self.watched.unwatch(self._group, gone)

    def wait_until_ms(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return the time until which to wait for topics' queues to be reported; None: do not wait."""
        if now_ms >= self._wait_until_ms:
            return None
        is_known = all(self.watched.queues.get(topic) is not None for topic in self._subscribed)
        return None if is_known else self._wait_until_ms

    def queues(self, handover: QueueHandover) -> list[MessageQueue]:
        """Return the queues of all topics; for a topic with unknown queues, the held ones."""
        queues: list[MessageQueue] = []
        for topic in sorted(self._subscribed):
            known = self.watched.queues.get(topic)
            queues += sorted(q for q in handover.holdings if q.topic == topic) if known is None else known
        return queues
