"""The brokers of the subscribed topics: which get heartbeats and when, how soon a lost one is retried,
whether all offer coordination, and when the consumer unregisters from each.

Upstream: MQClientInstance.java (updateTopicRouteInfoFromNameServer, sendHeartbeatToAllBroker);
the reconnect logic is LibraMQ's own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.life import Troubles
from libramq.client.consuming.subscription import Subscriptions, heartbeat_data
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs, Now
from libramq.errors import (
    NAMES_COMPARED_MAX,
    LibraError,
    NameServerUnavailable,
    NoPermission,
    RouteNotFound,
    did_you_mean,
    nearest_name,
)
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.logs import get_logger
from libramq.message.names import RETRY_PREFIX, is_light
from libramq.remoting.body.cluster import ClusterInfo
from libramq.rpc.broker_calls import HeartbeatReply, heartbeat, unregister_client
from libramq.rpc.name_server_calls import all_topics, cluster_info
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: the first delay before a missing route is looked up again; it doubles each time.
ROUTE_MISSING_MS: Final = 1_000
#: Ours: how often the log repeats that a topic is missing.
MISSING_AGAIN_MS: Final = 600_000
#: Ours: how many masters get heartbeats while no subscribed topic exists: one to show the group, two spares.
WITHOUT_TOPIC_MAX: Final = 3
#: Ours: the delay after a lost connection; the broker may only be restarting.
RECONNECT_MS: Final = 100
#: Ours: the delay after a failed heartbeat.
RECONNECT_AGAIN_MS: Final = 1_000


class KnownBrokers:
    """Fetches routes, and decides which brokers get heartbeats and when, and when to unregister."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        routes: RouteTable,
        kernel: ConsumerKernel,
        troubles: Troubles,
    ) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self.routes = routes
        self.kernel = kernel
        self.troubles = troubles
        self._effects = kernel.effects
        self._routes_due = kernel.deadlines.new(lambda _: self.look())
        self._heartbeats_due = kernel.deadlines.new(self._regular)
        self._route_missing_ms = ROUTE_MISSING_MS
        self._list_due = kernel.deadlines.new(self._list_topics)
        self._missing_again_ms = MonotonicMs(0)
        self._without_topic: frozenset[str] = frozenset()
        self._started: Now | None = None
        self._version = 0
        self._looked_at_ms: MonotonicMs | None = None
        self._lease_ended = self._allocates = False
        self._known: frozenset[str] = frozenset()
        self._to_reconnect: set[str] = set()
        #: Brokers that answered our last heartbeat, over a connection that is still open.
        self.alive: set[str] = set()
        #: Brokers that offer coordinated groups, and whose coordinators have not refused us.
        self.offering: set[str] = set()
        self._coordinating: set[str] = set()
        self._is_closed = False
        #: Unanswered heartbeats, by broker.
        self._unanswered: Counter[str] = Counter()
        #: During the stop: brokers still to unregister from.
        self._leaving: set[str] = set()
        #: During the stop: brokers whose answers to the unregistration are awaited.
        self._awaited: set[str] = set()
        #: Brokers that did not answer a request during the stop, which no longer waits for their answers.
        self.silent: set[str] = set()
        #: Called when the routes have changed.
        self.routes_changed: Callable[[MonotonicMs], None] = lambda _: None
        #: Called when a broker answers that is not yet in `alive`.
        self.met: Callable[[str, MonotonicMs], None] = lambda *_: None

    def start(self, now: Now) -> None:
        """Start by fetching the routes."""
        self._started = now
        self._version = int(now.wall_ms)
        self._heartbeats_due.at(now.monotonic_ms + self._settings.heartbeat_ms)
        self.look()

    def close(self) -> None:
        """Take no further answers: the consumer stops."""
        self._is_closed = True
        for due in (self._routes_due, self._heartbeats_due, self._list_due):
            due.cancel()

    # Routes.

    def look(self) -> None:
        """Fetch the routes."""
        self._effects.add(fx.FetchRoutes(tuple(self._subscriptions), self.routes_fetched))

    def look_soon(self, now_ms: MonotonicMs) -> None:
        """Fetch the routes because a broker is unknown, unless that was just done."""
        if self._looked_at_ms is None or now_ms - self._looked_at_ms >= ROUTE_MISSING_MS:
            self._looked_at_ms = now_ms
            self.look()

    def routes_fetched(self, found: Mapping[str, TopicRouteData | None], now_ms: MonotonicMs) -> None:
        """Handle fetched routes; None for a topic that the name server does not know."""
        if self._is_closed:
            return
        changed = [topic for topic, route in found.items() if route and self._update(topic, route)]
        for topic in found:
            if self.routes.published.get(topic) is not None and self.troubles.over(_missing(topic)):
                log.warning("the missing topic exists now", group=self._settings.group, topic=topic)
        missing = [topic for topic in self._subscriptions if self.routes.published.get(topic) is None]
        if now_ms >= self._missing_again_ms and any(map(_is_created, missing)):
            self._list_due.at(now_ms)
        if missing:
            delay_ms = min(self._route_missing_ms, self._settings.route_refresh_ms)
            self._route_missing_ms *= 2
        else:
            delay_ms = self._settings.route_refresh_ms
        self._routes_due.at(now_ms + delay_ms)
        if changed:
            self.meet()
            self.routes_changed(now_ms)

    def _list_topics(self, _: MonotonicMs) -> None:
        """Fetch the names of all topics that brokers have, then the masters."""
        self.kernel.ask(fx.NAME_SERVER, all_topics(), self._topics_named)

    def _topics_named(self, outcome: list[str] | LibraError, _: MonotonicMs) -> None:
        if not isinstance(outcome, NameServerUnavailable):
            # A client without permission to list topics waits as well.
            topics = [] if isinstance(outcome, LibraError) else outcome
            self.kernel.ask(fx.NAME_SERVER, cluster_info(), partial(self._masters_named, topics))

    def _masters_named(
        self, topics: Sequence[str], outcome: ClusterInfo | LibraError, now_ms: MonotonicMs
    ) -> None:
        brokers = () if isinstance(outcome, LibraError) else outcome.broker_addr_table.values()
        masters = [each.broker_addrs.get(MASTER_ID) for each in brokers]
        self.topics_listed(topics, filter(None, masters), now_ms)

    def topics_listed(self, topics: Sequence[str], masters: Iterable[str], now_ms: MonotonicMs) -> None:
        """Report subscribed topics that no broker has. topics: the existing ones.

        While no subscribed topic exists, some masters get heartbeats, so that operators see the group.
        """
        if self._is_closed:
            return
        self._missing_again_ms = MonotonicMs(int(now_ms) + MISSING_AGAIN_MS)
        group = self._settings.group
        # Comparing 10,000 names blocks everything else for over half a second.
        compared_max = max(1, NAMES_COMPARED_MAX // max(1, len(topics)))
        created = filter(_is_created, self._subscriptions)
        missing = [topic for topic in created if self.routes.published.get(topic) is None]
        for position, topic in enumerate(missing):
            near = topics if position < compared_max else ()
            if _missing(topic) in self.troubles.present:
                meant = nearest_name(topic, near)
                log.warning("a topic is still missing", group=group, topic=topic, nearest=meant)
                continue
            error = RouteNotFound(
                f"no broker has the topic {topic}{did_you_mean(topic, near)}, and group {group} waits "
                "for it; the first message creates it where brokers allow that; else create it (libra "
                f"admin updateTopic -c CLUSTER -t {topic}) or correct the name"
            )
            self.troubles.begin(_missing(topic), error)
        self._without_topic = frozenset(sorted(masters)[:WITHOUT_TOPIC_MAX])
        self.meet()

    # Brokers.

    def _addresses(self) -> frozenset[str]:
        return frozenset(self.routes.addresses()) or self._without_topic

    @property
    def all_offer(self) -> bool:
        """Return whether every broker that answered offers coordinated groups."""
        return bool(self.alive) and self.alive <= self.offering

    @property
    def is_mixed(self) -> bool:
        """Return whether some live brokers coordinate groups and others do not, or not this one."""
        return not self._coordinating.isdisjoint(self.alive) and not self.alive <= self.offering

    @property
    def all_named_offer(self) -> bool:
        """Return whether every broker in the routes is known to offer coordinated groups."""
        return self._known <= self.offering

    def addresses_to_query(self) -> list[str]:
        """Return the brokers to query, sorted: those that answered; if none did, all masters."""
        return sorted(self.alive) or sorted(self.routes.masters())

    def meet(self) -> None:
        """Send heartbeats to the brokers that are new in the routes."""
        addresses = self._addresses()
        new, self._known = addresses - self._known, addresses
        self.alive &= addresses
        self.send_heartbeats(new)

    def heartbeat_answered(
        self, address: str, outcome: HeartbeatReply | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the result of a heartbeat."""
        self._unanswered[address] = max(0, self._unanswered[address] - 1)
        if address in self._leaving and not self._unanswered[address]:
            self._leave(address, now_ms)
            return
        about = f"broker {address}"
        is_known = about in self.troubles.present and isinstance(outcome, NoPermission)
        self.troubles.answered(about, outcome, keeps_out=True)
        if isinstance(outcome, LibraError):
            if not is_known:  # Otherwise it would be logged every second.
                log_failed_request(log, "heartbeat failed", outcome, broker=address)
            if not self._is_closed:
                self._try_again(address, now_ms + RECONNECT_AGAIN_MS)
            return
        if self._is_closed or address in self.alive:
            return
        self.alive.add(address)
        for each in (self.offering, self._coordinating):
            (each.add if outcome.coordinates else each.discard)(address)
        self.met(address, now_ms)

    def lost(self, address: str, now_ms: MonotonicMs) -> None:
        """Handle a lost connection: the broker has dropped us, or has died."""
        if address in self.alive and not self._is_closed:
            self._try_again(address, now_ms + RECONNECT_MS)

    def _try_again(self, address: str, due_ms: MonotonicMs) -> None:
        self.alive.discard(address)
        if address not in self._to_reconnect:
            self._to_reconnect.add(address)
            self.kernel.deadlines.set(due_ms, partial(self._reconnect, address))

    def _reconnect(self, address: str, now_ms: MonotonicMs) -> None:
        self._to_reconnect.discard(address)
        is_silent = address in self._addresses() and address not in self.alive
        if is_silent and not self._is_closed:
            self.send_heartbeats([address])

    # Heartbeats.

    def _regular(self, now_ms: MonotonicMs) -> None:
        """Send the periodic heartbeats; silent brokers are retried on a separate schedule."""
        self._heartbeats_due.at(now_ms + self._settings.heartbeat_ms)
        self.send_heartbeats(self._addresses() - self._to_reconnect)

    def changed(self, now_ms: MonotonicMs) -> None:
        """Send heartbeats because our queues have changed."""
        # Brokers accept a subscription as newer only with a higher version: the wall clock's first reading,
        # continued by the monotonic clock, which is never set back.
        assert self._started is not None, "nothing is ours before the start"
        self._version = max(self._version + 1, int(self._started.wall_of(now_ms)))
        self.send_heartbeats(self.alive)

    def lease_changed(self, *, ended: bool) -> None:
        """Send heartbeats because our lease has ended, or was renewed after its end."""
        self._lease_ended = ended
        self.send_heartbeats(self.alive)

    def allocating_changed(self) -> None:
        """Send heartbeats if members have begun or stopped allocating for themselves beside a stock broker.

        Brokers with coordination refuse commits without an epoch until they know of a member that has none.
        """
        was, self._allocates = self._allocates, self.is_mixed
        if self._allocates != was:
            self.send_heartbeats(self.alive)

    def send_heartbeats(self, addresses: Iterable[str]) -> None:
        """Send heartbeats to brokers."""
        data = heartbeat_data(self._settings, self._subscriptions, self._version)
        coordinated = self._settings.is_member and not self._allocates
        call = heartbeat(data, coordinated=coordinated, lease_ended=self._lease_ended)
        addresses = sorted(addresses)
        self._unanswered.update(addresses)
        for address in addresses:
            self.kernel.ask(address, call, partial(self.heartbeat_answered, address))

    # The end.

    def unregister(self, now_ms: MonotonicMs) -> None:
        """Unregister at each broker that has answered all heartbeats, or after LEAVE_TIMEOUT_MS; then stop.

        Apache's brokers handle the two on different threads: a heartbeat handled after the unregistration
        would keep us a member, with unread queues, for two minutes.
        """
        self._leaving, self._awaited = set(self.alive), self.alive - self.silent
        for address in sorted(self.alive):
            if self._unanswered[address] > 0 and address not in self.silent:
                self.kernel.deadlines.set(now_ms + LEAVE_TIMEOUT_MS, partial(self._leave, address))
            else:
                self._leave(address, now_ms)
        if not self._awaited:
            self._effects.add(fx.Stopped())

    def _leave(self, address: str, _: MonotonicMs) -> None:
        if address not in self._leaving:
            return
        self._leaving.discard(address)
        settings = self._settings
        call = unregister_client(settings.client_id, producer_group=None, consumer_group=settings.group)
        self.kernel.ask(address, call, partial(self._left, address), LEAVE_TIMEOUT_MS)

    def _left(self, address: str, outcome: LibraError | None, _: MonotonicMs) -> None:
        self._awaited.discard(address)
        if not self._awaited:
            self._effects.add(fx.Stopped())

    def _update(self, topic: str, route: TopicRouteData) -> bool:
        try:
            return self.routes.update(topic, route)
        except LibraError as error:
            log.warning("route ignored", topic=topic, reason=str(error))
            return False


def _missing(topic: str) -> str:
    """Return the subject of the trouble of a missing topic."""
    return f"missing {topic}"


def _is_created(topic: str) -> bool:
    """Return whether a topic must be created explicitly: neither a retry topic nor a light one."""
    return not topic.startswith(RETRY_PREFIX) and not is_light(topic)
