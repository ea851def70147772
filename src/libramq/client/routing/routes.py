"""The routes of a client: fetched on first use, and refreshed at intervals.

Upstream: MQClientInstance.updateTopicRouteInfoFromNameServer.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RouteNotFound
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: how often the routes are fetched while a broker that is sent to has no master.
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
        info = self.table.publish_info(topic)
        if info is not None and info.queues:
            found(info)
            return

        def fetched(failure: LibraError | None) -> None:
            info = self.table.publish_info(topic)
            if failure is not None:
                found(failure)
            elif info is None or not info.queues:
                found(not_writable(topic))
            else:
                found(info)

        self.fetch(topic, fetched)

    def fetch(self, topic: str, fetched: Fetched) -> None:
        """Fetch a route, or wait for a fetch that is under way."""
        waiting = self._fetching.get(topic)
        if waiting is not None:
            waiting.append(fetched)
            return
        self._fetching[topic] = [fetched]
        if self.table.publish_info(topic) is not None:
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
        """Fetch every topic in use again, once a second at most: a broker has no master by these routes."""
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
            except LibraError as error:  # Its order, for example, which an operator writes by hand.
                failure = error
        for fetched in self._fetching.pop(topic):
            fetched(failure)


def not_writable(topic: str) -> RouteNotFound:
    """Return the error for a topic that exists but has no writable queue."""
    return RouteNotFound(
        f"no queue of topic {topic} can be written to now; check its permission and its brokers "
        f"(libra admin topicRoute -t {topic})"
    )
