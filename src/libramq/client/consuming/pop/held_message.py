"""The held message: a popped message from its arrival until the broker knows what became of it.

    popped ─► in a delivery ─► outcome known ─► settled: acknowledged, postponed or a dead letter
                 └► postponed while its handler runs, so that nobody else gets it

Upstream: impl/consumer/PopProcessQueue.java; that it is postponed is ours.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from libramq.client.consuming.queues.owned_queue import Delivery, HandlerError
from libramq.client.popping.pop_round import Place
from libramq.clock import MonotonicMs
from libramq.message.message import MessageExt


class Outcome(Enum):
    """The decision of a message's handler. POSTPONE: it is popped again after a delay."""

    DONE = "done"
    POSTPONE = "postpone"
    REJECT = "reject"


class HeldMessage:
    """One message. until_ms: when the broker makes it visible again, as far as we know."""

    __slots__ = ("delay_ms", "error", "is_gone", "is_pending", "message", "outcome", "place", "until_ms")

    def __init__(self, message: MessageExt, place: Place, until_ms: MonotonicMs) -> None:
        self.message = message
        self.place = place
        self.until_ms = until_ms
        #: Whether a request about it is under way: another one would need the handle that it returns.
        self.is_pending = False
        #: Whether the broker says that others may have it.
        self.is_gone = False
        self.outcome: Outcome | None = None
        self.delay_ms = 0
        #: What its handler raised last.
        self.error: HandlerError | None = None


class PopDelivery(Delivery):
    """Popped messages for one call of a handler; who calls what is as for `Delivery`."""

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
        """Return when the first of its messages is visible to others again."""
        return min(each.until_ms for each in self.held)

    def leave_out_gone(self) -> list[HeldMessage]:
        """Take out what others may have, and return it. No handler has it yet."""
        gone = [each for each in self.held if each.is_gone]
        self.held = [each for each in self.held if not each.is_gone]
        self.messages = [each.message for each in self.held]
        return gone

    def begin(self) -> bool:
        """Return whether the handler may run: not while paused, nor with messages others may have."""
        self.began_ms = self._monotonic_ms()
        self.started = True
        return self.may_begin and self.began_ms < self.until_ms
