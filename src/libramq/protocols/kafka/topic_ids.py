"""Topic ids, by which members of KIP-848's groups know topics.

name ─► id        a hash, so that every broker computes the same without asking

A topic that is made again under its name has the id it had: RocketMQ's topics have no identity but their
names.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from libramq.wire.kafka.primitives import UUID_BYTES

#: Ours: as many as a broker has topics (TOPICS_MAX in `catalog`), and half as many again.
_IDS_MAX: Final = 75_000


class TopicIds:
    """The ids of topics. topics: returns the names of all topics."""

    def __init__(self, topics: Callable[[], Iterable[str]]) -> None:
        self._topics = topics
        self._names: dict[bytes, str] = {}

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic with an id; None if there is none."""
        name = self._names.get(topic_id)
        if name is None:
            if len(self._names) > _IDS_MAX:
                self._names.clear()
            for each in self._topics():
                self.note(each)
            name = self._names.get(topic_id)
        return name

    def note(self, name: str) -> bytes:
        """Return a topic's id, and remember whose it is."""
        topic_id = id_of(name)
        self._names.setdefault(topic_id, name)
        return topic_id


def id_of(name: str) -> bytes:
    """Return the id of a topic of that name."""
    return sha256(name.encode()).digest()[:UUID_BYTES]
