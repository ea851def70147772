"""The route table: the name servers' latest routes and addresses, and what changed.

Upstream: impl/factory/MQClientInstance.java (topicRouteTable, brokerAddrTable).
"""

from libramq.client.routing.publish_info import TopicPublishInfo, publish_info, subscribe_queues
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.message.queue import MessageQueue


class RouteTable:
    """Routes by topic, addresses by broker name."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRouteData] = {}
        self._publish: dict[str, TopicPublishInfo] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._addresses: dict[str, dict[int, str]] = {}

    def update(self, topic: str, route: TopicRouteData) -> bool:
        """Store a topic's route; return whether it differs from the last one, apart from the order."""
        route = _sorted(route)
        if self._routes.get(topic) == route:
            return False
        # Both are computed before anything is stored: an invalid route changes nothing.
        publish, subscribe = publish_info(topic, route), subscribe_queues(topic, route)
        self._routes[topic], self._publish[topic], self._subscribe[topic] = route, publish, subscribe
        self._addresses = {
            broker.broker_name: dict(broker.broker_addrs)
            for each in self._routes.values()
            for broker in each.broker_datas
        }
        # The newest address of a broker counts, whichever topic's route had it.
        self._addresses.update({data.broker_name: dict(data.broker_addrs) for data in route.broker_datas})
        return True

    def topics(self) -> list[str]:
        """Return the topics with a route."""
        return list(self._routes)

    def publish_info(self, topic: str) -> TopicPublishInfo | None:
        """Return the queues to send to; None while no route is known."""
        return self._publish.get(topic)

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to read from; none while no route is known."""
        return self._subscribe.get(topic, ())

    def master(self, broker_name: str) -> str | None:
        """Return the address of the master of a broker name; None while no route has it."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address to read from: the requested broker, else another of that name."""
        addresses = self._addresses.get(broker_name)
        if not addresses:
            return None
        found = addresses.get(broker_id)
        if found is None and broker_id != MASTER_ID:
            found = addresses.get(broker_id + 1)
        return found if found is not None else addresses[min(addresses)]

    def readers_of_topic(self, topic: str) -> list[str]:
        """Return one address per broker name of the topic, sorted by name."""
        route = self._routes.get(topic)
        if route is None:
            return []
        found = (self.reader(data.broker_name) for data in route.broker_datas)
        return [address for address in found if address is not None]

    def addresses(self) -> frozenset[str]:
        """Return the addresses of all brokers, including slaves."""
        return frozenset(a for addresses in self._addresses.values() for a in addresses.values())

    def masters(self) -> frozenset[str]:
        """Return the addresses of all masters."""
        return frozenset(a[MASTER_ID] for a in self._addresses.values() if MASTER_ID in a)


def _sorted(route: TopicRouteData) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=sorted(route.queue_datas, key=lambda data: data.broker_name),
        broker_datas=sorted(route.broker_datas, key=lambda data: data.broker_name),
        order_topic_conf=route.order_topic_conf,
    )
