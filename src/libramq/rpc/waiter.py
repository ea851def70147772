"""The waiter of a request: turns a service's result into RocketMQ's reply."""

from collections.abc import Callable
from typing import Any

from libramq.rpc.outcome import Outcome
from libramq.rpc.request import Request, failure


class RequestWaiter:
    """A `kernel.waiter.Waiter` for one request. translate: returns the reply for a result."""

    __slots__ = ("_answer", "_request", "_translate", "connection")

    def __init__(
        self,
        request: Request,
        answer: Callable[[Request, Outcome], None],
        translate: Callable[[Any], Outcome],
    ) -> None:
        self.connection = request.peer
        # Without header and body: thousands of pulls and polls may be held.
        self._request = Request(
            request.command, request.peer, request.wall_ms, request.monotonic_ms, request.principal
        )
        self._answer = answer
        self._translate = translate

    def answer(self, result: Any) -> None:
        """Send the reply for a result."""
        self._answer(self._request, self._translate(result))

    def refuse(self, error: Exception) -> None:
        """Send the reply for an error."""
        self._answer(self._request, failure(error, self._request))
