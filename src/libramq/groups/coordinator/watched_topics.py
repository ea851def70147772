"""The topics that coordinated groups subscribe to, and their queues over all brokers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue


class WatchedTopics:
    """Topics by name; a topic is watched while a group subscribes to it.

    find: returns the queues of a topic that is watched from now on, sorted; None while they are unknown.
    absent: the brokers whose master is gone while a slave serves their queues.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, None]] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self.find: Callable[[str], Sequence[MessageQueue] | None] = lambda _: None
        self.absent: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the topic's queues, sorted; None while they are unknown."""
        return self._queues.get(topic)

    def groups(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return list(self._groups.get(topic, ()))

    def watch(self, group: str, topics: Iterable[str], *, finds: bool = True) -> None:
        """Add a group's subscriptions. finds: look up the queues of new topics; else `update` brings them."""
        for topic in topics:
            if finds and topic not in self._groups and (queues := self.find(topic)) is not None:
                self._queues[topic] = tuple(queues)
            self._groups.setdefault(topic, {})[group] = None

    def unwatch(self, group: str, topics: Iterable[str]) -> None:
        """Remove subscriptions of a group."""
        for topic in topics:
            groups = self._groups.get(topic, {})
            groups.pop(group, None)
            if not groups:
                self._groups.pop(topic, None)
                self._queues.pop(topic, None)

    def doubt(self, topic: str) -> None:
        """Drop a topic's queues: they are unknown from now on."""
        self._queues.pop(topic, None)

    def update(self, topic: str, queues: Sequence[MessageQueue]) -> bool:
        """Set a topic's queues; return whether that is news for a subscribed group."""
        sorted_queues = tuple(sorted(set(queues)))
        if topic not in self._groups or self._queues.get(topic) == sorted_queues:
            return False
        self._queues[topic] = sorted_queues
        return True


def change_of(before: Sequence[MessageQueue], queues: Sequence[MessageQueue]) -> Reason:
    """Return why a topic has other queues now."""
    same = {queue.broker_name for queue in before} == {queue.broker_name for queue in queues}
    return Reason.QUEUE_COUNT_CHANGED if same else Reason.BROKER_CHANGED
