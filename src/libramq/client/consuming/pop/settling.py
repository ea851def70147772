"""The settling: acknowledging, postponing or making dead letters of popped messages, repeated until the
broker has answered or the invisible time is over.

    DONE       acknowledged, with all others of its broker that wait
    POSTPONE   its invisible time is changed to the delay
    REJECT     copied to the dead letters, then acknowledged

A message about which a request is under way waits for its answer, which may have the handle that names it
from then on. A lost request costs a redelivery at most: what is not settled is visible again by itself.
Upstream: ConsumeMessagePopConcurrentlyService.processConsumeResult.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.handling.send_back import DEAD_LETTER, send_back_header
from libramq.client.consuming.pop.held_message import HeldMessage, Outcome
from libramq.client.popping.popped import ack_header, batch_acks, change_header
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, LibraError, RequestCodeNotSupported
from libramq.logs import get_logger
from libramq.rpc import pop_calls
from libramq.rpc.broker_calls import send_back
from libramq.rpc.pop_calls import Changed
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: messages in one acknowledgement; the others follow with the next.
ACKNOWLEDGED_MAX: Final = 1_024
#: Ours: how long these requests wait for an answer; they are repeated.
SETTLE_TIMEOUT_MS: Final = 5_000
#: Ours: how soon a request that failed is repeated.
AGAIN_MS: Final = 1_000
#: Ours: for how long a message is settled whose time is over already: brokers make messages visible late.
LATE_MS: Final = 5_000


class Settling:
    """Keeps messages with an outcome until they are settled. settled: called with each in the end."""

    def __init__(
        self, settings: ConsumerSettings, routes: RouteTable, settled: Callable[[HeldMessage], None]
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._settled = settled
        self._done: dict[str, list[HeldMessage]] = {}  # By broker.
        self._acknowledging: set[str] = set()
        self._take_single_acks: set[str] = set()  # Addresses of brokers that take no others.
        self._others: list[HeldMessage] = []
        self._failed: list[HeldMessage] = []
        self._again_ms: MonotonicMs | None = None
        #: Messages with an outcome that are not settled.
        self.count = 0

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when failed requests are repeated."""
        return self._again_ms

    def settle(self, held: HeldMessage, outcome: Outcome, now_ms: MonotonicMs, *, delay_ms: int = 0) -> None:
        """Settle a message, once nothing is asked about it any more."""
        held.outcome, held.delay_ms = outcome, delay_ms
        held.until_ms = max(held.until_ms, now_ms + LATE_MS)
        self.count += 1
        if not held.is_pending:
            self._ready(held)

    def requests(self, now_ms: MonotonicMs) -> Effects:
        """Return the requests that may be sent now."""
        if self._again_ms is not None and now_ms >= self._again_ms:
            failed, self._failed, self._again_ms = self._failed, [], None
            for held in failed:
                self._ready(held) if now_ms < held.until_ms else self._over(held)
        found: Effects = []
        others, self._others = self._others, []
        for held in others:
            found += self._request(held, now_ms)
        for broker_name, waiting in list(self._done.items()):
            if broker_name not in self._acknowledging:
                found += self._acknowledge(broker_name, waiting, now_ms)
        return found

    def _acknowledged(
        self,
        broker_name: str,
        address: str,
        sent: Sequence[HeldMessage],
        outcome: LibraError | None,
        now_ms: MonotonicMs,
    ) -> Effects:
        """Handle the answer to an acknowledgement."""
        if isinstance(outcome, RequestCodeNotSupported) and address not in self._take_single_acks:
            self._take_single_acks.add(address)  # Apache's 5.0 brokers take one a request.
            return self._acknowledge_each(broker_name, address, sent)
        if outcome is not None:
            log_failed_request(log, "acknowledgement failed", outcome, broker=address)
        self._acknowledging.discard(broker_name)
        for held in sent:
            held.is_pending = False
            if outcome is None:
                self._end(held)
            else:
                self._fail(held, outcome, now_ms)
        return []

    def _postponed(self, held: HeldMessage, outcome: Changed | LibraError, now_ms: MonotonicMs) -> Effects:
        """Handle the answer to a change that was the outcome."""
        held.is_pending = False
        if isinstance(outcome, BrokerError):
            log.warning("a message was visible again before its delay", reason=str(outcome))
            self._end(held)
        elif isinstance(outcome, LibraError):
            self._fail(held, outcome, now_ms)
        else:
            self._end(held)
        return []

    def extended(self, held: HeldMessage) -> None:
        """Go on with a message whose time was being extended when its outcome came."""
        held.is_pending = False
        if held.outcome is not None:
            self._ready(held)

    def _dead_letter_made(
        self, held: HeldMessage, outcome: LibraError | None, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the answer about a dead letter: it is acknowledged next."""
        held.is_pending = False
        if outcome is not None:
            log.warning("a dead letter was refused", reason=str(outcome))
            self._fail(held, outcome, now_ms)
        else:
            held.outcome = Outcome.DONE
            self._ready(held)
        return []

    def _ready(self, held: HeldMessage) -> None:
        if held.outcome is Outcome.DONE:
            self._done.setdefault(held.place.broker_name, []).append(held)
        else:
            self._others.append(held)

    def _request(self, held: HeldMessage, now_ms: MonotonicMs) -> Effects:
        address = self._routes.master(held.place.broker_name)
        if address is None:
            self._later(held, now_ms)
            return []
        held.is_pending = True
        if held.outcome is Outcome.REJECT:
            header = send_back_header(held.message, self._settings, DEAD_LETTER, error=held.error)
            done = partial(self._dead_letter_made, held)
            return [fx.Ask(address, send_back(header), done, SETTLE_TIMEOUT_MS)]
        call = pop_calls.change_invisible_time(
            change_header(self._settings.group, held.message, held.delay_ms)
        )
        return [fx.Ask(address, call, partial(self._postponed, held), SETTLE_TIMEOUT_MS)]

    def _acknowledge(self, broker_name: str, waiting: list[HeldMessage], now_ms: MonotonicMs) -> Effects:
        now, rest = waiting[:ACKNOWLEDGED_MAX], waiting[ACKNOWLEDGED_MAX:]
        if rest:
            self._done[broker_name] = rest
        else:
            del self._done[broker_name]
        address = self._routes.master(broker_name)
        if address is None:
            for held in now:
                self._later(held, now_ms)
            return []
        self._acknowledging.add(broker_name)
        for held in now:
            held.is_pending = True
        if address in self._take_single_acks:
            return self._acknowledge_each(broker_name, address, now)
        acks = batch_acks(self._settings.group, [held.message for held in now])
        call = pop_calls.batch_ack(broker_name, [ack for of_broker in acks.values() for ack in of_broker])
        done = partial(self._acknowledged, broker_name, address, now)
        return [fx.Ask(address, call, done, SETTLE_TIMEOUT_MS)]

    def _acknowledge_each(self, broker_name: str, address: str, waiting: Sequence[HeldMessage]) -> Effects:
        """Acknowledge messages by one request each."""
        found: Effects = []
        for held in waiting:
            call = pop_calls.ack_message(ack_header(self._settings.group, held.message))
            done = partial(self._acknowledged, broker_name, address, (held,))
            found.append(fx.Ask(address, call, done, SETTLE_TIMEOUT_MS))
        return found

    def _fail(self, held: HeldMessage, error: LibraError, now_ms: MonotonicMs) -> None:
        if isinstance(error, BrokerError) and now_ms >= held.until_ms:
            self._over(held)
        else:
            self._later(held, now_ms)

    def _later(self, held: HeldMessage, now_ms: MonotonicMs) -> None:
        self._failed.append(held)
        if self._again_ms is None:
            self._again_ms = now_ms + AGAIN_MS

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
