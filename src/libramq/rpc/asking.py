"""Asking: a typed call to another process, whose result is passed to a function."""

from collections.abc import Callable
from typing import TypeVar

from libramq.errors import LibraError, RemoteError
from libramq.remoting.command import Command
from libramq.rpc.call import Call
from libramq.transport.remotes import Remotes
from libramq.transport.timeouts import REQUEST_TIMEOUT_MS

T = TypeVar("T")


def ask(
    remotes: Remotes,
    address: str,
    call: Call[T],
    answered: Callable[[T | LibraError], object],
    timeout_ms: int = REQUEST_TIMEOUT_MS,
) -> None:
    """Make a call; `answered` is called once, with the result or the error."""

    def done(outcome: Command | RemoteError) -> None:
        answered(call.outcome(outcome, where=address))

    remotes.send(address, call.command(), done, timeout_ms=timeout_ms)
