"""The simulated client's name servers: any of them can answer; the one that did is asked again.

What `client.name_servers` does over sockets.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from libramq.errors import LibraError, NameServerUnavailable, RemoteError
from libramq.remoting.command import Command
from libramq.rpc.call import Call
from libramq.transport.remotes import Remotes

T = TypeVar("T")


class SimulatedNameServers:
    """Asks one, and the next when it does not answer."""

    def __init__(self, remotes: Remotes, addresses: Sequence[str], randomness: random.Random) -> None:
        self._remotes = remotes
        self._addresses = list(addresses)
        randomness.shuffle(self._addresses)
        self._current = 0

    def ask(self, call: Call[T], answered: Callable[[T | LibraError], None], *, tried: int = 0) -> None:
        """Ask; `answered` hears the result, what is wrong with it, or NameServerUnavailable."""
        address = self._addresses[self._current]

        def done(outcome: Command | RemoteError) -> None:
            if not isinstance(outcome, RemoteError):
                try:
                    result: T | LibraError = call.result(outcome, where=address)
                except LibraError as error:
                    result = error
                answered(result)
                return
            if address == self._addresses[self._current]:
                self._current = (self._current + 1) % len(self._addresses)
            if tried + 1 < len(self._addresses):
                self.ask(call, answered, tried=tried + 1)
            else:
                answered(NameServerUnavailable(str(outcome)))

        self._remotes.send(address, call.command(), done)
