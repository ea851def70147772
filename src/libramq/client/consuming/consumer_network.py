"""The network side of every kind of consumer: performs the effects of its core.

    core ─► effects ─► requests ─► answers ─► core
                  └──► deliveries ─► handlers (elsewhere) ─► results ─► core

It uses neither sockets nor loops itself: `consumer_run` runs it on a thread, the simulator in virtual time.
Upstream: impl/MQClientInstance.java, MQClientAPIImpl.java, PullMessageService.java.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, Required, TypeVar, Unpack, get_args, get_origin

from libramq.client.beginning import Begun, GroupBeginning, places_of, take_steps
from libramq.client.consuming import effects as fx
from libramq.client.consuming.broker_requests import BrokerRequests, Core, DirectDelivery
from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.fetching.fetching import Fetching
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.pop.pop_consumer_core import PopConsumerCore
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.consuming.subscription import heartbeat_data, with_retry_topic
from libramq.client.network_thread import NetworkSeams
from libramq.client.options import ConsumeFrom
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.publish_info import subscribe_queues
from libramq.clock import MonotonicMs, read_clock
from libramq.errors import (
    ConfigError,
    ConnectionLost,
    LibraError,
    NameServerUnavailable,
    RemoteError,
    RequestTimeout,
    RouteNotFound,
)
from libramq.filter.subscription import Selector
from libramq.formats.route import TopicRouteData
from libramq.kernel.engine import Engine, Hooks
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command
from libramq.rpc.broker_calls import heartbeat
from libramq.rpc.call import Call
from libramq.runtime.performer import Performer, Performers
from libramq.runtime.seams import Seams, Timer
from libramq.transport.access import OPEN
from libramq.transport.outages import Outages, log_failed_request
from libramq.transport.remotes import Remotes

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: how many LEAVE_TIMEOUT_MS a stop may take after the drain: for the listener, the last commits,
#: leaving the coordinator, unregistering at the brokers, and one to spare.
STOP_ROUNDS: Final = 5
#: Ours: how long a restarted member waits for its predecessor to stop (STOP_TIMEOUT_MS).
OWNER_WAIT_MS: Final = 10_000
#: Ours: how often it checks.
OWNER_LOOK_MS: Final = 100


class Run(Protocol):
    """The receiver of the network's deliveries and changes."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Run handlers."""

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return."""

    def notify(self, change: fx.QueueChange) -> None:
        """Call the hooks."""

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Report a problem that stops deliveries to the user."""

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Report that the problem is over."""


def log_failure(what: str, error: Exception) -> None:
    """Log a bug of LibraMQ; a failing log handler of the program must not stop the network side."""
    with contextlib.suppress(Exception):
        log.error(what, exc_info=error)


class ConsumerSeams(NetworkSeams, total=False):
    """The seams of a consumer's network. failed: called with exceptions that are bugs of LibraMQ."""

    run: Required[Run]
    failed: Callable[[str, Exception], None]


class ConsumerNetwork:
    """One membership, from `start` to `stop`. All methods are called on one thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        *,
        stored_offsets: LocalOffsetStore | None = None,
        **seams: Unpack[ConsumerSeams],
    ) -> None:
        """Set up the network side. stored_offsets: the local offset store of a broadcasting member."""
        clock, run, self._failed = seams["clock"], seams["run"], seams.get("failed", log_failure)
        new_core = PopConsumerCore if settings.pop else PushConsumerCore
        self.core: Core = new_core(settings, subscriptions, clock, self._failed)
        self._local_offsets = stored_offsets
        self._settings = settings
        self._subscriptions = subscriptions
        self._beginning = _beginning(settings, subscriptions)
        self._timers = seams["timers"]
        self._clock = clock
        self._remotes = Remotes(
            seams["dialer"],
            self._timers,
            clock.monotonic_ms,
            on_request=self._request_received,
            lost=self._lost,
            access=seams.get("access", OPEN),
            outages=Outages(clock.monotonic_ms),
        )
        self._name_servers = NameServers(
            self._remotes, seams["name_server_addresses"], seams["randomness"], clock.monotonic_ms
        )
        self._broker_requests = BrokerRequests(
            settings,
            subscriptions,
            self.core,
            clock,
            name_servers=seams["name_server_addresses"],
            event=self._event,
            deliver=run.deliver,
        )
        self._performer = Performer(
            Engine(self.core.kernel, None, Hooks(settle=[self.core.settle])),
            Seams(self._remotes, self._timers),
            monotonic_ms=clock.monotonic_ms,
            failed=self._failed,
            others=self._performers(run),
        )
        self._owner_timer: Timer | None = None
        self._is_running = False
        self._stopped: Callable[[None], None] | None = None
        self._stop_timer: Timer | None = None

    def _performers(self, run: Run) -> Performers:
        performers: Performers = {
            fx.Deliver: lambda effect: run.deliver(effect.deliveries),
            fx.Abandon: lambda effect: run.give_up(effect.deliveries),
            fx.Assigned: run.notify,
            fx.Revoked: run.notify,
            fx.Lost: run.notify,
            fx.CommitsEnded: lambda effect: effect.ended(effect.error),
            fx.ReadOffset: self._read_offset,
            fx.StoreOffsets: lambda effect: self._stored_offsets.write(effect.offsets),
            fx.Ask: self.ask,
            fx.FetchRoutes: self._fetch_routes,
            fx.Trouble: run.begin_trouble,
            fx.Recovered: run.end_trouble,
            fx.Stopped: lambda _: self.end(),
        }
        kinds = {get_origin(each) or each for each in get_args(fx.Effect)}
        assert performers.keys() == kinds, "each effect has a performer"
        return performers

    # Start and stop.

    def start(self, started: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes and start; after NameServerUnavailable everything is closed.

        A broadcasting member first waits until its offset file has no other owner.
        """
        if self._local_offsets is None:
            self._start(started)
        else:
            self._start_as_owner(self._local_offsets, self._clock.monotonic_ms() + OWNER_WAIT_MS, started)

    def _start_as_owner(
        self, store: LocalOffsetStore, until_ms: MonotonicMs, started: Callable[[LibraError | None], None]
    ) -> None:
        if not store.lock():
            if self._clock.monotonic_ms() < until_ms:
                look_again = partial(self._start_as_owner, store, until_ms, started)
                self._owner_timer = self._timers.after(OWNER_LOOK_MS, look_again)
                return
            started(
                ConfigError(
                    f"another member of group {self._settings.group} on this machine keeps its offsets in "
                    f"{store.path}; give each member an instance_name of its own"
                )
            )
            return
        try:
            store.load()
        except LibraError as error:
            started(error)
            return
        self._start(started)

    def _start(self, started: Callable[[LibraError | None], None]) -> None:
        self.core.start(read_clock(self._clock))
        fetch = self.core.kernel.effects.pending.pop()
        assert isinstance(fetch, fx.FetchRoutes), "a consumer starts with its routes"

        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is not None:
                self._close()
                started(unavailable)
                return
            self._begin(routes, partial(begun, routes))

        def begun(routes: Mapping[str, TopicRouteData | None], outcome: Begun) -> None:
            if self._remotes.why_closed:
                started(ConnectionLost(self._remotes.why_closed))
                return
            self._is_running = True
            self.core.began(outcome, self._beginning)
            self._event(partial(fetch.done, routes))
            started(None)

        self._name_servers.routes(fetch.topics, found)

    def find_name_server(self, found: Callable[[LibraError | None], None]) -> None:
        """Call back when a name server has answered, or with NameServerUnavailable."""
        topics = tuple(self._subscriptions)[:1]
        self._name_servers.routes(topics, lambda _, unavailable: found(unavailable))

    def _begin(self, routes: Mapping[str, TopicRouteData | None], begun: Callable[[Begun], None]) -> None:
        """Commit first offsets in topics that are new to the group, before anything is read."""
        if self._beginning is None:
            begun(Begun())
            return
        places = [place for place in places_of(routes) if place.topic in self._subscriptions]
        wall_ms, store = int(self._clock.wall_ms()), self._local_offsets
        if store is None:
            steps = self._beginning.begin(self._subscriptions, places, wall_ms)
        else:
            steps = self._beginning.begin_locally(
                self._subscriptions, places, wall_ms, read=store.read, write=store.write
            )
        take_steps(steps, self._remotes, begun)

    def stop(self, timeout_ms: int, stopped: Callable[[None], None]) -> None:
        """Let handlers finish, commit, and unregister."""
        if not self._is_running:
            self._close()
            stopped(None)
            return
        self._stopped = stopped
        self._stop_timer = self._timers.after(timeout_ms + STOP_ROUNDS * LEAVE_TIMEOUT_MS, self._stop_is_late)
        self._event(partial(self.core.stop, timeout_ms=timeout_ms))

    def _stop_is_late(self) -> None:
        log.warning("the consumer could not unregister in time", group=self._settings.group)
        self.end()

    def end(self) -> None:
        """End now, without the remaining commits, and without unregistering."""
        self._is_running = False
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._close()
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped(None)

    def _close(self) -> None:
        self._performer.stop()
        self._remotes.close()
        if self._owner_timer is not None:
            self._owner_timer.cancel()
        if self._local_offsets is not None:
            self._local_offsets.release()

    # The program.

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers for queues (None: for any)."""
        self._call(partial(self.core.pause, queues))

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue queues (None: all)."""
        self._call(partial(self.core.resume, queues))

    def hook_done(self, change: fx.QueueChange) -> None:
        """Note that the listener has finished with queues."""
        if self._is_running:
            self._event(partial(self.core.hook_done, change))

    @property
    def fetching(self) -> Fetching:
        """Return the core's part for a program that fetches messages itself."""
        assert isinstance(self.core, PushConsumerCore), "a program that fetches pops nothing"
        return self.core.fetching

    def fetch(self, request: Callable[[Fetching, MonotonicMs], None]) -> None:
        """Seek, commit or assign; raises LocalProtocolError for a queue that is not assigned."""
        self._call(partial(request, self.fetching))

    def look_up(self, topics: Sequence[str], known: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes of topics; RouteNotFound if one has none."""

        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is None and self._is_running:
                self._event(partial(self.core.known_brokers.routes_fetched, routes))
            missing = [topic for topic in topics if self.core.routes.published.get(topic) is None]
            if missing and unavailable is None:
                self._name_servers.route(missing[0], named)
            else:
                known(unavailable)

        def named(outcome: TopicRouteData | LibraError) -> None:
            """Report a missing topic, with the most similar existing name."""
            appeared = RouteNotFound("a topic appeared just now, or has no usable route; try again")
            known(outcome if isinstance(outcome, LibraError) else appeared)

        self._name_servers.routes(topics, found)

    def queues_of(self, topic: str, answered: Callable[[Sequence[MessageQueue] | LibraError], None]) -> None:
        """Fetch the queues of a topic, whether it is subscribed or not."""

        def routed(route: TopicRouteData | LibraError) -> None:
            if isinstance(route, TopicRouteData) and route.lb_absent_brokers:
                log.warning(
                    "brokers that had a topic are away, and their queues are not listed",
                    topic=topic,
                    brokers=route.lb_absent_brokers,
                )
            try:
                answered(route if isinstance(route, LibraError) else subscribe_queues(topic, route))
            except LibraError as error:
                answered(error)

        self._name_servers.route(topic, routed)

    def ask_master(
        self, queue: MessageQueue, call: Call[T], answered: Callable[[T | LibraError], None]
    ) -> None:
        """Make a request about a queue to the broker that stores it."""
        address = self.core.routes.master(queue.broker_name)
        if address is None:
            answered(RouteNotFound(f"no master of broker {queue.broker_name} is known; its queue is {queue}"))
            return
        self.ask(fx.Ask(address, call, lambda outcome, _: answered(outcome)))

    # Events.

    def handled(self, results: Iterable[tuple[Delivery, Ending]]) -> None:
        """Take the results of handlers that have returned."""
        if not self._is_running:
            return
        of_queues = []
        for delivery, ending in results:
            if isinstance(delivery, DirectDelivery):
                delivery.ended(delivery.result(ending), ending)
            else:
                of_queues.append((delivery, ending))
        self._event(partial(self.core.handled, of_queues))

    def _request_received(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        """Handle a broker's request; it gets no answer while the consumer does not run."""
        if self._is_running:
            self._broker_requests.handle(request, answer)

    def _lost(self, address: str) -> None:
        if self._is_running:
            self._event(partial(self.core.connection_lost, address))

    def _event(self, event: Callable[[MonotonicMs], None]) -> None:
        """Pass an event to the core and perform its decisions, even if it fails midway."""
        try:
            self._call(event)
        except Exception as error:  # It must not close a connection or leave a call waiting.
            self._failed("an event could not be processed", error)

    def _call(self, request: Callable[[MonotonicMs], None]) -> None:
        """Pass a call of the program to the core and perform its decisions; raises the core's error."""
        try:
            request(self._clock.monotonic_ms())
        finally:
            self._performer.follow()

    # Effects.

    def _read_offset(self, effect: fx.ReadOffset) -> None:
        stored = self._stored_offsets.read(effect.queue)
        self._event(partial(effect.done, stored))

    @property
    def _stored_offsets(self) -> LocalOffsetStore:
        assert self._local_offsets is not None, "a broadcasting consumer has a local offset store"
        return self._local_offsets

    def ask(self, ask: fx.Ask[Any]) -> None:
        """Make a request; its result or error goes to the part of the core that asked."""
        if ask.address == fx.NAME_SERVER:
            self._name_servers.ask(ask.call, partial(self._answered, ask), timeout_ms=ask.timeout_ms)
            return

        def done(reply: Command | LibraError) -> None:
            self._answered(ask, ask.call.outcome(reply, where=f"broker {ask.address}"))

        self._remotes.send(
            ask.address, ask.call.command(), done, timeout_ms=ask.timeout_ms, takes_late=ask.takes_late
        )

    def _answered(self, ask: fx.Ask[Any], outcome: Any) -> None:
        if not self._is_running:
            return
        if self._stopped is not None and isinstance(outcome, RequestTimeout):
            self.core.known_brokers.silent.add(ask.address)
        for _ in range(2):
            try:
                ask.done(outcome, self._clock.monotonic_ms())
                break
            except Exception as error:  # A fault in one response must not close the connection for all.
                self._failed(f"a response of {ask.address} could not be processed", error)
                # The core retries, as after every failed request; its decisions so far are performed.
                outcome = RemoteError(f"the response of broker {ask.address} could not be processed")
        self._performer.follow()

    def _fetch_routes(self, effect: fx.FetchRoutes) -> None:
        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is not None:
                log_failed_request(log, "routes not refreshed", unavailable)
            if self._is_running:
                self._event(partial(effect.done, routes))

        self._name_servers.routes(effect.topics, found)


def _beginning(settings: ConsumerSettings, subscriptions: Mapping[str, Selector]) -> GroupBeginning | None:
    """Return the rule for topics that are new to the group; None: begin with the oldest messages."""
    if settings.consume_from is ConsumeFrom.FIRST_OFFSET or settings.assigns:
        return None
    timestamp_ms = settings.consume_timestamp_ms if settings.consume_from is ConsumeFrom.TIMESTAMP else None
    data = heartbeat_data(settings, with_retry_topic(settings, subscriptions), version=0)
    return GroupBeginning(settings.group, timestamp_ms, heartbeat(data, coordinated=settings.is_member))
