"""The holding: popped messages from their arrival until the broker knows their outcome: how their invisible
time is extended while handlers run, and how each is settled.

    popped ─► waiting ─► a handler runs ─► outcomes ─► settled
                │             ├► runs beyond consume_timeout_ms: abandoned, as if it had failed
                │             └► busy: kept, and delivered again after a while
                ├► paused: kept, and delivered afterwards
                └► lapsed: their time seems over; postponed, and delivered unless they are gone

    DONE       acknowledged, together with others of its broker
    POSTPONE   its invisible time is changed to the delay
    REJECT     copied to the dead letters, then acknowledged

While a delivery waits or its handler runs, its messages are postponed at half their invisible time, for
consume_timeout_ms at most. So the invisible time may be shorter than a handler runs, and messages of a killed
process are popped again soon. A message with a request in flight waits for the answer, which may contain its
new handle. Requests are repeated until the broker has answered or the invisible time is over: a lost one
costs a redelivery at most.

Upstream: ConsumeMessagePopConcurrentlyService.java, PopProcessQueue.java; postponing is LibraMQ's own
(RocketMQ 5's proxies do the same for its gRPC clients: ReceiptHandleProcessor.java).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.consumption import REDELIVER_MS
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.handling.send_back import (
    DEAD_LETTER,
    FIRST_RETRY_LEVEL,
    log_dead_letter,
    log_rejected,
    send_back_header,
)
from libramq.client.consuming.queues.owned_queue import Delivery, HandlerError
from libramq.client.popping.popped import (
    NOT_POPPED,
    Place,
    ack_call,
    batch_acks,
    change_call,
    note_change,
)
from libramq.client.routing.routes import RouteTable
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError, RequestCodeNotSupported
from libramq.logs import get_logger
from libramq.message.delay_level import DELAY_LEVELS_MS
from libramq.message.message import MessageExt
from libramq.rpc import pop_calls
from libramq.rpc.broker_calls import send_back
from libramq.rpc.pop_calls import Changed
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: The answers for a message that other members may have, or that is deleted.
GONE: Final = NOT_POPPED | {ResponseCode.TOPIC_NOT_EXIST}
#: Ours: how often to check within the invisible time.
CHECKS: Final = 10
#: Ours: the delay after which others get the unstarted messages of a stopping member, whose connections are
#: closed by then.
GIVE_BACK_MS: Final = 1_000
#: ConsumeMessagePopConcurrentlyService.popDelayLevel: 10 s, 30 s, 1 min … 2 h.
RETRY_DELAYS_MS: Final = DELAY_LEVELS_MS[FIRST_RETRY_LEVEL - 1 :]

#: Ours: messages in one acknowledgement; the others follow with the next.
ACKNOWLEDGED_MAX: Final = 1_024
#: Ours: how long these requests wait for an answer; they are repeated.
SETTLE_TIMEOUT_MS: Final = 5_000
#: Ours: how soon a request that failed is repeated.
AGAIN_MS: Final = 1_000
#: Ours: how long to settle a message whose time is already over: brokers make messages visible late.
LATE_MS: Final = 5_000


class Outcome(Enum):
    """The decision of a message's handler. POSTPONE: pop the message again after a delay."""

    DONE = "done"
    POSTPONE = "postpone"
    REJECT = "reject"


@dataclass(slots=True, eq=False)
class HeldMessage:
    """One message. until_ms: when the broker makes it visible again, as far as we know.

    is_pending: a request about it is in flight; the next one needs the handle that this returns. is_gone: by
    the broker's answer, others may have it. error: the last exception of its handler.
    """

    message: MessageExt
    place: Place
    until_ms: MonotonicMs
    is_pending: bool = False
    is_gone: bool = False
    outcome: Outcome | None = None
    delay_ms: int = 0
    error: HandlerError | None = None


class PopDelivery(Delivery):
    """Popped messages for one call of a handler, with the same division of threads as `Delivery`."""

    __slots__ = ("_monotonic_ms", "held", "may_begin", "popped_ms")

    def __init__(
        self,
        held: Sequence[HeldMessage],
        *,
        popped_ms: MonotonicMs,
        may_begin: bool,
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        self.held = held
        self.messages = [each.message for each in held]
        self.popped_ms = popped_ms
        self.started = False
        self.began_ms = MonotonicMs(0)
        self.error = None
        #: Written by the core before it reads `started`; `begin` does it in the opposite order.
        self.may_begin = may_begin
        self._monotonic_ms = monotonic_ms

    @property
    def until_ms(self) -> MonotonicMs:
        """Return when the first of the messages becomes visible to others again."""
        return min(each.until_ms for each in self.held)

    def leave_out_gone(self) -> list[HeldMessage]:
        """Remove and return messages that others may have. No handler has them yet."""
        gone = [each for each in self.held if each.is_gone]
        self.held = [each for each in self.held if not each.is_gone]
        self.messages = [each.message for each in self.held]
        return gone

    def begin(self) -> bool:
        """Return whether the handler may run: not while paused, nor with messages others may have."""
        self.began_ms = self._monotonic_ms()
        self.started = True
        return self.may_begin and self.began_ms < self.until_ms


class Settling:
    """Keeps messages with an outcome until they are settled. settled: called with each settled message."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        kernel: ConsumerKernel,
        settled: Callable[[HeldMessage], None],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._kernel = kernel
        self._settled = settled
        self._done: dict[str, list[HeldMessage]] = {}  # By broker.
        self._acknowledging: set[str] = set()
        self._take_single_acks: set[str] = set()  # Addresses of brokers without batch acknowledgements.
        self._others: list[HeldMessage] = []
        self._failed: list[HeldMessage] = []
        self._again_due = kernel.deadlines.new(self._again)
        #: Messages with an outcome that are not settled.
        self.count = 0

    def settle(self, held: HeldMessage, outcome: Outcome, now_ms: MonotonicMs, *, delay_ms: int = 0) -> None:
        """Settle a message, once no request about it is in flight."""
        held.outcome, held.delay_ms = outcome, delay_ms
        held.until_ms = max(held.until_ms, now_ms + LATE_MS)
        self.count += 1
        if not held.is_pending:
            self._ready(held)

    def send_requests(self, now_ms: MonotonicMs) -> None:
        """Send the requests that may be sent now."""
        others, self._others = self._others, []
        for held in others:
            self._request(held, now_ms)
        for broker_name, waiting in list(self._done.items()):
            if broker_name not in self._acknowledging:
                self._acknowledge(broker_name, waiting, now_ms)

    def _again(self, now_ms: MonotonicMs) -> None:
        """Repeat the requests that failed; `send_requests` is called after every event."""
        failed, self._failed = self._failed, []
        for held in failed:
            self._ready(held) if now_ms < held.until_ms else self._over(held)

    def _acknowledged(
        self,
        broker_name: str,
        address: str,
        sent: Sequence[HeldMessage],
        outcome: LibraError | None,
        now_ms: MonotonicMs,
    ) -> None:
        """Handle the answer to an acknowledgement."""
        if isinstance(outcome, RequestCodeNotSupported) and address not in self._take_single_acks:
            self._take_single_acks.add(address)  # Apache's 5.0 brokers accept one message a request.
            self._acknowledge_each(broker_name, address, sent)
            return
        if outcome is not None:
            log_failed_request(log, "acknowledgement failed", outcome, broker=address)
        self._acknowledging.discard(broker_name)
        for held in sent:
            held.is_pending = False
            if outcome is None:
                self._end(held)
            else:
                self._fail(held, outcome, now_ms)

    def _postponed(self, held: HeldMessage, outcome: Changed | LibraError, now_ms: MonotonicMs) -> None:
        """Handle the answer to the postponement of a message."""
        held.is_pending = False
        if isinstance(outcome, BrokerError):
            log.warning("a message was visible again before its delay", reason=str(outcome))
            self._end(held)
        elif isinstance(outcome, LibraError):
            self._fail(held, outcome, now_ms)
        else:
            self._end(held)

    def extended(self, held: HeldMessage) -> None:
        """Continue with a message whose time was being extended when its outcome arrived."""
        held.is_pending = False
        if held.outcome is not None:
            self._ready(held)

    def _dead_letter_made(self, held: HeldMessage, outcome: LibraError | None, now_ms: MonotonicMs) -> None:
        """Handle the answer about a dead letter: it is acknowledged next."""
        held.is_pending = False
        if outcome is not None:
            log.warning("a dead letter was refused", reason=str(outcome))
            self._fail(held, outcome, now_ms)
        else:
            held.outcome = Outcome.DONE
            self._ready(held)

    def _ready(self, held: HeldMessage) -> None:
        if held.outcome is Outcome.DONE:
            self._done.setdefault(held.place.broker_name, []).append(held)
        else:
            self._others.append(held)

    def _request(self, held: HeldMessage, now_ms: MonotonicMs) -> None:
        address = self._routes.master(held.place.broker_name)
        if address is None:
            self._later(held, now_ms)
            return
        held.is_pending = True
        if held.outcome is Outcome.REJECT:
            header = send_back_header(held.message, self._settings, DEAD_LETTER, error=held.error)
            done = partial(self._dead_letter_made, held)
            self._kernel.ask(address, send_back(header), done, SETTLE_TIMEOUT_MS)
        else:
            call = change_call(self._settings.group, held.message, held.delay_ms)
            self._kernel.ask(address, call, partial(self._postponed, held), SETTLE_TIMEOUT_MS)

    def _acknowledge(self, broker_name: str, waiting: list[HeldMessage], now_ms: MonotonicMs) -> None:
        now, rest = waiting[:ACKNOWLEDGED_MAX], waiting[ACKNOWLEDGED_MAX:]
        if rest:
            self._done[broker_name] = rest
        else:
            del self._done[broker_name]
        address = self._routes.master(broker_name)
        if address is None:
            for held in now:
                self._later(held, now_ms)
            return
        self._acknowledging.add(broker_name)
        for held in now:
            held.is_pending = True
        if address in self._take_single_acks:
            self._acknowledge_each(broker_name, address, now)
            return
        acks = batch_acks(self._settings.group, [held.message for held in now])
        call = pop_calls.batch_ack(broker_name, [ack for of_broker in acks.values() for ack in of_broker])
        done = partial(self._acknowledged, broker_name, address, now)
        self._kernel.ask(address, call, done, SETTLE_TIMEOUT_MS)

    def _acknowledge_each(self, broker_name: str, address: str, waiting: Sequence[HeldMessage]) -> None:
        """Acknowledge messages with one request each."""
        for held in waiting:
            call = ack_call(self._settings.group, held.message)
            done = partial(self._acknowledged, broker_name, address, (held,))
            self._kernel.ask(address, call, done, SETTLE_TIMEOUT_MS)

    def _fail(self, held: HeldMessage, error: LibraError, now_ms: MonotonicMs) -> None:
        if isinstance(error, BrokerError) and now_ms >= held.until_ms:
            self._over(held)
        else:
            self._later(held, now_ms)

    def _later(self, held: HeldMessage, now_ms: MonotonicMs) -> None:
        self._failed.append(held)
        self._again_due.by(now_ms + AGAIN_MS)

    def _over(self, held: HeldMessage) -> None:
        log.warning(
            "a message could not be settled in time; it is popped again",
            topic=held.message.topic,
            message_id=held.message.message_id,
        )
        self._end(held)

    def _end(self, held: HeldMessage) -> None:
        self.count -= 1
        self._settled(held)


class Holding:
    """The deliveries of a POP consumer."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        kernel: ConsumerKernel,
        settling: Settling,
        released: Callable[[HeldMessage], None],
    ) -> None:
        """Begin without deliveries. released: called with messages that end without an outcome."""
        self._settings = settings
        self._routes = routes
        self._kernel = kernel
        self._settling = settling
        self._released = released
        self._monotonic_ms = kernel.clock.monotonic_ms
        self._deliveries: dict[PopDelivery, None] = {}
        self._kept: list[PopDelivery] = []
        #: Deliveries to repeat here after a while: brokers would count another pop as an attempt.
        self._busy: dict[PopDelivery, None] = {}
        self._unused: list[HeldMessage] = []  # While closing: messages that no handler gets.
        self._abandoned: set[PopDelivery] = set()
        self._lapsed: dict[PopDelivery, None] = {}
        self._check_due = kernel.deadlines.new(self._check)
        self._is_closing = False
        self.is_paused = False

    def work(self) -> ConsumerStatistics:
        """Return how many messages wait for handlers, and how many are being processed."""
        in_flight = sum(each.in_hand_count for each in self._deliveries)
        waiting = sum(len(each.messages) for each in self._deliveries) - in_flight
        return ConsumerStatistics(waiting=waiting, in_flight=in_flight)

    @property
    def runs(self) -> bool:
        """Return whether handlers run, or may begin."""
        return bool(self._deliveries)

    def arrived(
        self, held: Sequence[HeldMessage], popped_ms: MonotonicMs, now_ms: MonotonicMs
    ) -> list[PopDelivery]:
        """Return the deliveries of popped messages that handlers get now."""
        if self._is_closing:
            self._unused += held
            return []
        size = self._settings.batch_size
        deliveries = [self._new(held[at : at + size], popped_ms) for at in range(0, len(held), size)]
        if deliveries:
            self._schedule(now_ms)
        if self.is_paused:
            self._kept += deliveries
            return []
        return deliveries

    def _new(self, held: Sequence[HeldMessage], popped_ms: MonotonicMs) -> PopDelivery:
        delivery = PopDelivery(
            held, popped_ms=popped_ms, may_begin=not self.is_paused, monotonic_ms=self._monotonic_ms
        )
        self._deliveries[delivery] = None
        return delivery

    def handled(self, delivery: Delivery, ending: Ending, now_ms: MonotonicMs) -> list[PopDelivery]:
        """Handle an ending; return the deliveries that handlers get again."""
        assert isinstance(delivery, PopDelivery), "nothing else is delivered here"
        if delivery in self._abandoned:
            self._abandoned.discard(delivery)
            return []
        if ending is HandlerOutcome.SKIPPED:
            return self._not_begun(delivery, now_ms)
        self._deliveries.pop(delivery, None)
        self._settle(delivery, ending, now_ms)
        return []

    def take_lapsed(self, now_ms: MonotonicMs) -> list[PopDelivery]:
        """Return the lapsed deliveries that handlers get after all: their brokers have postponed them."""
        again = []
        for delivery in list(self._lapsed):
            if any(held.is_pending for held in delivery.held):
                continue
            gone = delivery.leave_out_gone()
            if gone:
                log.warning("popped messages are dropped: their invisible time is over", count=len(gone))
            for held in gone:
                self._released(held)
            if delivery.held and now_ms >= delivery.until_ms:
                continue  # A request failed, and is repeated.
            del self._lapsed[delivery]
            if not delivery.held:
                self._deliveries.pop(delivery, None)
            elif self.is_paused:
                self._kept.append(delivery)
            else:
                again.append(delivery)
        return again

    def pause(self) -> None:
        """Begin no more handlers."""
        self.is_paused = True
        self._forbid()

    def resume(self) -> list[PopDelivery]:
        """Return the deliveries that waited for the end of the pause."""
        self.is_paused = False
        kept, self._kept = self._kept, []
        for delivery in self._deliveries:
            delivery.may_begin = not self._is_closing
        return kept

    def close(self) -> None:
        """Begin no more handlers."""
        self._is_closing = True
        self._forbid()
        kept = [*self._kept, *self._busy, *self._lapsed]
        for waiting in (self._kept, self._busy, self._lapsed):
            waiting.clear()
        for delivery in kept:
            self._deliveries.pop(delivery, None)
            self._unused += delivery.held

    def give_back(self, now_ms: MonotonicMs) -> None:
        """Give back messages that no handler got, after all others are settled.

        Not earlier: a pop of ours that the broker still holds would take them again.
        """
        unused, self._unused = self._unused, []
        for held in unused:
            self._settling.settle(held, Outcome.POSTPONE, now_ms, delay_ms=GIVE_BACK_MS)

    def _deliver_again(self, delivery: PopDelivery, _: MonotonicMs) -> None:
        """Deliver messages again on which other handlers were at work."""
        if delivery not in self._busy:
            return
        del self._busy[delivery]
        if self.is_paused:
            self._kept.append(delivery)
        else:
            self._kernel.effects.add(fx.Deliver((delivery,)))

    def _check(self, now_ms: MonotonicMs) -> None:
        """Extend the invisible time of held messages, and abandon handlers that do not return."""
        if not self._deliveries:
            return
        self._schedule(now_ms)
        late = self._late(now_ms)
        for delivery in late:
            self._abandoned.add(delivery)
            self._deliveries.pop(delivery, None)
            self._settle(delivery, HandlerOutcome.LATER, now_ms)
        if late:
            self._kernel.effects.add(fx.Abandon(tuple(late)))
        invisible_ms = self._settings.invisible_ms
        half_ms = invisible_ms // 2
        for delivery in self._deliveries:
            if self.is_paused and not delivery.started:
                continue  # Others may handle them meanwhile.
            since_ms = delivery.began_ms if delivery.started else delivery.popped_ms
            if now_ms - since_ms > self._settings.consume_timeout_ms and delivery not in self._lapsed:
                continue
            for held in delivery.held:
                address = self._routes.master(held.place.broker_name)
                is_due = held.until_ms - now_ms <= half_ms and not (held.is_pending or held.is_gone)
                if is_due and address is not None:
                    held.is_pending = True
                    call = change_call(self._settings.group, held.message, invisible_ms)
                    done = partial(self._extended, held, now_ms + invisible_ms)
                    self._kernel.ask(address, call, done, SETTLE_TIMEOUT_MS)

    def _extended(
        self, held: HeldMessage, until_ms: MonotonicMs, outcome: Changed | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the answer to a longer invisible time."""
        if not isinstance(outcome, LibraError):
            note_change(held.message, outcome)
            held.until_ms = until_ms
        elif isinstance(outcome, BrokerError):
            held.until_ms = now_ms
            held.is_gone = outcome.response_code in GONE
            log.warning("a message could not be kept from others any longer", reason=str(outcome))
        self._settling.extended(held)
        again = self.take_lapsed(now_ms)
        if again:
            self._kernel.effects.add(fx.Deliver(again))

    def _schedule(self, now_ms: MonotonicMs) -> None:
        self._check_due.by(now_ms + self._settings.invisible_ms // CHECKS)

    def _forbid(self) -> None:
        for delivery in self._deliveries:
            delivery.may_begin = False

    def _not_begun(self, delivery: PopDelivery, now_ms: MonotonicMs) -> list[PopDelivery]:
        delivery.started = False
        if self._is_closing:
            self._deliveries.pop(delivery, None)
            self._unused += delivery.held
        elif self.is_paused:
            self._kept.append(delivery)
        elif now_ms < delivery.until_ms:  # Paused and resumed in the meantime.
            return [delivery]
        else:
            self._lapsed[delivery] = None
            self._check_due.at(now_ms)
            return self.take_lapsed(now_ms)
        return []

    def _settle(self, delivery: PopDelivery, ending: Ending, now_ms: MonotonicMs) -> None:
        # A pop takes messages of several queues, and of the retry topic: their offsets are not unique.
        left = {id(each.message): each for each in delivery.held}
        for each in delivery.held:
            each.error = delivery.error
        retries: Sequence[tuple[MessageExt, int | None]] = ()
        if isinstance(ending, NotDone):
            retries = ending.retries
            for message, within_ms in ending.busy:
                self._wait(left.pop(id(message)), within_ms, now_ms)
            for message in ending.rejects:
                log_rejected(message, self._settings.group)
                self._settling.settle(left.pop(id(message)), Outcome.REJECT, now_ms)
        elif ending is not HandlerOutcome.SUCCESS:
            retries = [(message, None) for message in delivery.messages]
        for message, after_ms in retries:
            self._retry(left.pop(id(message)), after_ms, now_ms)
        for held in left.values():
            self._settling.settle(held, Outcome.DONE, now_ms)

    def _wait(self, held: HeldMessage, within_ms: int, now_ms: MonotonicMs) -> None:
        if self._is_closing:
            self._unused.append(held)
        else:
            delivery = self._new([held], now_ms)
            self._busy[delivery] = None
            again_ms = now_ms + min(within_ms, REDELIVER_MS)
            self._kernel.deadlines.set(again_ms, partial(self._deliver_again, delivery))

    def _retry(self, held: HeldMessage, after_ms: int | None, now_ms: MonotonicMs) -> None:
        attempts = held.message.reconsume_times
        if self._settings.is_last_attempt(attempts):
            log_dead_letter(held.message, self._settings.group, held.error)
            self._settling.settle(held, Outcome.REJECT, now_ms)
            return
        delay_ms = RETRY_DELAYS_MS[min(attempts, len(RETRY_DELAYS_MS) - 1)] if after_ms is None else after_ms
        self._settling.settle(held, Outcome.POSTPONE, now_ms, delay_ms=delay_ms)

    def _late(self, now_ms: MonotonicMs) -> list[PopDelivery]:
        timeout_ms = self._settings.consume_timeout_ms
        late = [each for each in self._deliveries if each.started and now_ms - each.began_ms > timeout_ms]
        late = late[: max(0, self._settings.threads - len(self._abandoned))]
        for delivery in late:
            log.error(
                "a handler does not return; its messages are popped again",
                topic=delivery.messages[0].topic,
                message_id=delivery.messages[0].message_id,
                consume_timeout_ms=timeout_ms,
            )
        return late
