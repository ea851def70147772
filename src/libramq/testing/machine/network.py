"""The network: which processes listen where, and the connections between them.

A blocked direction keeps its connections open without an error; those that lost bytes break when it is
unblocked.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from libramq.errors import ConnectFailed, LibraError, RemoteError
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameReader
from libramq.rpc.call import Call
from libramq.runtime.seams import Dialed
from libramq.testing.happening import Happening
from libramq.testing.machine.connection import Air, ClientHandler, Connection, Kept, Reader
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.transport.access import CONNECT_TIMEOUT_MS, OPEN, REQUEST_TIMEOUT_MS, Access
from libramq.transport.remotes import OnConnectionLost, OnRequest, Remotes
from libramq.transport.server import Handler


class Network(Air):
    """The simulated network: listening addresses, connections and blocks."""

    def __init__(self, randomness: random.Random, happened: Callable[[Happening], None]) -> None:
        super().__init__(randomness, happened)
        self._listeners: dict[str, tuple[Process, Handler, Callable[[], Reader]]] = {}
        self._names: dict[str, str] = {}
        self._connections: list[Connection] = []

    def listen(
        self, address: str, process: Process, handler: Handler, reader: Callable[[], Reader] = FrameReader
    ) -> None:
        """Accept connections at an address while the process lives. reader: of the server's ends."""
        self._listeners[address] = (process, handler, reader)
        self._names[address] = process.name

    def name_at(self, address: str) -> str:
        """Return the name of the process at an address."""
        return self._names[address]

    def reach(self, address: str, client: Process, connected: Callable[[bool | None], None]) -> None:
        """Try to connect: called back with True, False if refused, None if nothing answers."""
        listener = self._listeners.get(address)
        if listener is None:
            client.reach(self.latency_ms() + self.latency_ms(), lambda: connected(False))
            return
        server = listener[0].name
        if (client.name, server) in self.blocked or (server, client.name) in self.blocked:
            connected(None)
            return
        client.reach(self.latency_ms() + self.latency_ms(), lambda: connected(True))

    def connect(
        self, address: str, client: Process, handler: ClientHandler, reader: Reader
    ) -> Connection | None:
        """Return the accepted connection; None if the server has died meanwhile."""
        if address not in self._listeners:
            return None
        process, served, server_reader = self._listeners[address]
        connection = Connection(self, client, process, handler, served, (reader, server_reader()))
        self._connections.append(connection)
        served.connected(connection.end)
        return connection

    def connections(self) -> list[Connection]:
        """Return the connections with an open end."""
        self._connections = [each for each in self._connections if each.client_is_open or each.server_is_open]
        return list(self._connections)

    def between(self, first: str, second: str) -> list[Connection]:
        """Return the open connections between two processes, in either direction."""
        return [
            connection
            for connection in self.connections()
            if {process.name for process in connection.ends} == {first, second}
        ]

    def died(self, process: Process) -> None:
        """Handle the death of a process: its connections end, and nothing listens there."""
        for address in [address for address, (at, _, _) in self._listeners.items() if at is process]:
            del self._listeners[address]
        for connection in self.connections():
            if process in connection.ends:
                connection.dropped_by(process)

    def block(self, source: str, target: str, *, keeps: bool) -> None:
        """Block one direction. keeps: data sent meanwhile arrives after the unblocking."""
        self.blocked.setdefault((source, target), Kept(keeps))

    def unblock(self, source: str, target: str) -> None:
        """Unblock a direction; connections with lost bytes break."""
        kept = self.blocked.pop((source, target), None)
        if kept is not None and kept.has_lost:
            for connection in self.between(source, target):
                connection.reset()
        for send, data in kept.sent if kept is not None else ():
            send(data)


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
