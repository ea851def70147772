"""The cluster view: the LibraMQ brokers of the cluster and their queues, including masters that are away
while their slaves serve; maps each group to its coordinator (by a hash of its name).

A broker is a LibraMQ broker if it has the topic of rebalance events, which only LibraMQ's brokers register.
Every broker in the view coordinates its share of the groups.

A name server that has just started knows no brokers until they register again. So a broker is removed only
when it is not reported and the connection to it has ended as well. Until a name server has answered for the
first time, the groups' coordinators are unknown. After a broker was added, queues are unknown until their
topic is reported again, because otherwise the new broker's queues would seem to be gone.

A master is absent while its slaves are reported without it. It coordinates nothing, and its queues remain:
their members read on from a slave.
"""

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Final

from libramq.formats.route import TopicRouteData
from libramq.formats.tables import PERM_READ
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.queue import MessageQueue

#: The topic whose route names all LibraMQ brokers.
BROKERS_TOPIC: Final = REBALANCE_EVENTS_TOPIC


#: offsets.topic.num.partitions.
PARTITIONS: Final = 50


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: signed 32 bits over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for place in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[place : place + 2])) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(group: str) -> int:
    """Return a group's partition of __consumer_offsets, as in Kafka (GroupMetadataManager.partitionFor).

    The one hash whose absolute value overflows in Java counts as 0 (Utils.abs).
    """
    value = java_string_hash(group)
    return 0 if value == -(2**31) else abs(value) % PARTITIONS


def coordinator_of(group: str, broker_names: Iterable[str]) -> str | None:
    """Return which of these brokers coordinates the group; None if there are none.

    Uses rendezvous hashing: the broker whose name hashes highest together with the group's partition. When a
    broker is added or removed, only its own partitions move.
    """
    partition = partition_of(group)

    def weight(broker_name: str) -> bytes:
        return blake2b(f"{partition} {broker_name}".encode(), digest_size=8).digest()

    best = max(((weight(name), name) for name in broker_names), default=None)
    return best[1] if best is not None else None


class ClusterView:
    """One broker's view of the cluster; the broker itself is always in it.

    is_alone_for_good: it has no name servers, so no other broker will ever be reported.
    """

    def __init__(self, broker_name: str, address: str, *, is_alone_for_good: bool = False) -> None:
        self.own_name = broker_name
        self.own_address = address
        self._masters = {broker_name: address}
        self._reported: frozenset[str] = frozenset()
        #: The brokers whose master is gone while a slave serves.
        self.absent: frozenset[str] = frozenset()
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        #: Topics that have not been reported since a broker was added.
        self._doubted: set[str] = set()
        #: Whether a name server has answered yet.
        self.is_known = is_alone_for_good
        self._observers: list[Callable[[], None]] = []

    @property
    def names(self) -> list[str]:
        """Return the names of all brokers, sorted."""
        return sorted(self._masters)

    @property
    def others(self) -> dict[str, str]:
        """Return the addresses of all other brokers, by name."""
        return {name: self._masters[name] for name in self.names if name != self.own_name}

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other broker, not even one whose master is gone.

        A lone broker runs the same code as all others. It checks this only where it would otherwise wait for
        answers that never come (without name servers there are no reports) or whose result is known.
        """
        return len(self._masters) == 1 and not self.absent

    def coordinator_of(self, group: str) -> str | None:
        """Return the broker that coordinates a group; None while it is unknown."""
        if not self.is_known:
            return None
        return self.own_name if len(self._masters) == 1 else coordinator_of(group, self._masters)

    def successor_of(self, group: str) -> str | None:
        """Return the broker that would coordinate a group without its coordinator; None if there is none."""
        coordinator = self.coordinator_of(group)
        others = [name for name in self._masters if name != coordinator]
        return coordinator_of(group, others) if coordinator is not None else None

    def coordinator_address(self, group: str) -> str | None:
        """Return the address of the broker that coordinates a group; None while it is unknown."""
        coordinator = self.coordinator_of(group)
        return self._masters[coordinator] if coordinator is not None else None

    def is_at(self, broker_name: str, host: str) -> bool:
        """Return whether another broker is known under this name on this host."""
        address = self.others.get(broker_name)
        return address is not None and _host(address) == host

    def has_host(self, host: str) -> bool:
        """Return whether another broker is known on this host."""
        return any(_host(address) == host for address in self.others.values())

    def observe(self, observer: Callable[[], None]) -> None:
        """Call a function after each change of the brokers, which may change coordinators."""
        self._observers.append(observer)

    def announce(self) -> None:
        """Call the observers, now that this broker's own parts have applied the change."""
        for observer in self._observers:
            observer()

    # Reports of name servers.

    def brokers_reported(self, route: TopicRouteData | None, *, linked: Collection[str]) -> bool:
        """Take the route of BROKERS_TOPIC; return whether the set of other brokers has changed.

        linked: the brokers that this broker is connected to.
        """
        reported, served = {}, set()
        for broker in route.broker_datas if route is not None else ():
            if broker.broker_name == self.own_name:
                continue
            if broker.master_address is not None:
                reported[broker.broker_name] = broker.master_address
            elif broker.broker_addrs:
                served.add(broker.broker_name)
        kept = {name: address for name, address in self.others.items() if name in linked}
        masters = {self.own_name: self._masters[self.own_name]} | kept | reported
        absent = frozenset(served - masters.keys())
        self._reported = frozenset(reported)
        is_news = masters != self._masters or absent != self.absent or not self.is_known
        if not masters.keys() | absent <= self._masters.keys() | self.absent:
            self._doubted = set(self._queues)
        self._masters, self.absent, self.is_known = masters, absent, True
        return is_news

    def topic_reported(self, topic: str, route: TopicRouteData | None) -> bool:
        """Take a topic's route; return whether its queues at other brokers have changed."""
        counts = {}
        for data in route.queue_datas if route is not None else ():
            if data.perm & PERM_READ and data.broker_name != self.own_name:
                counts[data.broker_name] = data.read_queue_nums
        queues = [MessageQueue(topic, name, number) for name in counts for number in range(counts[name])]
        known = self._queues.get(topic)
        # A broker that is kept although unreported keeps its queues, because no report says they were
        # deleted.
        queues += [
            queue
            for queue in known or ()
            if queue.broker_name in self._masters
            and queue.broker_name not in self._reported
            and queue.broker_name not in counts
        ]
        self._queues[topic] = tuple(sorted(queues))
        was_doubted = topic in self._doubted
        self._doubted.discard(topic)
        return was_doubted or known != self._queues[topic]

    def topic_removed(self, topic: str, broker_name: str) -> bool:
        """Handle the deletion of a topic at a broker; return whether queues of it were known there."""
        known = self._queues.get(topic, ())
        left = tuple(queue for queue in known if queue.broker_name != broker_name)
        if len(left) == len(known):
            return False
        self._queues[topic] = left
        return True

    # Queues of other brokers.

    def queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the topic's queues at other brokers; None while they are unknown."""
        if self.is_known and self.is_alone:  # Without name servers there are no reports.
            return ()
        return self._queues.get(topic) if topic not in self._doubted else None

    def forget_gone(self) -> None:
        """Drop the queues of departed brokers; those of absent masters stay."""
        present = self._masters.keys() | self.absent
        for topic, queues in self._queues.items():
            self._queues[topic] = tuple(queue for queue in queues if queue.broker_name in present)

    def forget_all_but(self, topics: Iterable[str]) -> None:
        """Drop topics that are no longer needed."""
        self._queues = {topic: self._queues[topic] for topic in topics if topic in self._queues}


def _host(address: str) -> str:
    return address.rpartition(":")[0]
