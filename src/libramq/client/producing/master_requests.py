"""Requests to the master of a broker name, other than sends."""

from collections.abc import Callable
from typing import TypeVar

from libramq.client.routing.route_table import RouteTable
from libramq.errors import ConnectFailed, LibraError, RemoteError
from libramq.remoting.command import Command
from libramq.rpc.call import Call
from libramq.transport.remotes import Remotes

T = TypeVar("T")


class MasterRequests:
    """Makes requests of a producer to brokers by name, one attempt each."""

    def __init__(self, remotes: Remotes, table: RouteTable) -> None:
        self._remotes = remotes
        self._table = table

    def ask(
        self, broker_name: str, call: Call[T], answered: Callable[[T | LibraError], None], *, timeout_ms: int
    ) -> None:
        """Make a request; `answered` is called once."""
        address = self._table.master(broker_name)
        if address is None:
            answered(ConnectFailed(f"broker {broker_name} is not known, or has no master now"))
            return

        def done(outcome: Command | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                answered(outcome)
                return
            try:
                result = call.result(outcome, where=f"broker {broker_name} at {address}")
            except LibraError as error:
                answered(error)
            else:
                answered(result)

        self._remotes.send(address, call.command(), done, timeout_ms=timeout_ms)
