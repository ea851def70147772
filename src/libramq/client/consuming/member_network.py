"""The network side of a member of a group, whatever it consumes by: performs the effects of its core.

    core ─► effects ─► requests ─► answers ─► core
                  └──► deliveries ─► handlers (elsewhere) ─► results ─► core

It uses neither sockets nor loops itself: `consumer_run` runs it on a thread, the simulator in virtual time.
Upstream: impl/MQClientInstance.java, MQClientAPIImpl.java.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, Required, Unpack

from libramq.client.beginning import Begun, GroupBeginning, QueuesAtBroker, Steps, places_of, take_steps
from libramq.client.consuming import effects as fx
from libramq.client.consuming.broker_requests import BrokerRequests, DirectDelivery, Served
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.effects import Effects, Performers
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.consuming.subscription import heartbeat_data, with_retry_topic
from libramq.client.consuming.work import WorkInHand
from libramq.client.network_thread import NetworkSeams
from libramq.client.options import ConsumeFrom
from libramq.client.routing.name_servers import NameServers
from libramq.clock import MonotonicMs, Now, read_clock
from libramq.codes import RequestCode
from libramq.errors import ConnectionLost, LibraError, NameServerUnavailable, RemoteError, RequestTimeout
from libramq.filter.subscription import Selector
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command
from libramq.rpc.broker_calls import heartbeat, unregister_client
from libramq.runtime.seams import Timer
from libramq.transport.access import OPEN
from libramq.transport.outages import Outages, log_failed_request
from libramq.transport.remotes import Remotes

log = get_logger(__name__)

#: Ours: after the drain time: for the listener, for last commits, for unregistering (at the coordinator and
#: the brokers), and one to spare.
STOP_ROUNDS: Final = 5


class Run(Protocol):
    """The receiver of the network's deliveries and changes."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Run handlers."""

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return."""

    def notify(self, change: fx.QueueChange) -> None:
        """Call the hooks."""

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Report to the user what stops the delivery of messages."""

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Report that the problem is over."""


def log_failure(what: str, error: Exception) -> None:
    """Log a bug of ours; what the program's log does with it must not end our work."""
    with contextlib.suppress(Exception):
        log.error(what, exc_info=error)


class Core(Served, Protocol):
    """The core: one method for each event; each returns the effects to perform."""

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when `tick` has to be called."""

    def start(self, now: Now) -> Effects:
        """Start by fetching the routes."""

    def tick(self, now_ms: MonotonicMs) -> Effects:
        """Perform everything that is due."""

    def connection_lost(self, address: str, now_ms: MonotonicMs) -> Effects:
        """Handle the end of a connection."""

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> Effects:
        """Handle the results of handlers."""

    def stop(self, now_ms: MonotonicMs, *, timeout_ms: int) -> Effects:
        """Let running handlers finish, then unregister."""

    def unregistered(self) -> Effects:
        """Handle the end of unregistering."""

    def settled(self, effects: Effects, now_ms: MonotonicMs) -> Effects:
        """Return an event's effects with what follows from it."""


class Seams(NetworkSeams, total=False):
    """The seams of a consumer's network. failed: called with failures that are bugs of ours."""

    run: Required[Run]
    failed: Callable[[str, Exception], None]


class MemberNetwork(ABC):
    """One membership, from `start` to `stop`. All methods are called on one thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        core: Core,
        **seams: Unpack[Seams],
    ) -> None:
        clock, run = seams["clock"], seams["run"]
        self._core = core
        self._settings = settings
        self._subscriptions = subscriptions
        self._beginning = _beginning(settings, subscriptions)
        self._timers = seams["timers"]
        self._clock = clock
        self._run = run
        self._failed = seams.get("failed", log_failure)
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
            core,
            clock,
            name_servers=seams["name_server_addresses"],
            perform=self._perform,
            deliver=run.deliver,
        )
        #: Networks add the performers of what only their core has.
        self._performers: Performers = {
            fx.Deliver: self._deliver,
            fx.Abandon: self._abandon,
            fx.Ask: self.ask,
            fx.FetchRoutes: self._fetch_routes,
            fx.Trouble: run.begin_trouble,
            fx.Recovered: run.end_trouble,
            fx.Unregister: self._unregister,
            fx.Stopped: self._end,
        }
        self._timer: Timer | None = None
        self._timer_due_ms = MonotonicMs(0)
        self._is_running = False
        self._stopped: Callable[[None], None] | None = None
        self._stop_timer: Timer | None = None
        #: Brokers that did not answer a request during the stop: it waits for no further answer of theirs.
        self._silent: set[str] = set()
        #: Heartbeats without an answer, by broker, and what is sent to it once they are answered.
        self._heartbeats: Counter[str] = Counter()
        self._leaving: dict[str, Callable[[], None]] = {}

    @abstractmethod
    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are this member's, sorted."""

    @abstractmethod
    def work(self) -> WorkInHand:
        """Return what the consumer has in hand, for its statistics."""

    @abstractmethod
    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers for queues (None: for any)."""

    @abstractmethod
    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue queues (None: all)."""

    @abstractmethod
    def hook_done(self, change: fx.QueueChange) -> None:
        """Note that the listener has finished with queues."""

    # Start and stop.

    def start(self, started: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes and start; after NameServerUnavailable everything is closed."""
        (fetch,) = self._core.start(read_clock(self._clock))
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
            self._began(outcome)
            self._perform(fetch.done(routes, self._clock.monotonic_ms()))
            started(None)

        self._name_servers.routes(fetch.topics, found)

    def find_name_server(self, found: Callable[[LibraError | None], None]) -> None:
        """Call back when a name server has answered, or with NameServerUnavailable."""
        topics = tuple(self._subscriptions)[:1]
        self._name_servers.routes(topics, lambda _, unavailable: found(unavailable))

    def _begin(self, routes: Mapping[str, TopicRouteData | None], begun: Callable[[Begun], None]) -> None:
        """Begin the topics to which the group is new, before anything is read."""
        if self._beginning is None:
            begun(Begun())
            return
        places = [place for place in places_of(routes) if place.topic in self._subscriptions]
        steps = self._steps_to_begin(self._beginning, places, int(self._clock.wall_ms()))
        take_steps(steps, self._remotes, begun)

    def _steps_to_begin(
        self, beginning: GroupBeginning, places: Sequence[QueuesAtBroker], wall_ms: int
    ) -> Steps:
        return beginning.begin(self._subscriptions, places, wall_ms)

    @abstractmethod
    def _began(self, begun: Begun) -> None:
        """Note from when queues without an offset are read."""

    def stop(self, timeout_ms: int, stopped: Callable[[None], None]) -> None:
        """Let handlers finish, commit, and unregister."""
        if not self._is_running:
            self._close()
            stopped(None)
            return
        self._stopped = stopped
        self._stop_timer = self._timers.after(timeout_ms + STOP_ROUNDS * LEAVE_TIMEOUT_MS, self._stop_is_late)
        self._perform(self._core.stop(self._clock.monotonic_ms(), timeout_ms=timeout_ms))

    def _stop_is_late(self) -> None:
        log.warning("the consumer could not unregister in time", group=self._settings.group)
        self.end()

    def end(self) -> None:
        """End now, without the remaining commits, and without unregistering."""
        self._is_running = False
        for timer in (self._timer, self._stop_timer):
            if timer is not None:
                timer.cancel()
        self._close()
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped(None)

    def _close(self) -> None:
        self._remotes.close()

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
        self._perform(self._core.handled(of_queues, self._clock.monotonic_ms()))

    def _request_received(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        """Handle a broker's request; one that cannot be answered yet gets no answer."""
        if self._is_running:
            self._broker_requests.handle(request, answer)

    def _lost(self, address: str) -> None:
        if self._is_running:
            self._perform(self._core.connection_lost(address, self._clock.monotonic_ms()))

    def _tick(self) -> None:
        self._timer = None
        if not self._is_running:
            return
        effects: Effects = []
        try:
            effects = self._core.tick(self._clock.monotonic_ms())
        except Exception as error:  # The timer is set again, for what else becomes due.
            self._failed("what was due could not be done", error)
        self._perform(effects)

    # Effects.

    def _perform(self, effects: Effects) -> None:
        """Settle an event, and perform its effects."""
        found = list(effects)
        try:
            found = self._core.settled(found, self._clock.monotonic_ms())
        except Exception as error:  # What was decided before it is done all the same.
            self._failed("what follows from an event could not be done", error)
        for effect in found:
            try:
                self._performers[type(effect)](effect)
            except Exception as error:  # A failed effect must not prevent the others.
                self._failed(f"the effect {type(effect).__name__} failed", error)
        self._arm()

    def _deliver(self, effect: fx.Deliver) -> None:
        self._run.deliver(effect.deliveries)

    def _abandon(self, effect: fx.Abandon) -> None:
        self._run.give_up(effect.deliveries)

    def _end(self, _: fx.Stopped) -> None:
        self.end()

    def _arm(self) -> None:
        """Set the timer to the core's next due time."""
        due_ms = self._core.next_due_ms
        if due_ms is None or not self._is_running:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._timers.after(max(0, due_ms - self._clock.monotonic_ms()), self._tick)

    def ask(self, ask: fx.Ask[Any]) -> None:
        """Make a request; its result or error goes to the part of the core that asked."""
        if ask.address == fx.NAME_SERVER:
            self._name_servers.ask(ask.call, partial(self._answered, ask), timeout_ms=ask.timeout_ms)
            return

        def done(reply: Command | LibraError) -> None:
            self._answered(ask, ask.call.outcome(reply, where=f"broker {ask.address}"))
            if is_heartbeat:
                self._heartbeats[ask.address] -= 1
                if not self._heartbeats[ask.address]:
                    self._leave(ask.address)

        is_heartbeat = ask.call.code is RequestCode.HEART_BEAT
        if is_heartbeat:
            self._heartbeats[ask.address] += 1

        self._remotes.send(
            ask.address, ask.call.command(), done, timeout_ms=ask.timeout_ms, takes_late=ask.takes_late
        )

    def _answered(self, ask: fx.Ask[Any], outcome: Any) -> None:
        if not self._is_running:
            return
        if self._stopped is not None and isinstance(outcome, RequestTimeout):
            self._silent.add(ask.address)
        for _ in range(2):
            try:
                effects = ask.done(outcome, self._clock.monotonic_ms())
            except Exception as error:  # A fault in one response must not close the connection for all.
                self._failed(f"a response of {ask.address} could not be processed", error)
                # The core asks again, as after every failed request.
                outcome = RemoteError(f"the response of broker {ask.address} could not be processed")
            else:
                self._perform(effects)
                return

    def _fetch_routes(self, effect: fx.FetchRoutes) -> None:
        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is not None:
                log_failed_request(log, "routes not refreshed", unavailable)
            if self._is_running:
                self._perform(effect.done(routes, self._clock.monotonic_ms()))

        self._name_servers.routes(effect.topics, found)

    def _unregister(self, effect: fx.Unregister) -> None:
        """Unregister at brokers, at each once it has answered our heartbeats, or LEAVE_TIMEOUT_MS later.

        Apache's brokers handle the two on different threads: a heartbeat handled after the leaving would keep
        us a member, with queues that nobody reads, for two minutes.
        """
        call = unregister_client(
            self._settings.client_id, producer_group=None, consumer_group=self._settings.group
        )
        waiting = len([each for each in effect.addresses if each not in self._silent])

        def answered(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting and self._is_running:
                self._perform(self._core.unregistered())

        def ignored(_: object) -> None:
            pass

        for address in effect.addresses:
            done = ignored if address in self._silent else answered
            self._leaving[address] = partial(
                self._remotes.send, address, call.command(), done, timeout_ms=LEAVE_TIMEOUT_MS
            )
            if self._heartbeats[address] and address not in self._silent:
                self._timers.after(LEAVE_TIMEOUT_MS, partial(self._leave, address))
            else:
                self._leave(address)
        if not waiting and self._is_running:
            self._perform(self._core.unregistered())

    def _leave(self, address: str) -> None:
        """Send what waited for a broker's answers to our heartbeats."""
        leave = self._leaving.pop(address, None)
        if leave is not None:
            leave()


def _beginning(settings: ConsumerSettings, subscriptions: Mapping[str, Selector]) -> GroupBeginning | None:
    """Return what begins topics to which the group is new; None if it begins with the oldest messages."""
    if settings.consume_from is ConsumeFrom.FIRST_OFFSET or settings.assigns:
        return None
    timestamp_ms = settings.consume_timestamp_ms if settings.consume_from is ConsumeFrom.TIMESTAMP else None
    data = heartbeat_data(settings, with_retry_topic(settings, subscriptions), version=0)
    return GroupBeginning(settings.group, timestamp_ms, heartbeat(data, coordinated=settings.is_member))
