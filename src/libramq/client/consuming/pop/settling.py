"""The settling: acknowledging, postponing or making dead letters of popped messages, repeated until the
broker has answered or the invisible time is over.

    DONE       acknowledged, with all others of its broker that wait
    POSTPONE   its invisible time is changed to the delay
    REJECT     copied to the dead letters, then acknowledged

A message about which a request is under way waits for its answer, which may have the handle that names it
from then on. A lost request costs a redelivery at most: what is not settled is visible again by itself.
Upstream: ConsumeMessagePopConcurrentlyService.processConsumeResult.
"""

from collections.abc import Callable
from typing import Final

from libramq.client.consuming.pop.effect import Acknowledge, MakeDeadLetter, PopRequest, Postpone
from libramq.client.consuming.pop.held_message import HeldMessage, Outcome
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, LibraError
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: messages in one acknowledgement; the others follow with the next.
ACKNOWLEDGED_MAX: Final = 1_024
#: Ours: how soon a request that failed is repeated.
AGAIN_MS: Final = 1_000
#: Ours: for how long a message is settled whose time is over already: brokers make messages visible late.
LATE_MS: Final = 5_000


class Settling:
    """Keeps messages with an outcome until they are settled. settled: called with each in the end."""

    def __init__(self, routes: RouteTable, settled: Callable[[HeldMessage], None]) -> None:
        self._routes = routes
        self._settled = settled
        self._done: dict[str, list[HeldMessage]] = {}  # By broker.
        self._acknowledging: set[str] = set()
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

    def requests(self, now_ms: MonotonicMs) -> list[PopRequest]:
        """Return the requests that may be sent now."""
        if self._again_ms is not None and now_ms >= self._again_ms:
            failed, self._failed, self._again_ms = self._failed, [], None
            for held in failed:
                self._ready(held) if now_ms < held.until_ms else self._over(held)
        found: list[PopRequest] = []
        others, self._others = self._others, []
        for held in others:
            found += self._request(held, now_ms)
        for broker_name, waiting in list(self._done.items()):
            if broker_name not in self._acknowledging:
                found += self._acknowledge(broker_name, waiting, now_ms)
        return found

    def acknowledged(self, sent: Acknowledge, error: LibraError | None, now_ms: MonotonicMs) -> None:
        """Handle the answer to an acknowledgement."""
        self._acknowledging.discard(sent.broker_name)
        for held in sent.held:
            held.is_pending = False
            if error is None:
                self._end(held)
            else:
                self._fail(held, error, now_ms)

    def postponed(self, held: HeldMessage, error: LibraError | None, now_ms: MonotonicMs) -> None:
        """Handle the answer to a change that was the outcome."""
        held.is_pending = False
        if isinstance(error, BrokerError):
            log.warning("a message was visible again before its delay", reason=str(error))
        if error is None or isinstance(error, BrokerError):
            self._end(held)
        else:
            self._fail(held, error, now_ms)

    def extended(self, held: HeldMessage) -> None:
        """Go on with a message whose time was being extended when its outcome came."""
        held.is_pending = False
        if held.outcome is not None:
            self._ready(held)

    def dead_letter_made(self, sent: MakeDeadLetter, error: LibraError | None, now_ms: MonotonicMs) -> None:
        """Handle the answer about a dead letter: it is acknowledged next."""
        held = sent.held
        held.is_pending = False
        if error is not None:
            self._fail(held, error, now_ms)
        else:
            held.outcome = Outcome.DONE
            self._ready(held)

    def _ready(self, held: HeldMessage) -> None:
        if held.outcome is Outcome.DONE:
            self._done.setdefault(held.place.broker_name, []).append(held)
        else:
            self._others.append(held)

    def _request(self, held: HeldMessage, now_ms: MonotonicMs) -> list[PopRequest]:
        address = self._routes.master(held.place.broker_name)
        if address is None:
            self._later(held, now_ms)
            return []
        held.is_pending = True
        if held.outcome is Outcome.REJECT:
            return [MakeDeadLetter(held, address)]
        return [Postpone(held, address, held.delay_ms, now_ms, is_extension=False)]

    def _acknowledge(
        self, broker_name: str, waiting: list[HeldMessage], now_ms: MonotonicMs
    ) -> list[PopRequest]:
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
        return [Acknowledge(broker_name, address, tuple(now))]

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
