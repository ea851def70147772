"""The simulated dialer: connections between processes over the simulated network."""

from collections.abc import Callable
from typing import TypeVar

from libramq.errors import ConnectFailed, LibraError, RemoteError
from libramq.remoting.command import Command
from libramq.rpc.call import Call
from libramq.runtime.seams import Dialed
from libramq.testing.machine.connection import Connection
from libramq.testing.machine.network import Network
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.transport.access import OPEN, Access
from libramq.transport.remotes import OnConnectionLost, OnRequest, Remotes
from libramq.transport.timeouts import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS


class _Unread:
    """A `network.Reader` that passes bytes on unchanged: `transport.remotes` decodes them."""

    def receive(self, data: bytes) -> list[bytes]:
        return [data]


class _SimulatedLink:
    """The client's end of a connection; a `network.ClientHandler`."""

    def __init__(self, dialed: Dialed, process: Process) -> None:
        self._dialed = dialed
        self._process = process
        self.connection: Connection | None = None

    def received(self, commands: list[bytes]) -> None:
        for data in commands:
            self._dialed.received(data)

    def closed(self) -> None:
        """Handle the end, later than the closing call, as an event loop would."""
        self._process.after(0, lambda: self._dialed.ended(""))

    def write(self, data: bytes) -> None:
        if self.connection is not None:
            self.connection.write(data)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def abort(self) -> None:
        self.close()


class SimulatedDialer:
    """Connects one process to others."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect; `dialed` gets the result."""

        def refused() -> None:
            dialed.refused(ConnectFailed(f"cannot connect to {address}"))

        def reached(accepted: bool | None) -> None:
            if accepted is None:
                self._process.after(CONNECT_TIMEOUT_MS, refused)
                return
            link = _SimulatedLink(dialed, self._process)
            if accepted:
                link.connection = self._network.connect(address, self._process, link, _Unread())
            if link.connection is None:
                refused()
            else:
                dialed.opened(link)

        self._network.reach(address, self._process, reached)


def simulated_remotes(
    network: Network,
    process: Process,
    *,
    on_request: OnRequest | None = None,
    lost: OnConnectionLost | None = None,
    access: Access = OPEN,
) -> Remotes:
    """Return the connections of a simulated process to others."""
    return Remotes(
        SimulatedDialer(network, process),
        SimulatedTimers(process),
        process.clock.monotonic_ms,
        on_request=on_request,
        lost=lost,
        access=access,
    )


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
