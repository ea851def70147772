"""The name servers: which one is queried, when the next one is, and the error for a missing topic.

Upstream: NettyRemotingClient.getAndCreateNameserverChannel.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from libramq.client.routing.publish_info import as_template
from libramq.clock import MonotonicMs
from libramq.errors import (
    BrokerError,
    LibraError,
    NameServerUnavailable,
    RemoteError,
    RouteNotFound,
    TopicNotExist,
    did_you_mean,
)
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from libramq.remoting.command import Command
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import (
    all_topics,
    name_server_result,
    name_servers_unavailable,
    topic_route,
)
from libramq.transport.access import REQUEST_TIMEOUT_MS
from libramq.transport.outages import log_failed_request
from libramq.transport.remotes import Remotes

log = get_logger(__name__)
T = TypeVar("T")

#: Called with a route, or the reason why there is none.
Routed = Callable[[TopicRouteData | LibraError], None]
#: Called with the routes of topics (None for no route), and the error if no name server answered.
Found = Callable[[dict[str, TopicRouteData | None], NameServerUnavailable | None], None]

#: Ours: how many missing topics have their nearest name cached. Otherwise each send would search again, which
#: takes a second among 10,000 names.
HINTS_MAX: Final = 100
#: Ours: how long a nearest name is cached: ClientConfig.pollNameServerInterval, at which routes are
#: refreshed.
HINT_MS: Final = 30_000


class NameServers:
    """Queries one name server, and the next if it does not answer."""

    def __init__(
        self,
        remotes: Remotes,
        addresses: Sequence[str],
        randomness: random.Random,
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        self._remotes = remotes
        self._listed = addresses
        self._randomness = randomness
        self._seen: tuple[str, ...] = ()
        self._addresses: list[str] = []
        self._current = 0
        self._monotonic_ms = monotonic_ms
        self._hints: dict[str, tuple[str, MonotonicMs]] = {}  # The hint and its expiry, by topic.
        self._follow()

    def _follow(self) -> None:
        """Adopt a changed list of servers; keep using the current one if it is still listed."""
        listed = tuple(self._listed)
        if listed == self._seen or not listed:
            return
        current = self._addresses[self._current] if self._addresses else None
        self._seen, self._addresses = listed, list(listed)
        self._randomness.shuffle(self._addresses)
        self._current = self._addresses.index(current) if current in self._addresses else 0

    def ask(
        self,
        call: Call[T],
        answered: Callable[[T | LibraError], None],
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Make a call; `answered` gets the result, its error, or NameServerUnavailable."""
        self._follow()
        failures: list[str] = []

        def ask_current() -> None:
            address = self._addresses[self._current]

            def done(reply: Command | RemoteError) -> None:
                outcome = _outcome(call, reply, address)
                if not isinstance(outcome, LibraError) or isinstance(outcome, BrokerError):
                    answered(outcome)
                    return
                failures.append(str(outcome))
                if address == self._addresses[self._current]:  # Else another request has switched already.
                    self._current = (self._current + 1) % len(self._addresses)
                if len(failures) < len(self._addresses):
                    ask_current()
                else:
                    answered(name_servers_unavailable(failures))

            self._remotes.send(address, call.command(), done, timeout_ms=timeout_ms)

        ask_current()

    def ask_each(
        self,
        call: Call[None],
        answered: Callable[[LibraError | None], None],
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Send a request to every name server; `answered` gets the first failure at the end."""
        self._follow()
        waiting = dict.fromkeys(self._addresses)
        failures: list[LibraError] = []

        def done(address: str, reply: Command | RemoteError) -> None:
            outcome = _outcome(call, reply, address)
            if outcome is not None:
                failures.append(outcome)
            del waiting[address]
            if not waiting:
                answered(failures[0] if failures else None)

        for address in self._addresses:
            self._remotes.send(address, call.command(), partial(done, address), timeout_ms=timeout_ms)

    def route(self, topic: str, routed: Routed) -> None:
        """Look up a topic; RouteNotFound, with the most similar name, if no broker has it."""

        def answered(outcome: TopicRouteData | LibraError) -> None:
            if isinstance(outcome, RouteNotFound):
                self._name_nearest(topic, routed)
            else:
                routed(outcome)

        self._look_up(topic, answered)

    def _look_up(self, topic: str, routed: Routed) -> None:
        def answered(outcome: TopicRouteData | LibraError) -> None:
            routed(self._missing(topic) if isinstance(outcome, TopicNotExist) else outcome)

        self.ask(topic_route(topic), answered)

    def _name_nearest(self, topic: str, routed: Routed) -> None:
        """Report a missing topic, with the most similar existing name."""
        known, until_ms = self._hints.get(topic, ("", None))
        is_current = until_ms is not None and self._monotonic_ms() < until_ms
        if is_current or topic.startswith(RETRY_PREFIX):  # Users do not type retry topics.
            routed(self._missing(topic, known))
            return

        def listed(topics: list[str] | LibraError) -> None:
            hint = ""
            if not isinstance(topics, LibraError):
                if len(self._hints) >= HINTS_MAX:
                    self._hints.clear()
                hint = did_you_mean(topic, topics)
                self._hints[topic] = hint, self._monotonic_ms() + HINT_MS
            routed(self._missing(topic, hint))

        self.ask(all_topics(), listed)

    def _missing(self, topic: str, hint: str = "") -> RouteNotFound:
        namesrv = self._addresses[self._current]
        return RouteNotFound(
            f"no broker has the topic {topic}{hint}; create it "
            f"(libra admin updateTopic -n {namesrv} -c CLUSTER -t {topic}) or check its name"
        )

    def route_to_send(self, topic: str, routed: Routed, *, queue_count: int) -> None:
        """Look up a topic; if brokers create topics on the first send, return its future route."""

        def found(outcome: TopicRouteData | LibraError) -> None:
            if not isinstance(outcome, RouteNotFound):
                routed(outcome)
                return

            def template(found: TopicRouteData | LibraError) -> None:
                if isinstance(found, RouteNotFound):
                    self._name_nearest(topic, routed)
                elif isinstance(found, LibraError):
                    routed(found)
                else:
                    routed(as_template(found, queue_count))

            self._look_up(AUTO_CREATE_TOPIC, template)

        self._look_up(topic, found)

    def routes(self, topics: Sequence[str], found: Found) -> None:
        """Look up topics one after the other; the search ends if no name server answers."""
        routes: dict[str, TopicRouteData | None] = dict.fromkeys(topics)
        rest = iter(topics)

        def look_up_next() -> None:
            topic = next(rest, None)
            if topic is None:
                found(routes, None)
            else:
                self._look_up(topic, lambda outcome: routed(topic, outcome))

        def routed(topic: str, outcome: TopicRouteData | LibraError) -> None:
            if isinstance(outcome, NameServerUnavailable):
                found(routes, outcome)
                return
            if isinstance(outcome, RouteNotFound):
                log.debug("no route", topic=topic, reason=str(outcome))
            elif isinstance(outcome, LibraError):
                log_failed_request(log, "route not refreshed", outcome, topic=topic)
            else:
                routes[topic] = outcome
            look_up_next()

        look_up_next()


def _outcome(call: Call[T], reply: Command | RemoteError, address: str) -> T | LibraError:
    """Return the result in a name server's response, or its error."""
    if isinstance(reply, RemoteError):
        return reply
    try:
        return name_server_result(call, reply, address)
    except LibraError as error:
        return error
