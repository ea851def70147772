"""The parked request: one that a service answers in its own time."""

from libramq.kernel.purgatory import Parked
from libramq.rpc.request import Request


class ParkedRequest(Parked):
    """A request that waits without a deadline of its own: the service that took it keeps one."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        super().__init__(request.peer, cost_bytes=len(request.command.body))
        self.request = request
