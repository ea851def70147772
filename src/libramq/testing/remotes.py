"""The simulated client side of connections: one an address, any number of requests in flight.

What `transport.remote.Remotes` does over sockets, with its times.
"""

from collections.abc import Callable
from typing import TypeVar

from libramq.errors import (
    ConnectFailed,
    ConnectionLost,
    LibraError,
    ProtocolError,
    RemoteError,
    RequestTimeout,
)
from libramq.remoting.command import Command
from libramq.remoting.connection import PendingRequests
from libramq.remoting.frame import encode_frame
from libramq.rpc.call import Call
from libramq.testing.network import Connection, Network
from libramq.testing.process import Process
from libramq.transport.remote import DEADLINE_SCAN_MS, SILENCE_MS_MAX, Asked, Done, Lost, refuse
from libramq.transport.timeouts import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS

T = TypeVar("T")


class _Remote:
    """One connection, seen from the client; a `network.ClientHandler`."""

    def __init__(self, remotes: "SimulatedRemotes", address: str) -> None:
        self._remotes = remotes
        self.address = address
        self.pending: PendingRequests[Done] = PendingRequests()
        self.connection: Connection | None = None

    def received(self, commands: list[Command]) -> None:
        for command in commands:
            if command.is_response:
                done = self.pending.take(command)
                if done is not None:
                    done(command)
            else:
                self._remotes.asked(self.address, command, self.write)

    def closed(self) -> None:
        self._remotes.discard(self)
        for done in self.pending.drain():
            done(ConnectionLost(f"the connection to {self.address} ended before the answer came"))

    def write(self, command: Command) -> None:
        assert self.connection is not None
        self.connection.write(encode_frame(command))


class SimulatedRemotes:
    """Every process that one process talks to."""

    def __init__(
        self, network: Network, process: Process, *, asked: Asked | None = None, lost: Lost | None = None
    ) -> None:
        self.asked = asked or refuse
        self._lost = lost
        self._network = network
        self._process = process
        self._remotes: dict[str, _Remote] = {}
        self._connecting: dict[str, list[Callable[[_Remote | RemoteError], None]]] = {}
        self._scans = False
        self._closing = False

    def ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError], None],
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Make a call; `answered` is told the result, or what went wrong."""

        def done(outcome: Command | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                answered(outcome)
                return
            try:
                result: T | LibraError = call.result(outcome, where=address)
            except LibraError as error:
                result = error
            answered(result)

        self.send(address, call.command(), done, timeout_ms=timeout_ms)

    def send(
        self, address: str, request: Command, done: Done, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Make a request; `done` is called exactly once."""
        remote = self._remotes.get(address)
        if remote is not None:
            self._write(remote, request, done, timeout_ms)
            return

        def connected(outcome: _Remote | RemoteError) -> None:
            if isinstance(outcome, _Remote):
                self._write(outcome, request, done, timeout_ms)
            else:
                done(outcome)

        self._connect(address, connected)

    def is_connected(self, address: str) -> bool:
        """Whether a connection to the address is open."""
        return address in self._remotes

    def discard(self, remote: _Remote) -> None:
        """A connection ended."""
        if self._remotes.get(remote.address) is remote:
            del self._remotes[remote.address]
            if self._lost is not None and not self._closing:
                self._lost(remote.address)

    def close(self) -> None:
        """End every connection."""
        self._closing = True
        for remote in list(self._remotes.values()):
            assert remote.connection is not None
            remote.connection.close()

    def _write(self, remote: _Remote, request: Command, done: Done, timeout_ms: int) -> None:
        if self._remotes.get(remote.address) is not remote:
            done(ConnectionLost(f"the connection to {remote.address} ended"))
            return
        try:
            remote.pending.add(request, done, deadline_ms=self._process.now_ms + timeout_ms)
        except ProtocolError as error:
            done(RemoteError(str(error)))
            return
        remote.write(request)
        if not self._scans:
            self._scans = True
            self._process.after(DEADLINE_SCAN_MS, self._expire)

    def _expire(self) -> None:
        now_ms = self._process.now_ms
        waiting = 0
        for remote in list(self._remotes.values()):
            late = remote.pending.expire(now_ms)
            for done in late:
                done(RequestTimeout(f"{remote.address} did not answer in time"))
            assert remote.connection is not None
            if late and remote.connection.client_silent_ms >= SILENCE_MS_MAX:
                remote.connection.close()
            waiting += len(remote.pending)
        self._scans = bool(waiting)
        if waiting:
            self._process.after(DEADLINE_SCAN_MS, self._expire)

    def _connect(self, address: str, connected: Callable[[_Remote | RemoteError], None]) -> None:
        waiting = self._connecting.get(address)
        if waiting is not None:
            waiting.append(connected)
            return
        self._connecting[address] = [connected]

        def reached(accepted: bool | None) -> None:
            if accepted is None:
                self._process.after(CONNECT_TIMEOUT_MS, lambda: self._connected(address, None))
            else:
                self._connected(address, self._open(address) if accepted else None)

        self._network.reach(address, self._process, reached)

    def _open(self, address: str) -> _Remote | None:
        remote = _Remote(self, address)
        remote.connection = self._network.connect(address, self._process, remote)
        return remote if remote.connection is not None else None

    def _connected(self, address: str, remote: _Remote | None) -> None:
        waiting = self._connecting.pop(address)
        if remote is not None:
            if self._closing:
                assert remote.connection is not None
                remote.connection.close()
                remote = None
            else:
                self._remotes[address] = remote
        for connected in waiting:
            connected(remote if remote is not None else ConnectFailed(f"cannot connect to {address}"))
