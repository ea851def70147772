"""Invariants of messages that are popped, and redelivered by their own master or another one."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from libramq.clock import MonotonicMs
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.invariants.progress import messages_of
from libramq.testing.scenarios.happening import Happening

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class PoppedAtLeastOnce(Invariant):
    """Check that a group that pops acknowledges every message in the end, from whichever broker.

    Under ASYNC_FLUSH a power cut may take a message from its master, and its redelivery from any: after one
    nothing that was sent before is judged.
    """

    name = "every message that is popped is acknowledged in the end"
    within_ms = 60_000  # A master waits for its slaves for 30 s; then there are several attempts.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: Message ids by topic.
        self._awaited: dict[str, set[str]] = defaultdict(set)
        self._done: dict[str, set[str]] = defaultdict(set)

    def stored(
        self,
        queue: MessageQueue,
        offset: int,
        physical_offset: int,
        message_id: str,
        requested_ms: MonotonicMs,
    ) -> None:
        is_lost = self.cluster.cuts_ms and not self.cluster.is_sync
        if self.cluster.poppers and not is_lost and not self.cluster.was_deleted(queue, requested_ms):
            self._awaited[queue.topic].add(message_id)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._awaited.clear()

    def topic_deleted(self, name: str, topic: str) -> None:
        self._awaited.pop(topic, None)

    def acknowledged(self, group: str, topic: str, message_id: str) -> None:
        if message_id not in self._done[topic]:
            self._done[topic].add(message_id)
            self.progressed_ms = self.cluster.now_ms

    def is_met(self) -> bool:
        return all(ids <= self._done[topic] for topic, ids in self._awaited.items())

    def finish(self) -> None:
        for topic, ids in self._awaited.items():
            for message_id in sorted(ids - self._done[topic]):
                self.broken(f"{message_id} of {topic} was never acknowledged")


class AttemptsComeOnce(Invariant):
    """Check that each attempt of a popped message comes once, from its own master or from another one.

    As often as producers have sent it. It is judged while nothing fails but masters with slaves: after a send
    without an answer a slave repeats it.
    """

    name = "an attempt of a message that is popped comes once"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_judged = True

    def disturbed(self, what: str) -> None:
        name, _, how = what.partition(" ")
        is_master = name in self.cluster.slaves and how.startswith(("is killed", "loses power"))
        self._is_judged &= is_master or name.startswith("member")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._is_judged &= durable_to is None or self.cluster.is_sync

    def topic_deleted(self, name: str, topic: str) -> None:
        self._is_judged = False

    def finish(self) -> None:
        for popper in self.cluster.poppers:
            topic = popper.topic
            sent = Counter(message_id for _, message_id, _ in self._messages(topic))
            homes = {message_id: broker for broker, message_id, _ in self._messages(topic)}
            attempts: Counter[tuple[str, int]] = Counter()
            retry_topic = names.pop_retry_topic(topic, popper.group)
            for broker, message_id, times in self._messages(retry_topic):
                attempts[message_id, times] += 1
                if homes.get(message_id, broker) != broker:
                    self.cluster.world.history.happened(Happening.REVIVED_ELSEWHERE, message_id)
            for (message_id, times), count in attempts.items():
                if self._is_judged and count > sent[message_id]:
                    what = f"attempt {times} of {message_id} of {topic} came {count} times"
                    self.broken(f"{what}; it was sent {sent[message_id]} times")

    def _messages(self, topic: str) -> Iterator[tuple[str, str, int]]:
        """Yield broker, id and attempts of the messages of a topic."""
        for name, node in self.cluster.brokers.items():
            store = node.broker.store if node.broker is not None else None
            for queue_id in store.queue_ids(topic) if store is not None else ():
                assert node.broker is not None
                for message in messages_of(node.broker, (topic, queue_id)):
                    yield name, message.message_id, message.reconsume_times
