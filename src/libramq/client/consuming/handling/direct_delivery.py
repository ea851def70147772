"""The direct delivery: an operator passes a message to a consumer's handler, outside of its queues.

So does a broker with a retry that reached a member of the group which does not subscribe to its topic.

It does not block the queue, and its result neither moves an offset nor sends the message back.
Upstream: ConsumeMessageConcurrentlyService.consumeMessageDirectly.
"""

from collections.abc import Callable, Sequence

from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.message.message import MessageExt
from libramq.remoting.body.administration import ConsumeDirectlyResult

#: CMResult.
CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"


class DirectDelivery(Delivery):
    """One message for one call of a handler. ended: takes the result, on the network thread."""

    __slots__ = ("_error", "_monotonic_ms", "_orderly", "ended")

    def __init__(
        self,
        messages: Sequence[MessageExt],
        *,
        orderly: bool,
        monotonic_ms: Callable[[], MonotonicMs],
        ended: Callable[[ConsumeDirectlyResult, Ending], None],
    ) -> None:
        self.messages = messages
        self.started = False
        self.began_ms = monotonic_ms()
        self.ended = ended
        self._orderly = orderly
        self._monotonic_ms = monotonic_ms
        self._error: str | None = None

    def begin(self) -> bool:
        """Begin; nothing forbids it."""
        self.began_ms = self._monotonic_ms()
        self.started = True
        return True

    def raised(self, error: BaseException) -> None:
        """Keep what the handler raised, for the operator."""
        self._error = f"{type(error).__name__}: {error}"

    def result(self, ending: Ending) -> ConsumeDirectlyResult:
        """Return the answer to the operator."""
        if self._error is not None:
            outcome = CR_THROW_EXCEPTION
        else:
            outcome = CR_SUCCESS if ending is HandlerOutcome.SUCCESS else CR_LATER
        return ConsumeDirectlyResult(
            order=self._orderly,
            consume_result=outcome,
            remark=self._error,
            spent_time_mills=self._monotonic_ms() - self.began_ms,
        )
