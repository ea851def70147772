"""Topic ids, by which members of KIP-848's groups know topics.

name ─► id        a hash, so that every broker computes the same without asking

A topic that is made again under its name has the id it had: RocketMQ's topics have no identity but their
names.
"""

from hashlib import sha256
from typing import Final

from libramq.broker.cluster.nodes import Nodes
from libramq.wire.kafka.primitives import UUID_BYTES

#: Uuid.ZERO_UUID: none.
NO_TOPIC_ID: Final = bytes(UUID_BYTES)
#: Ours: as many as a broker has topics (TOPICS_MAX in `catalog`), and half as many again.
_IDS_MAX: Final = 75_000


class TopicIds:
    """The ids of the topics that a cluster's brokers have."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._names: dict[bytes, str] = {}
        #: The version of the topics that were looked through: a request may have thousands of unknown ids.
        self._looked_through: int | None = None

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic with an id; None if there is none."""
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
    """Return the id of a topic of that name."""
    return sha256(name.encode()).digest()[:UUID_BYTES]
