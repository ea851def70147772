"""The core of a push consumer over POP: its parts handle events and decide on effects; how many messages of
one place it may hold, and when it pops there again.

    start ─► routes ─┬► heartbeats
                     └► places ─► pops ─► deliveries ─► settling ─► room for pops

It owns no queues: any member of the group takes the next messages of any queue, and the broker hides them
from the others. Nothing is rebalanced and no offset committed. Time is an argument.
Upstream: DefaultMQPushConsumerImpl.popMessage, PopRequest.java, ConsumeMessagePopConcurrentlyService.java.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from libramq.client.beginning import Begun, GroupBeginning
from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_kernel import ConsumerKernel, Done
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.life import Phase, Troubles
from libramq.client.consuming.pop.holding import HeldMessage, Holding, Outcome, Settling
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.client.options import ConsumeFrom
from libramq.client.popping.popped import POP_MESSAGES_MAX, Place, is_wanted, messages_of, pop_call
from libramq.client.routing.routes import RouteTable
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import Clock, MonotonicMs, Now
from libramq.codes import ResponseCode
from libramq.errors import (
    BrokerError,
    FilterRefused,
    InvalidState,
    LibraError,
    NoPermission,
    RequestCodeNotSupported,
)
from libramq.filter.sql import SQL92
from libramq.filter.subscription import Selector, kind_of
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.rpc.pop_calls import PopReply
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: DefaultMQPushConsumerImpl: how long the broker may hold a pop.
HOLD_MS: Final = 15_000
#: DefaultMQPushConsumerImpl: how long we wait for the answer to a pop.
POP_TIMEOUT_MS: Final = 30_000
#: Ours: how long to wait for a place at which the group begins, before it is retried.
BEGIN_TIMEOUT_MS: Final = 5_000
_FILTER_REFUSED: Final = frozenset({
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
})  # fmt: skip
#: Errors that are reported to users as troubles, and therefore not logged.
_REPORTED: Final = (NoPermission, FilterRefused, RequestCodeNotSupported)
#: DefaultMQPushConsumer.popThresholdForQueue: messages held of a place; more if handlers can process more.
HELD_MAX: Final = 96
#: Ours, as for pulls; DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException is 3 s.
FAILED_PAUSE_MS: Final = 1_000
#: Ours: the pause after an empty answer that was not held. Java: 50 ms by flow control.
EMPTY_PAUSE_MS: Final = 50
#: Ours: an answer that took this long was held.
HELD_MS: Final = 1_000

_MIB: Final = 1024 * 1024


@dataclass(slots=True)
class _State:
    """The state of one place."""

    is_pending: bool = False
    not_before_ms: MonotonicMs = MonotonicMs(0)
    count: int = 0
    size: int = 0


class Places:
    """Decides where to pop next."""

    def __init__(self, settings: ConsumerSettings, topics: Iterable[str], routes: RouteTable) -> None:
        self._topics = tuple(topics)
        self._routes = routes
        #: The places of the current routes. In order: that of a set would differ from process to process.
        self._current: dict[Place, None] = {}
        #: The states of current places, and of former ones that were still busy when the routes changed.
        self._states: dict[Place, _State] = {}
        self._count_max = max(HELD_MAX, settings.threads * min(settings.batch_size, POP_MESSAGES_MAX))
        self._size_max = settings.pull_threshold_mib_for_queue * _MIB

    def routes_changed(self) -> None:
        """Take the places of the current routes; stop popping at those that are gone."""
        self._current = dict.fromkeys(
            Place(topic, queue.broker_name)
            for topic in self._topics
            for queue in self._routes.subscribe_queues(topic)
        )
        for place in self._current:
            if place not in self._states:
                self._states[place] = _State()
        for place, state in list(self._states.items()):
            if place not in self._current and not state.is_pending and not state.count:
                del self._states[place]

    def to_pop(self, now_ms: MonotonicMs) -> Iterator[tuple[Place, str]]:
        """Yield every place with room, and its address."""
        for place in self._current:
            state = self._states[place]
            full = state.count >= self._count_max or state.size >= self._size_max
            if full or state.is_pending or now_ms < state.not_before_ms:
                continue
            address = self._routes.master(place.broker_name)
            if address is not None:
                state.is_pending = True
                yield place, address

    def next_due_ms(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return when the first pause ends."""
        pauses = [self._states[place].not_before_ms for place in self._current]
        return min((each for each in pauses if each > now_ms), default=None)

    def popped(self, place: Place, sent_ms: MonotonicMs, now_ms: MonotonicMs, *, found: bool) -> None:
        """Note an answer."""
        state = self._states[place]
        state.is_pending = False
        was_held = now_ms - sent_ms >= HELD_MS
        state.not_before_ms = now_ms if found or was_held else now_ms + EMPTY_PAUSE_MS

    def failed(self, place: Place, now_ms: MonotonicMs) -> None:
        """Note an error: the place pauses."""
        state = self._states[place]
        state.is_pending = False
        state.not_before_ms = now_ms + FAILED_PAUSE_MS

    def reachable(self, address: str, now_ms: MonotonicMs) -> None:
        """End the pauses of a broker that answers again."""
        for place, state in self._states.items():
            if self._routes.master(place.broker_name) == address:
                state.not_before_ms = min(state.not_before_ms, now_ms)

    def hold(self, held: HeldMessage) -> None:
        """Count a newly held message."""
        state = self._states[held.place]
        state.count += 1
        state.size += len(held.message.body)

    def release(self, held: HeldMessage) -> None:
        """Stop counting a message."""
        state = self._states[held.place]
        state.count -= 1
        state.size -= len(held.message.body)


class MeasuringKernel(ConsumerKernel):
    """A kernel that measures the round trips of its requests."""

    def __init__(self, clock: Clock, failed: Callable[[str, Exception], None]) -> None:
        super().__init__(clock, failed)
        #: The shortest round trip, by address.
        self.round_trips_ms: dict[str, int] = {}

    def _observed(self, address: str, done: Done) -> Done:
        """Return a callback that measures the time until the result, and passes the result on."""
        sent_ms = self.clock.monotonic_ms()

        def measured(outcome: Any, now_ms: MonotonicMs) -> None:
            took_ms = now_ms - sent_ms
            self.round_trips_ms[address] = min(took_ms, self.round_trips_ms.get(address, took_ms))
            done(outcome, now_ms)

        return measured


class PopConsumerCore:
    """Makes the decisions; its shell performs them."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        clock: Clock,
        failed: Callable[[str, Exception], None],
    ) -> None:
        """Build the parts. clock: the source of event times; handler threads read it as well.

        failed: called with exceptions that are bugs of LibraMQ.
        """
        self._subscriptions = subscriptions
        self._settings = settings
        self._begun = Begun()
        self._beginning: GroupBeginning | None = None
        self.routes = RouteTable()
        self.kernel = kernel = MeasuringKernel(clock, failed)
        self._stop_due = kernel.deadlines.new(self._stop_now)
        self._pause_over = kernel.deadlines.new(lambda _: None)  # `settle` follows.
        self.troubles = Troubles(kernel.effects)
        self.known_brokers = KnownBrokers(settings, subscriptions, self.routes, kernel, self.troubles)
        self.known_brokers.routes_changed = self._routes_changed
        self.known_brokers.met = self._met
        self._places = Places(settings, subscriptions, self.routes)
        self._settling = Settling(settings, self.routes, kernel, self._places.release)
        self.holding = Holding(settings, self.routes, kernel, self._settling, self._places.release)
        self._phase = Phase.NEW
        self._is_drained = False  # Whether to stop waiting for handlers.

    @property
    def begins_handlers(self) -> bool:
        """Return whether handlers may begin: the consumer is neither paused nor stopping."""
        return self._phase is Phase.RUNNING and not self.holding.is_paused

    # Start.

    def start(self, now: Now) -> None:
        """Start by fetching the routes."""
        self._phase = Phase.RUNNING
        self.known_brokers.start(now)

    # Routes and heartbeats.

    def _routes_changed(self, _: MonotonicMs) -> None:
        self._places.routes_changed()

    def _met(self, address: str, now_ms: MonotonicMs) -> None:
        self._places.reachable(address, now_ms)

    def connection_lost(self, address: str, now_ms: MonotonicMs) -> None:
        """Handle the end of a connection: the broker has dropped us, or has died."""
        self.known_brokers.lost(address, now_ms)

    def members_changed(self, now_ms: MonotonicMs) -> None:
        """Do nothing when the group's members change: a POP consumer owns no queues."""

    def offsets_set(self, topic: str, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs) -> None:
        """Do nothing at an operator's reset: the broker pops from the new offset."""

    def process_queues(self) -> list[OwnedQueue]:
        """Return the owned queues: none."""
        return []

    def owned(self) -> list[MessageQueue]:
        """Return the owned queues: none."""
        return []

    def hook_done(self, change: fx.QueueChange, now_ms: MonotonicMs) -> None:
        """Do nothing: no queue is revoked."""

    def work(self) -> ConsumerStatistics:
        """Return the current work."""
        return self.holding.work()

    # Messages.

    def began(self, begun: Begun, beginning: GroupBeginning | None) -> None:
        """Note where the group has begun, and how it begins at brokers that were offline or are new."""
        self._begun, self._beginning = begun, beginning

    def _pop(self, place: Place, address: str, now_ms: MonotonicMs) -> None:
        """Pop at a place; if the group has not begun there, begin first."""
        since_ms = self._begun.since_ms.get(place.topic)
        if self._beginning and since_ms and place not in self._begun.places:
            begin = self._beginning.begin_at(place.topic, since_ms)
            self.kernel.ask(address, begin, partial(self._place_begun, place, address), BEGIN_TIMEOUT_MS)
            return
        selected, settings = self._subscriptions[place.topic], self._settings
        call = pop_call(
            settings.group,
            place,
            selected,
            invisible_ms=settings.invisible_ms,
            hold_ms=HOLD_MS,
            from_end=settings.consume_from is not ConsumeFrom.FIRST_OFFSET,
        )
        done = partial(self._popped, place, address, now_ms)
        self.kernel.ask(address, call, done, POP_TIMEOUT_MS)

    def _place_begun(
        self, place: Place, address: str, outcome: int | LibraError | None, now_ms: MonotonicMs
    ) -> None:
        if isinstance(outcome, LibraError) and not isinstance(outcome, RequestCodeNotSupported):
            self._places.failed(place, now_ms)
        else:
            self._begun = self._begun.joined(Begun(places={place}))
            self._pop(place, address, now_ms)

    def _popped(
        self,
        place: Place,
        address: str,
        sent_ms: MonotonicMs,
        outcome: PopReply | LibraError,
        now_ms: MonotonicMs,
    ) -> None:
        """Handle the answer to a pop."""
        topic, broker_name = place
        if isinstance(outcome, LibraError):
            outcome = self._pop_error(topic, address, outcome)
        self.pop_answered(topic, address, outcome)
        if isinstance(outcome, LibraError):
            self._places.failed(place, now_ms)
            return
        try:
            messages = messages_of(outcome, broker_name, topic) if outcome.body else ()
        except LibraError as error:
            log.error("a pop's answer is dropped", topic=topic, reason=str(error))
            self._places.failed(place, now_ms)
            return
        age_ms = self._age_ms(address, sent_ms, outcome, now_ms) if messages else 0
        self._arrived(place, sent_ms, age_ms, messages, now_ms)

    def _pop_error(self, topic: str, address: str, error: LibraError) -> LibraError:
        """Return the error of a pop; FilterRefused if its expression is the cause."""
        is_by_sql = kind_of(self._subscriptions[topic]) == SQL92
        if is_by_sql and isinstance(error, BrokerError) and error.response_code in _FILTER_REFUSED:
            error = FilterRefused(error.response_code, error.remark, where=address)
        if not isinstance(error, _REPORTED):
            log_failed_request(log, "pop failed", error, topic=topic, broker=address)
        return error

    def pop_answered(self, topic: str, address: str, outcome: object) -> None:
        """Report to the user if a pop was denied, or is not supported: brokers before 5.0 have no POP.

        A broker without POP is one trouble for all topics; answers of other brokers do not end it.
        """
        about = f"POP at {address}"
        if isinstance(outcome, RequestCodeNotSupported):
            self.troubles.begin(about, outcome)
        elif not isinstance(outcome, LibraError):
            self.troubles.over(about)
        self.troubles.answered(f"topic {topic}", outcome)

    def _age_ms(self, address: str, sent_ms: MonotonicMs, reply: PopReply, now_ms: MonotonicMs) -> int:
        """Return how long ago a broker popped messages, by our clock alone: its clock may differ.

        A broker that does not report how long it held the pop is assumed to answer as fast as ever.
        """
        if reply.held_ms is None:
            return self.kernel.round_trips_ms[address]
        return now_ms - sent_ms - reply.held_ms

    def _arrived(
        self,
        place: Place,
        sent_ms: MonotonicMs,
        age_ms: int,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
    ) -> None:
        self._places.popped(place, sent_ms, now_ms, found=bool(messages))
        popped_ms = now_ms - min(max(0, age_ms), now_ms - sent_ms)
        until_ms = popped_ms + self._settings.invisible_ms
        wanted = []
        for message in messages:
            held = HeldMessage(message, place, until_ms)
            self._places.hold(held)
            if is_wanted(message, self._subscriptions[place.topic]):
                wanted.append(held)
            else:  # No other member would take it.
                self._settling.settle(held, Outcome.DONE, now_ms)
        self._deliver(self.holding.arrived(wanted, popped_ms, now_ms))

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self.kernel.effects.add(fx.Deliver(deliveries))

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> None:
        """Handle the results of handlers."""
        again: list[Delivery] = []
        for delivery, ending in results:
            try:
                again += self.holding.handled(delivery, ending, now_ms)
            except Exception as error:  # The others' messages are acknowledged all the same.
                self.kernel.failed("a result could not be handled", error)
        self._deliver(again)

    def pause(self, queues: Sequence[MessageQueue] | None, now_ms: MonotonicMs) -> None:
        """Start no more handlers and pops."""
        _refuse(queues)
        self.holding.pause()

    def resume(self, queues: Sequence[MessageQueue] | None, now_ms: MonotonicMs) -> None:
        """Continue."""
        _refuse(queues)
        self._deliver(self.holding.resume())

    # Stop.

    def stop(self, now_ms: MonotonicMs, *, timeout_ms: int) -> None:
        """Let running handlers finish, settle, unregister; takes little longer than the timeout."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            self.kernel.effects.add(fx.Stopped())
        if self._phase is not Phase.RUNNING:
            return
        self._phase = Phase.DRAINING
        self.known_brokers.close()
        self._stop_due.at(now_ms + timeout_ms)
        self.holding.close()

    def _stop_now(self, now_ms: MonotonicMs) -> None:
        if self._is_drained:
            self._unregister(now_ms)
            return
        self._is_drained = True
        self._stop_due.at(now_ms + LEAVE_TIMEOUT_MS)

    def _unregister(self, now_ms: MonotonicMs) -> None:
        self._phase = Phase.LEAVING
        self._stop_due.cancel()
        self.known_brokers.unregister(now_ms)

    def settle(self) -> None:
        """Make the follow-up decisions of an event."""
        now_ms = self.kernel.clock.monotonic_ms()
        if self._phase is Phase.DRAINING and not self._settling.count and self._is_idle:
            self.holding.give_back(now_ms)
        self._settling.send_requests(now_ms)
        if self._phase is Phase.DRAINING and not self._settling.count and self._is_idle:
            self._unregister(now_ms)
        if self._phase is Phase.RUNNING and not self.holding.is_paused:
            for place, address in self._places.to_pop(now_ms):
                self._pop(place, address, now_ms)
            self._pause_over.at(self._places.next_due_ms(now_ms))

    @property
    def _is_idle(self) -> bool:
        """Return whether there is no handler to wait for."""
        return self._is_drained or not self.holding.runs


def _refuse(queues: Sequence[MessageQueue] | None) -> None:
    if queues is not None:
        raise InvalidState("a consumer that pops owns no queues: pause() and resume() without any")
