"""The presence: the brokers of our topics, and the heartbeats they get.

Upstream: MQClientInstance.java (updateTopicRouteInfoFromNameServer, sendHeartbeatToAllBroker).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due, DueItems, HeartbeatDue, RoutesDue
from libramq.client.consuming.membership.broker_contacts import BrokerContacts
from libramq.client.consuming.membership.subscription import Subscriptions, heartbeat_data
from libramq.client.consuming.signals import Steps
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs, Now
from libramq.errors import LibraError
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how soon a topic without a route is looked up again, then half as often each time.
ROUTE_MISSING_MS: Final = 1_000


class Presence:
    """Fetches routes, and sends heartbeats."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        routes: RouteTable,
        contacts: BrokerContacts,
        timers: DueItems[Due],
    ) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self._routes = routes
        self._contacts = contacts
        self._timers = timers
        self._route_missing_ms = ROUTE_MISSING_MS
        self._started: Now | None = None
        self._version = 0
        #: The version of the subscriptions as they were declared first. They do not change; the version does.
        self.first_version = 0
        self._look_at_ms = MonotonicMs(0)
        self._looked_at_ms: MonotonicMs | None = None
        self._lease_ended = False

    def start(self, now: Now) -> Steps:
        """Start by fetching the routes."""
        self._started = now
        self._version = self.first_version = int(now.wall_ms)
        self._timers.at(now.monotonic_ms + self._settings.heartbeat_ms, HeartbeatDue())
        return self.look()

    def look(self) -> Steps:
        """Fetch the routes."""
        return [fx.FetchRoutes(tuple(self._subscriptions))]

    def due(self, now_ms: MonotonicMs) -> Steps:
        """Fetch the routes, unless that was done meanwhile."""
        return self.look() if now_ms >= self._look_at_ms else []

    def look_soon(self, now_ms: MonotonicMs) -> Steps:
        """Fetch the routes because a broker is unknown, unless that was just done."""
        if self._looked_at_ms is not None and now_ms - self._looked_at_ms < ROUTE_MISSING_MS:
            return []
        self._looked_at_ms = now_ms
        return self.look()

    def routes_fetched(self, found: Mapping[str, TopicRouteData | None], now_ms: MonotonicMs) -> bool:
        """Handle fetched routes; return whether anything has changed."""
        changed = [topic for topic, route in found.items() if route and self._update(topic, route)]
        missing = [topic for topic in self._subscriptions if self._routes.publish_info(topic) is None]
        if missing:
            delay_ms = min(self._route_missing_ms, self._settings.route_refresh_ms)
            self._route_missing_ms *= 2
        else:
            delay_ms = self._settings.route_refresh_ms
        self._look_at_ms = now_ms + delay_ms
        self._timers.at(self._look_at_ms, RoutesDue())
        return bool(changed)

    def regular(self, now_ms: MonotonicMs) -> Steps:
        """Return the heartbeats that are due."""
        self._timers.at(now_ms + self._settings.heartbeat_ms, HeartbeatDue())
        return self.heartbeats(self._contacts.regular())

    def changed(self, now_ms: MonotonicMs) -> Steps:
        """Send heartbeats because our queues have changed."""
        # Brokers accept a subscription as newer only with a higher version: the wall clock's first reading,
        # continued by the monotonic clock, which is never set back.
        assert self._started is not None, "nothing is ours before the start"
        self._version = max(self._version + 1, int(self._started.wall_of(now_ms)))
        return self.heartbeats(self._contacts.alive)

    def lease_changed(self, *, ended: bool) -> Steps:
        """Send heartbeats because our lease has ended, or is renewed after that."""
        self._lease_ended = ended
        return self.heartbeats(self._contacts.alive)

    def heartbeats(self, addresses: Iterable[str]) -> Steps:
        """Return heartbeats to brokers."""
        data = heartbeat_data(self._settings, self._subscriptions, self._version)
        return [fx.SendHeartbeat(address, data, self._lease_ended) for address in sorted(addresses)]

    def _update(self, topic: str, route: TopicRouteData) -> bool:
        try:
            return self._routes.update(topic, route)
        except LibraError as error:
            log.warning("route ignored", topic=topic, reason=str(error))
            return False
