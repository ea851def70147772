"""The crew: the members of a synthetic group, their client ids and zones.

        client id    10.ZONE.x.y@NUMBER, a pod's random address, so that ids are not sorted by age
        broker       ZONE@broker-N, as MACHINE_ROOM reads it

A member restarted on its machine has the same address and another number, like RocketMQ's ids with the
process id in them (ClientConfig.buildMQClientId).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from libramq.lab.history import Topics
from libramq.message.queue import MessageQueue

#: Ours: as many as a region of a large cloud has.
ZONES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a group."""

    members: int
    queues: int
    topics: int


class Crew:
    """Makes the queues and members of one group."""

    def __init__(self, size: Size, random: Random) -> None:
        self.size = size
        self.random = random
        self.topics = tuple(f"Topic{number:02}" for number in range(min(size.topics, size.queues)))
        self.all_topics: Topics = frozenset(self.topics)
        self._count = 0

    def queues(self) -> dict[str, list[MessageQueue]]:
        """Return the queues, distributed evenly over topics, and each topic's over a broker in every zone."""
        found: dict[str, list[MessageQueue]] = {}
        for place, topic in enumerate(self.topics):
            count = self.size.queues // len(self.topics) + (place < self.size.queues % len(self.topics))
            lots = (
                MessageQueue(topic, f"{zone_name(number % ZONES)}@broker-0", number // ZONES)
                for number in range(count)
            )
            found[topic] = sorted(lots)
        return found

    def hire(self, count: int) -> list[str]:
        """Return new members on new machines, in each zone in turn."""
        return [self._id(f"10.{(self._count) % ZONES}.{self._octet()}.{self._octet()}") for _ in range(count)]

    def restart(self, client_id: str) -> str:
        """Start the same machine's next process."""
        return self._id(address_of(client_id))

    def some(self, members: Sequence[str], count: int) -> list[str]:
        """Draw this many of the members at random."""
        return self.random.sample(list(members), min(count, len(members)))

    def _id(self, address: str) -> str:
        self._count += 1
        return f"{address}@{self._count}"

    def _octet(self) -> int:
        return self.random.randrange(256)


def address_of(client_id: str) -> str:
    """Return the machine's address."""
    return client_id.partition("@")[0]


def zone_name(number: int) -> str:
    """Return a zone's name."""
    return f"zone-{number}"


def zone_of(client_id: str) -> str:
    """Return the zone of a crew's member."""
    return zone_name(int(client_id.split(".", 2)[1]))


def shares(count: int, parts: int) -> list[int]:
    """Divide a number into parts as even as possible, without empty ones."""
    parts = min(parts, count)
    return [count // parts + (place < count % parts) for place in range(parts)]
