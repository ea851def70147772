"""The holding: popped messages that wait for handlers or are handled: how their invisible time is extended,
and when one is given back or has lapsed.

    waiting ─► a handler runs ─► outcomes ─► settling
      │             ├► runs beyond consume_timeout_ms: abandoned, as if it had failed
      │             └► busy: kept, and delivered again after a while
      ├► paused: kept, and delivered afterwards
      └► lapsed: their time seems over; postponed, and delivered unless the broker says that they are gone

While a delivery waits or its handler runs, its messages are postponed at half their invisible time, for
consume_timeout_ms at most. So a handler needs no invisible time of its own length, and what a killed process
held is popped again soon.
Upstream: impl/consumer/ConsumeMessagePopConcurrentlyService.java; postponing is ours (RocketMQ 5's proxies
do the same for its gRPC clients: ReceiptHandleProcessor.java).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.handling.consumption import REDELIVER_MS
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.handling.send_back import (
    DELAY_LEVELS_MS,
    FIRST_RETRY_LEVEL,
    log_dead_letter,
    log_rejected,
)
from libramq.client.consuming.pop.held_message import HeldMessage, Outcome, PopDelivery
from libramq.client.consuming.pop.settling import SETTLE_TIMEOUT_MS, Settling
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.popping.popped import NOT_POPPED, change_header, note_change
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.rpc import pop_calls
from libramq.rpc.pop_calls import Changed

log = get_logger(__name__)

#: How a broker says that others may have a message, or that nobody will.
GONE: Final = NOT_POPPED | {ResponseCode.TOPIC_NOT_EXIST}
#: Ours: how often to look, as a fraction of the invisible time.
CHECKS: Final = 10
#: Ours: when others get what a member that stops has not begun. By then its connections are closed.
GIVE_BACK_MS: Final = 1_000
#: ConsumeMessagePopConcurrentlyService.popDelayLevel: 10 s, 30 s, 1 min … 2 h.
RETRY_DELAYS_MS: Final = DELAY_LEVELS_MS[FIRST_RETRY_LEVEL - 1 :]


class Holding:
    """The deliveries of a consumer that pops."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        settling: Settling,
        released: Callable[[HeldMessage], None],
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        """released: called with messages that end without an outcome."""
        self._settings = settings
        self._routes = routes
        self._settling = settling
        self._released = released
        self._monotonic_ms = monotonic_ms
        self._deliveries: dict[PopDelivery, None] = {}
        self._kept: list[PopDelivery] = []
        #: What is delivered again, and when: brokers would count each pop of it as an attempt.
        self._busy: list[tuple[MonotonicMs, PopDelivery]] = []
        self._unused: list[HeldMessage] = []  # While closing: what no handler gets.
        self._abandoned: set[PopDelivery] = set()
        self._lapsed: dict[PopDelivery, None] = {}
        self._check_ms: MonotonicMs | None = None
        self._is_closing = False
        self.is_paused = False

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when `check` or `take_due` is due."""
        busy_ms = min((due_ms for due_ms, _ in self._busy), default=None)
        return min((each for each in (self._check_ms, busy_ms) if each is not None), default=None)

    @property
    def deliveries(self) -> list[PopDelivery]:
        """Return what waits for handlers, and what they are at work on."""
        return [*self._deliveries]

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
        if self._check_ms is None and deliveries:
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
        """Handle an ending; return what handlers get again."""
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
        """Return what waited for the end of the pause."""
        self.is_paused = False
        kept, self._kept = self._kept, []
        for delivery in self._deliveries:
            delivery.may_begin = not self._is_closing
        return kept

    def close(self) -> None:
        """Begin no more handlers."""
        self._is_closing = True
        self._forbid()
        kept = [*self._kept, *(delivery for _, delivery in self._busy), *self._lapsed]
        for waiting in (self._kept, self._busy, self._lapsed):
            waiting.clear()
        for delivery in kept:
            self._deliveries.pop(delivery, None)
            self._unused += delivery.held

    def give_back(self, now_ms: MonotonicMs) -> None:
        """Give back what no handler got, when all else is done.

        Not at once: a pop of ours that the broker still holds would take it again.
        """
        unused, self._unused = self._unused, []
        for held in unused:
            self._settling.settle(held, Outcome.POSTPONE, now_ms, delay_ms=GIVE_BACK_MS)

    def take_due(self, now_ms: MonotonicMs) -> list[PopDelivery]:
        """Return what handlers get again after others were at work on it."""
        taken = [delivery for due_ms, delivery in self._busy if due_ms <= now_ms]
        self._busy = [each for each in self._busy if each[0] > now_ms]
        if not self.is_paused:
            return taken
        self._kept += taken
        return []

    def check(self, now_ms: MonotonicMs) -> tuple[Effects, list[PopDelivery]]:
        """Return what to postpone, and the deliveries whose handlers are abandoned."""
        if self._check_ms is None or now_ms < self._check_ms:
            return [], []
        self._check_ms = None
        if not self._deliveries:
            return [], []
        self._schedule(now_ms)
        late = self._late(now_ms)
        for delivery in late:
            self._abandoned.add(delivery)
            self._deliveries.pop(delivery, None)
            self._settle(delivery, HandlerOutcome.LATER, now_ms)
        half_ms = self._settings.invisible_ms // 2
        found: Effects = []
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
                    found.append(self._extend(held, address, now_ms))
        return found, late

    def _extend(self, held: HeldMessage, address: str, now_ms: MonotonicMs) -> fx.Ask[Changed]:
        invisible_ms = self._settings.invisible_ms
        call = pop_calls.change_invisible_time(
            change_header(self._settings.group, held.message, invisible_ms)
        )
        return fx.Ask(address, call, partial(self._extended, held, now_ms + invisible_ms), SETTLE_TIMEOUT_MS)

    def _extended(
        self, held: HeldMessage, until_ms: MonotonicMs, outcome: Changed | LibraError, now_ms: MonotonicMs
    ) -> Effects:
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
        return [fx.Deliver(again)] if again else []

    def _schedule(self, now_ms: MonotonicMs) -> None:
        self._check_ms = now_ms + self._settings.invisible_ms // CHECKS

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
            self._check_ms = now_ms
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
            due_ms = now_ms + min(within_ms, REDELIVER_MS)
            self._busy.append((due_ms, self._new([held], now_ms)))

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
