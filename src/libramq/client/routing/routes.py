"""The routes of a client: fetched on first use and refreshed at intervals; which broker's address serves a
queue, and when a missing master is looked for. An unusable route fails the sends that wait for it.

Upstream: impl/factory/MQClientInstance.java (topicRouteTable, brokerAddrTable,
updateTopicRouteInfoFromNameServer).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from libramq.client.network_thread import run_on_thread
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.publish_info import TopicPublishInfo, publish_info, subscribe_queues
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RouteNotFound
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.transport.name_server_lookup import NameServerLookup
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)


class RouteTable:
    """The latest routes by topic, and addresses by broker name."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRouteData] = {}
        #: The queues to send to, by topic with a route.
        self.published: dict[str, TopicPublishInfo] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._addresses: dict[str, dict[int, str]] = {}

    def update(self, topic: str, route: TopicRouteData) -> bool:
        """Store a topic's route; return whether it differs from the last one, apart from the order."""
        route = _sorted(route)
        if self._routes.get(topic) == route:
            return False
        # Both are computed before anything is stored: an invalid route changes nothing.
        publish, subscribe = publish_info(topic, route), subscribe_queues(topic, route)
        self._routes[topic], self.published[topic], self._subscribe[topic] = route, publish, subscribe
        self._addresses = {
            broker.broker_name: dict(broker.broker_addrs)
            for each in self._routes.values()
            for broker in each.broker_datas
        }
        # The newest address of a broker counts, from the route of any topic.
        self._addresses.update({data.broker_name: dict(data.broker_addrs) for data in route.broker_datas})
        return True

    def topics(self) -> list[str]:
        """Return the topics with a route."""
        return list(self._routes)

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


async def look_up(name_servers: Sequence[str]) -> None:
    """Wait for the list of name servers if it must be fetched; raises NameServerUnavailable."""
    if isinstance(name_servers, NameServerLookup):
        await run_on_thread(name_servers.look)


def first_server(name_servers: Sequence[str]) -> str:
    """Return the address of a name server, or of the server that lists them."""
    return name_servers.server if isinstance(name_servers, NameServerLookup) else name_servers[0]


#: Ours: how often the routes are fetched while a broker to send to has no master.
MASTER_MISSING_MS: Final = 1_000

#: Called when a route was fetched, with the error if that failed.
Fetched = Callable[[LibraError | None], None]


class Routes:
    """A producer's routes. Concurrent requests for one topic share a fetch."""

    def __init__(self, name_servers: NameServers, *, default_queue_count: int) -> None:
        self.table = RouteTable()
        self._name_servers = name_servers
        self._default_queue_count = default_queue_count
        self._fetching: dict[str, list[Fetched]] = {}
        self._looks_again = False
        self._look_again_ms = MonotonicMs(0)
        self._is_closed = False

    def close(self) -> None:
        """Stop fetching."""
        self._is_closed = True

    def publish_info(self, topic: str, found: Callable[[TopicPublishInfo | LibraError], None]) -> None:
        """Find the queues to send a topic to; NameServerUnavailable or RouteNotFound if there are none."""
        info = self.table.published.get(topic)
        if info is not None and info.queues:
            found(info)
            return

        def fetched(failure: LibraError | None) -> None:
            info = self.table.published.get(topic)
            if failure is not None:
                found(failure)
            elif info is None or not info.queues:
                found(not_writable(topic))
            else:
                found(info)

        self.fetch(topic, fetched)

    def fetch(self, topic: str, fetched: Fetched) -> None:
        """Fetch a route, or wait for a fetch in flight."""
        waiting = self._fetching.get(topic)
        if waiting is not None:
            waiting.append(fetched)
            return
        self._fetching[topic] = [fetched]
        if self.table.published.get(topic) is not None:
            # The template is for topics that never existed: a name server may forget a route for a moment.
            self._name_servers.route(topic, partial(self._routed, topic))
        else:
            self._name_servers.route_to_send(
                topic, partial(self._routed, topic), queue_count=self._default_queue_count
            )

    def refresh(self, done: Callable[[], None]) -> None:
        """Fetch every topic in use again, in turn; a topic whose route is unavailable keeps its old one."""
        self._refresh_next(iter(self.table.topics()), done)

    def look_again(self, now_ms: MonotonicMs) -> None:
        """Fetch every topic in use again, once a second at most, because a broker has no master."""
        if self._looks_again or now_ms < self._look_again_ms:
            return

        def looked() -> None:
            self._looks_again = False

        self._looks_again, self._look_again_ms = True, now_ms + MASTER_MISSING_MS
        self.refresh(looked)

    def _refresh_next(self, topics: Iterator[str], done: Callable[[], None]) -> None:
        topic = next(topics, None)
        if topic is None or self._is_closed:
            done()
            return

        def fetched(failure: LibraError | None) -> None:
            if isinstance(failure, RouteNotFound):
                log.debug("a topic has no route any more", topic=topic)
            elif failure is not None:
                log_failed_request(log, "route not refreshed", failure, topic=topic)
            self._refresh_next(topics, done)

        self.fetch(topic, fetched)

    def _routed(self, topic: str, outcome: TopicRouteData | LibraError) -> None:
        failure: LibraError | None = None
        if isinstance(outcome, LibraError):
            failure = outcome
        else:
            try:
                if self.table.update(topic, outcome):
                    log.debug("route changed", topic=topic)
            except LibraError as error:  # For example in its order, which operators write by hand.
                failure = error
        for fetched in self._fetching.pop(topic):
            fetched(failure)


def not_writable(topic: str) -> RouteNotFound:
    """Return the error for a topic that exists but has no writable queue."""
    return RouteNotFound(
        f"no queue of topic {topic} can be written to now; check its permission and its brokers "
        f"(libra admin topicRoute -t {topic})"
    )
