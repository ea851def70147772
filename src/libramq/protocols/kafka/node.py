"""The node: ids of brokers and topics for Kafka's clients, a topic's partitions, leaders and coordinators.

broker's name ─► id
topic's name  ─► id        hashes, so that all brokers compute the same ids independently

Members of KIP-848's groups identify topics by id. A topic that is deleted and created again keeps its id,
because RocketMQ's topics have no identity but their names.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final
from zlib import crc32

from libramq.broker.cluster.kafka.nodes import Nodes, is_visible
from libramq.message.queue import MessageQueue
from libramq.wire.kafka.apis.metadata import MetadataBroker
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.primitives import UUID_BYTES

#: The leader of a partition whose broker is away.
NO_LEADER: Final = -1
#: Ours: the number of ids. Java clients use the highest ones, 2^31 - 1 - id, for connections to coordinators.
_IDS: Final = 1 << 24


class Node:
    """This broker as Kafka's clients see it: its address and its cluster's name."""

    def __init__(self, host: str, port: int, cluster_id: str) -> None:
        self.host = host
        #: If the system chooses the port, it is set when the server listens.
        self.port = port
        self.cluster_id = cluster_id


class KafkaNodes:
    """The brokers of the cluster by their ids, and the partitions of its topics.

    cluster: the same with brokers by name, and queues. view: the coordinators.
    """

    def __init__(self, node: Node, nodes: Nodes) -> None:
        self._node, self.cluster_id = node, node.cluster_id
        self._nodes = self.cluster = nodes
        self.view = nodes.view
        self.place, self.partition = nodes.place, nodes.partition

    @property
    def own_id(self) -> int:
        """Return this broker's id."""
        return self.node_id(self._nodes.broker_name)

    def node_id(self, broker_name: str) -> int:
        """Return a broker's id."""
        names = {self._nodes.broker_name, broker_name, *self._nodes.known}
        return _ids(tuple(sorted(names)))[broker_name]

    def live(self) -> dict[str, MetadataBroker]:
        """Return the brokers that currently serve Kafka's clients, by name."""
        found = {}
        for name, (host, port) in self._nodes.live().items():
            if name == self._nodes.broker_name:
                host, port = self._node.host, self._node.port
            found[name] = MetadataBroker(node_id=self.node_id(name), host=host, port=port)
        return found

    def coordinator(self, group: str) -> MetadataBroker | None:
        """Return the broker that coordinates a group; None while it is unknown or serves no Kafka clients.

        An unreachable one is not returned: it may have been killed, and its successor is known in a moment.
        """
        name = self.view.coordinator_of(group)
        return self.live().get(name) if name is not None and self._nodes.is_linked(name) else None

    def own_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return a queue of this broker."""
        return MessageQueue(topic, self._nodes.broker_name, queue_id)

    def is_own(self, queue: MessageQueue) -> bool:
        """Return whether this broker has a queue."""
        return queue.broker_name == self._nodes.broker_name

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions; 0 if there is no such topic."""
        return self._nodes.numbering(topic).size if is_visible(topic) else 0

    def is_coordinator(self, group: str) -> bool:
        """Return whether this broker coordinates a group."""
        return self.view.coordinator_of(group) == self._nodes.broker_name

    def is_elsewhere(self, group: str) -> bool:
        """Return whether another broker is known to coordinate a group."""
        return self.view.coordinator_of(group) not in (None, self._nodes.broker_name)

    def coordinator_refusal(self, group: str) -> ErrorCode | None:
        """Return the error if requests to a group's coordinator are refused here."""
        if not self.view.is_known:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # Clients retry here.
        return None if self.is_coordinator(group) else ErrorCode.NOT_COORDINATOR

    def queue(self, topic: str, partition: int) -> int | ErrorCode:
        """Return the queue of a partition at this broker, or the error if it is not here."""
        place = self._nodes.place(topic, partition)
        if place is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if place.broker_name != self._nodes.broker_name:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return place.queue_id


@lru_cache(maxsize=64)
def _ids(names: Iterable[str]) -> dict[str, int]:
    """Return an id for each name; on a collision, the second name takes the next free id."""
    ids: dict[str, int] = {}
    taken: set[int] = set()
    for name in names:
        wanted = crc32(name.encode()) % _IDS
        while wanted in taken:
            wanted = (wanted + 1) % _IDS
        taken.add(wanted)
        ids[name] = wanted
    return ids


#: Uuid.ZERO_UUID: no topic.
NO_TOPIC_ID: Final = bytes(UUID_BYTES)
#: Ours: one and a half times the topics of a broker (TOPICS_MAX in `catalog`).
_IDS_MAX: Final = 75_000


class TopicIds:
    """The ids of a cluster's topics."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._names: dict[bytes, str] = {}
        #: The version of the topics last scanned: a request may have thousands of unknown ids.
        self._looked_through: int | None = None

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic with this id; None if there is none."""
        if topic_id not in self._names and self._nodes.topics_version != self._looked_through:
            self._look_through()
        return self._names.get(topic_id)

    def _look_through(self) -> None:
        self._looked_through = self._nodes.topics_version
        if len(self._names) > _IDS_MAX:
            self._names.clear()
        known = set(self._names.values())
        for name in self._nodes.topics():
            if name not in known:
                self._names[id_of(name)] = name


def id_of(name: str) -> bytes:
    """Return the id of the topic with this name."""
    return sha256(name.encode()).digest()[:UUID_BYTES]
