"""The cluster view: which brokers there are, and which queues they have, as name servers report them.

A broker is one of ours if it has the topic of rebalance events, which ours register from the beginning and
no other does. Who is in the view has its share of the groups.

A name server that has just started knows nobody until they have come back to it. So a broker goes only when
it is not reported and our connection to it has ended too. Until a name server has answered for the first
time nobody knows where groups live. When a broker comes, nobody knows which queues there are until topics
are reported again: without its own, they would seem to be gone.
"""

from collections.abc import Collection, Iterable
from typing import Final

from libramq.formats.route import TopicRouteData
from libramq.formats.tables import PERM_READ
from libramq.groups.coordinator.location import coordinator_of
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.queue import MessageQueue

#: The topic whose route names all brokers of ours.
BROKERS_TOPIC: Final = REBALANCE_EVENTS_TOPIC


class ClusterView:
    """One broker's view of the cluster; it is always there itself."""

    def __init__(self, broker_name: str, address: str) -> None:
        self._own = broker_name
        self._masters = {broker_name: address}
        self._reported: frozenset[str] = frozenset()
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        #: Topics that have not been reported since a broker came.
        self._doubted: set[str] = set()
        #: Whether a name server has answered yet.
        self.is_known = False

    @property
    def names(self) -> list[str]:
        """All brokers, sorted."""
        return sorted(self._masters)

    @property
    def others(self) -> dict[str, str]:
        """The addresses of all other brokers, by name."""
        return {name: self._masters[name] for name in self.names if name != self._own}

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other broker."""
        return len(self._masters) == 1

    def home_of(self, group: str) -> str | None:
        """The broker where a group lives; None while nobody knows."""
        return coordinator_of(group, self._masters) if self.is_known else None

    def address_of(self, broker_name: str) -> str:
        """Where a broker of the view is."""
        return self._masters[broker_name]

    def is_at(self, broker_name: str, host: str) -> bool:
        """Return whether another broker of that name is known, on that host."""
        address = self.others.get(broker_name)
        return address is not None and _host(address) == host

    def has_host(self, host: str) -> bool:
        """Return whether another broker is known on that host."""
        return any(_host(address) == host for address in self.others.values())

    # What name servers report.

    def brokers_reported(self, route: TopicRouteData | None, *, linked: Collection[str]) -> bool:
        """The route of BROKERS_TOPIC; whether there are other brokers than before.

        linked: the brokers that our connection to stands.
        """
        reported = {}
        for broker in route.broker_datas if route is not None else ():
            if broker.master_address is not None and broker.broker_name != self._own:
                reported[broker.broker_name] = broker.master_address
        kept = {name: address for name, address in self.others.items() if name in linked}
        masters = {self._own: self._masters[self._own]} | kept | reported
        self._reported = frozenset(reported)
        is_news = masters != self._masters or not self.is_known
        if not masters.keys() <= self._masters.keys():
            self._doubted = set(self._queues)
        self._masters, self.is_known = masters, True
        return is_news

    def topic_reported(self, topic: str, route: TopicRouteData | None) -> bool:
        """A topic's route; whether other brokers have other queues of it than before."""
        counts = {}
        for data in route.queue_datas if route is not None else ():
            if data.perm & PERM_READ and data.broker_name != self._own:
                counts[data.broker_name] = data.read_queue_nums
        queues = [MessageQueue(topic, name, number) for name in counts for number in range(counts[name])]
        known = self._queues.get(topic)
        # Of a broker that is kept though it is not reported, nobody says that the topic was deleted there.
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
        """A broker has deleted a topic; whether it had queues of it, as far as was known."""
        known = self._queues.get(topic, ())
        left = tuple(queue for queue in known if queue.broker_name != broker_name)
        if len(left) == len(known):
            return False
        self._queues[topic] = left
        return True

    # Queues of other brokers.

    def queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The topic's queues at other brokers; None while nobody has said."""
        if self.is_known and self.is_alone:
            return ()
        return self._queues.get(topic) if topic not in self._doubted else None

    def forget_gone(self) -> None:
        """Queues of brokers that are no more are none."""
        for topic, queues in self._queues.items():
            self._queues[topic] = tuple(queue for queue in queues if queue.broker_name in self._masters)

    def forget_all_but(self, topics: Iterable[str]) -> None:
        """Nobody asks for other topics any more."""
        self._queues = {topic: self._queues[topic] for topic in topics if topic in self._queues}


def _host(address: str) -> str:
    return address.rpartition(":")[0]
