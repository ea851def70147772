"""The network: which processes listen where, and the connections between them.

A blocked direction keeps its connections open without an error; those that lost bytes break when it is
unblocked.
"""

import random
from collections.abc import Callable

from libramq.remoting.connection import FrameReader
from libramq.testing.machine.air import Air, Kept
from libramq.testing.machine.connection import ClientHandler, Connection, Reader
from libramq.testing.machine.process import Process
from libramq.testing.scenarios.happening import Happening
from libramq.transport.server_connection import Handler


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
