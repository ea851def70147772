"""The network side of a push consumer: performs the effects of its core.

    core ─► effects ─► requests ─► answers ─► core
                  └──► deliveries ─► handlers (elsewhere) ─► results ─► core

It uses neither sockets nor loops itself: `consumer_run` runs it on a thread, the simulator in virtual time.
Upstream: impl/MQClientInstance.java, MQClientAPIImpl.java, PullMessageService.java.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar, assert_never

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.fetching.fetching import FetchRequest
from libramq.client.consuming.handling.direct_delivery import DirectDelivery
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.client.consuming.push_consumer_core import LEAVE_TIMEOUT_MS, PushConsumerCore
from libramq.client.consuming.requests.broker_requests import BrokerRequests
from libramq.client.consuming.requests.consumer_requests import ConsumerRequests
from libramq.client.consuming.requests.member_requests import MemberRequests
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.publish_info import subscribe_queues
from libramq.clock import Clock, MonotonicMs, read_clock
from libramq.errors import LibraError, NameServerUnavailable, RouteNotFound
from libramq.filter.selector import Selector
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command
from libramq.rpc.broker_calls import unregister_client
from libramq.rpc.call import Call
from libramq.runtime.seams import Dialer, Timer, Timers
from libramq.transport.access import OPEN, Access
from libramq.transport.outages import Outages, log_failed_request
from libramq.transport.remotes import Remotes
from libramq.transport.timeouts import REQUEST_TIMEOUT_MS

log = get_logger(__name__)
T = TypeVar("T")

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
    """Log a bug of ours."""
    log.error(what, exc_info=error)


class ConsumerNetwork:
    """One membership, from `start` to `stop`. All methods are called on one thread.

    failed: called with failures that are bugs of ours.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        *,
        name_server_addresses: Sequence[str],
        dialer: Dialer,
        timers: Timers,
        clock: Clock,
        randomness: random.Random,
        run: Run,
        stored_offsets: LocalOffsetStore | None = None,
        access: Access = OPEN,
        failed: Callable[[str, Exception], None] = log_failure,
    ) -> None:
        self.core = PushConsumerCore(settings, subscriptions, clock.monotonic_ms, failed)
        self._settings = settings
        self._subscriptions = subscriptions
        self._timers = timers
        self._clock = clock
        self._run = run
        self._local_offsets = stored_offsets
        self._failed = failed
        self._remotes = Remotes(
            dialer,
            timers,
            clock.monotonic_ms,
            on_request=self._request_received,
            lost=self._lost,
            access=access,
            outages=Outages(clock.monotonic_ms),
        )
        self._name_servers = NameServers(self._remotes, name_server_addresses, randomness)
        self._timer: Timer | None = None
        self._timer_due_ms = MonotonicMs(0)
        self._is_running = False
        self._stopped: Callable[[None], None] | None = None
        self._stop_timer: Timer | None = None
        self._requests = ConsumerRequests(settings, subscriptions, self.core, clock, self.ask)
        self._member_requests = MemberRequests(settings.group, self.core, self.ask)
        self._broker_requests = BrokerRequests(
            settings,
            subscriptions,
            self.core,
            clock,
            name_servers=name_server_addresses,
            perform=self._perform,
            deliver=run.deliver,
        )

    # Start and stop.

    def start(self, started: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes and start; after NameServerUnavailable everything is closed."""
        if self._local_offsets is not None:
            self._local_offsets.load()
        (fetch,) = self.core.start(read_clock(self._clock))
        assert isinstance(fetch, fx.FetchRoutes), "a consumer starts with its routes"

        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is not None:
                self._remotes.close()
                started(unavailable)
                return
            self._is_running = True
            self._perform(self.core.routes_fetched(routes, self._clock.monotonic_ms()))
            started(None)

        self._name_servers.routes(fetch.topics, found)

    def stop(self, timeout_ms: int, stopped: Callable[[None], None]) -> None:
        """Let handlers finish, commit, and unregister."""
        if not self._is_running:
            self._remotes.close()
            stopped(None)
            return
        self._stopped = stopped
        self._stop_timer = self._timers.after(timeout_ms + STOP_ROUNDS * LEAVE_TIMEOUT_MS, self._stop_is_late)
        self._perform(self.core.stop(self._clock.monotonic_ms(), timeout_ms=timeout_ms))

    def _stop_is_late(self) -> None:
        log.warning("the consumer could not unregister in time", group=self._settings.group)
        self.end()

    def end(self) -> None:
        """End now, without the remaining commits, and without unregistering."""
        self._is_running = False
        for timer in (self._timer, self._stop_timer):
            if timer is not None:
                timer.cancel()
        self._remotes.close()
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped(None)

    # Events.

    def handled(self, results: Iterable[tuple[Delivery, Ending]]) -> None:
        """Take the results of handlers that have returned."""
        if not self._is_running:
            return
        of_queues = []
        for delivery, ending in results:
            if isinstance(delivery, DirectDelivery):
                delivery.ended(delivery.result(ending))
            else:
                of_queues.append((delivery, ending))
        self._perform(self.core.handled(of_queues, self._clock.monotonic_ms()))

    def revoke_hook_done(self, queues: Sequence[MessageQueue]) -> None:
        """Note that the listener has finished with revoked queues."""
        if self._is_running:
            self._perform(self.core.revoke_hook_done(queues, self._clock.monotonic_ms()))

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers for queues."""
        self._perform(self.core.pause(queues, self._clock.monotonic_ms()))

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue queues."""
        self._perform(self.core.resume(queues, self._clock.monotonic_ms()))

    # Requests of a program that fetches messages itself.

    def fetch(self, request: FetchRequest) -> None:
        """Seek, commit or assign; raises LocalProtocolError for a queue that is not ours."""
        self._perform(self.core.fetch(request, self._clock.monotonic_ms()))

    def look_up(self, topics: Sequence[str], known: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes of topics; RouteNotFound if one has none."""

        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is None and self._is_running:
                self._perform(self.core.routes_fetched(routes, self._clock.monotonic_ms()))
            missing = [topic for topic in topics if self.core.routes.publish_info(topic) is None]
            if missing and unavailable is None:
                known(RouteNotFound(f"no broker has the topic {missing[0]}; create it, or check its name"))
            else:
                known(unavailable)

        self._name_servers.routes(topics, found)

    def queues_of(self, topic: str, answered: Callable[[Sequence[MessageQueue] | LibraError], None]) -> None:
        """Fetch the queues of a topic, whether it is subscribed or not."""

        def routed(route: TopicRouteData | LibraError) -> None:
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

        def passed_on(outcome: T | LibraError, _: MonotonicMs) -> Sequence[fx.Effect]:
            answered(outcome)
            return ()

        self.ask(address, call, passed_on, REQUEST_TIMEOUT_MS)

    # What others do.

    def _request_received(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        """Handle a broker's request; one that cannot be answered yet gets no answer."""
        if self._is_running:
            self._broker_requests.handle(request, answer)

    def _lost(self, address: str) -> None:
        if self._is_running:
            self._perform(self.core.connection_lost(address, self._clock.monotonic_ms()))

    def _tick(self) -> None:
        self._timer = None
        if self._is_running:
            self._perform(self.core.tick(self._clock.monotonic_ms()))

    # Effects.

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        for effect in effects:
            try:
                self.perform_one(effect)
            except Exception as error:  # A failed effect must not prevent the others.
                self._failed(f"the effect {type(effect).__name__} failed", error)
        self._arm()

    def perform_one(self, effect: fx.Effect) -> None:
        """Perform an effect."""
        match effect:
            case fx.Deliver(deliveries):
                self._run.deliver(deliveries)
            case (
                fx.Pull() | fx.CommitOffset() | fx.SendBack() | fx.SendCopy() | fx.SendHeartbeat()
                | fx.FetchConsumerList() | fx.QueryOffset() | fx.MaxOffset() | fx.SearchOffset()
                | fx.LockQueues() | fx.UnlockQueues()
            ):  # fmt: skip
                self._requests.send(effect)
            case (
                fx.PollGroup() | fx.OpenQueue() | fx.ReleaseQueues()
                | fx.FindGroup() | fx.JoinGroup() | fx.LeaveGroup()
            ):  # fmt: skip
                self._member_requests.send(effect)
            case fx.Assigned() | fx.Revoked() | fx.Lost():
                self._run.notify(effect)
            case fx.Abandon(deliveries):
                self._run.give_up(deliveries)
            case fx.CommitsEnded(ended, error):
                ended(error)
            case fx.ReadOffset():
                self._read_offset(effect)
            case fx.StoreOffsets(offsets):
                self._stored_offsets().write(offsets)
            case fx.FetchRoutes():
                self._fetch_routes(effect)
            case fx.Trouble():
                self._run.begin_trouble(effect)
            case fx.Recovered():
                self._run.end_trouble(effect)
            case fx.Unregister():
                self._unregister(effect)
            case fx.Stopped():
                self.end()
            case _:
                assert_never(effect)

    def _arm(self) -> None:
        """Set the timer to the core's next due time."""
        due_ms = self.core.next_due_ms
        if due_ms is None or not self._is_running:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._timers.after(max(0, due_ms - self._clock.monotonic_ms()), self._tick)

    def ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Sequence[fx.Effect]],
        timeout_ms: int,
    ) -> None:
        """Make a request; its response or error goes to the core, with the time."""

        def done(reply: Command | LibraError) -> None:
            if not self._is_running:
                return
            outcome = call.outcome(reply, where=f"broker {address}")
            try:
                effects = answered(outcome, self._clock.monotonic_ms())
            except Exception as error:  # A fault in one response must not close the connection for all.
                self._failed(f"a response of {address} could not be processed", error)
            else:
                self._perform(effects)

        self._remotes.send(address, call.command(), done, timeout_ms=timeout_ms)

    def _fetch_routes(self, effect: fx.FetchRoutes) -> None:
        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is not None:
                log_failed_request(log, "routes not refreshed", unavailable)
            if self._is_running:
                self._perform(self.core.routes_fetched(routes, self._clock.monotonic_ms()))

        self._name_servers.routes(effect.topics, found)

    def _read_offset(self, effect: fx.ReadOffset) -> None:
        offset = self._stored_offsets().read(effect.queue)
        now_ms = self._clock.monotonic_ms()
        self._perform(self.core.committed_offset_answered(effect.queue, effect.generation, offset, now_ms))

    def _stored_offsets(self) -> LocalOffsetStore:
        assert self._local_offsets is not None, "a broadcasting consumer has a local offset store"
        return self._local_offsets

    def _unregister(self, effect: fx.Unregister) -> None:
        call = unregister_client(
            self._settings.client_id, producer_group=None, consumer_group=self._settings.group
        )
        waiting = len(effect.addresses)

        def answered(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting and self._is_running:
                self._perform(self.core.unregistered())

        for address in effect.addresses:
            self._remotes.send(address, call.command(), answered, timeout_ms=LEAVE_TIMEOUT_MS)
        if not effect.addresses:
            self._perform(self.core.unregistered())
