"""Invariants of stored messages."""

from collections import defaultdict
from typing import TYPE_CHECKING

from libramq.broker.broker import Broker
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.clock import MonotonicMs, WallMs
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.store.reading.read import ReadStatus
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster
    from libramq.testing.nodes.consumer_node import SimulatedConsumer


class AcknowledgedMessageSurvives(Invariant):
    """Check that every acknowledged message survives a restart of the broker.

    Under ASYNC_FLUSH a power cut may lose unflushed messages; a kill never loses any.
    """

    name = "an acknowledged message is readable after recovery"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: broker → queue → offset → (physical offset, message id)
        self._stored: dict[str, dict[MessageQueue, dict[int, tuple[int, str]]]] = defaultdict(
            lambda: defaultdict(dict)
        )

    def stored(
        self,
        queue: MessageQueue,
        offset: int,
        physical_offset: int,
        message_id: str,
        requested_ms: MonotonicMs,
    ) -> None:
        if self.cluster.may_have_lost(queue.broker_name, requested_ms):
            return
        if self.cluster.was_deleted(queue, requested_ms):
            return
        before = self._stored[queue.broker_name][queue].setdefault(offset, (physical_offset, message_id))
        if before[1] != message_id:
            self.broken(f"{queue}:{offset} was acknowledged for {before[1]} and again for {message_id}")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is None or self.cluster.is_sync:
            return
        for messages in self._stored[name].values():
            for offset in [at for at, (physical, _) in messages.items() if physical >= durable_to]:
                del messages[offset]

    def topic_deleted(self, name: str, topic: str) -> None:
        stored = self._stored[name]
        for queue in [queue for queue in stored if queue.topic == topic]:
            del stored[queue]

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for queue, messages in self._stored[name].items():
            found = messages_in(broker, queue)
            for offset, (_, message_id) in messages.items():
                if found.get(offset) != message_id:
                    self.broken(
                        f"{queue}:{offset} was acknowledged for {message_id} and is now {found.get(offset)}"
                    )
            # A topic created again in the last half second may be lost in a power cut.
            if broker.topics.get(queue.topic) is None and not self.cluster.was_deleted(queue):
                self.broken(f"{name} does not know the topic {queue.topic} any more")

    def finish(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                self.broker_recovered(name, node.broker)


class OneMessageAnOffset(Invariant):
    """Check that all readers of an offset get the same message: none reads one that can still be lost."""

    name = "all readers of an offset see one message"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._seen: dict[MessageQueue, dict[int, str]] = defaultdict(dict)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            for queue in [queue for queue in self._seen if queue.broker_name == name]:
                del self._seen[queue]

    def topic_deleted(self, name: str, topic: str) -> None:
        for queue in [q for q in self._seen if (q.broker_name, q.topic) == (name, topic)]:
            del self._seen[queue]

    def delivered(self, member: "SimulatedConsumer", delivery: Delivery) -> None:
        seen = self._seen[delivery.owned.queue]
        lost_until_ms = int(self.cluster.cuts_wall_ms.get(delivery.owned.queue.broker_name, WallMs(0)))
        for message in delivery.messages:
            if message.store_timestamp_ms <= lost_until_ms and not self.cluster.is_sync:
                continue
            stored_ms = WallMs(message.store_timestamp_ms)
            if self.cluster.was_stored_before_deletion(delivery.owned.queue, stored_ms):
                continue
            before = seen.setdefault(message.queue_offset, message.message_id)
            if before != message.message_id:
                where = f"{delivery.owned.queue}:{message.queue_offset}"
                self.broken(f"{where} was {before} and is {message.message_id} for {member.name}")


def messages_in(broker: Broker, queue: MessageQueue) -> dict[int, str]:
    """Return every message of a queue, by its offset."""
    store = broker.store
    found: dict[int, str] = {}
    offset = store.min_offset(queue.topic, queue.queue_id)
    while True:
        result = store.read(queue.topic, queue.queue_id, offset, 256)
        if result.status is ReadStatus.FOUND:
            for message in decode_records(b"".join(result.data)):
                found[message.queue_offset] = message.message_id
        if result.next_offset <= offset or result.next_offset >= result.max_offset:
            return found
        offset = result.next_offset
