"""The topics of a coordinated group: what its members subscribe to, and the queues of these."""

from collections.abc import Iterable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.coordinator.group.queue_handover import QueueHandover
from libramq.groups.coordinator.watched_topics import WatchedTopics
from libramq.message.queue import MessageQueue

#: Ours: how long a topic's queues are waited for; afterwards the group keeps those that are held.
TOPIC_WAIT_MS_MAX: Final = 1_000


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
        """Restore subscriptions, whose queues are yet to be reported: that is when the group is balanced."""
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
        """Return until when to wait for a topic's queues to be reported; None: do not wait."""
        if now_ms >= self._wait_until_ms:
            return None
        is_known = all(self.watched.queues(topic) is not None for topic in self._subscribed)
        return None if is_known else self._wait_until_ms

    def queues(self, handover: QueueHandover) -> list[MessageQueue]:
        """Return the queues of all topics; for a topic whose queues are unknown, those that are held."""
        queues: list[MessageQueue] = []
        for topic in sorted(self._subscribed):
            known = self.watched.queues(topic)
            queues += sorted(q for q in handover.holdings if q.topic == topic) if known is None else known
        return queues
