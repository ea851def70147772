"""The asyncio shell of outgoing connections: one connection an address, any number of requests in flight.

Requests asked for in one turn of the event loop leave in one write. Upstream: NettyRemotingClient.java.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import ConnectFailed, ConnectionLost, ProtocolError, RemoteError, RequestTimeout
from libramq.logs import get_logger
from libramq.remoting.command import FLAG_ONEWAY, Command, reply_to
from libramq.remoting.connection import FrameReader, PendingRequests
from libramq.remoting.frame import encode_frame
from libramq.transport.access import OPEN, Access
from libramq.transport.address import split_address
from libramq.transport.timeouts import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from libramq.transport.tls import SHUTDOWN_TIMEOUT_S, handshake_failure

log = get_logger(__name__)

#: How often deadlines are looked at; upstream scans each second (NettyRemotingClient.scanResponseTable).
DEADLINE_SCAN_MS: Final = 50

#: Ours: a connection on which requests time out and nothing came for so long is dead, though nobody said so;
#: a new one is made for the next request. Upstream closes at each timeout (clientCloseSocketIfTimeout).
SILENCE_MS_MAX: Final = 10_000

#: Called with the reply, or with what went wrong.
Done = Callable[[Command | RemoteError], None]
#: Called with a request that the other side made, and a way to answer it.
Asked = Callable[[str, Command, Callable[[Command], None]], None]
#: Called with the address whose connection ended.
Lost = Callable[[str], None]


def refuse(_: str, request: Command, answer: Callable[[Command], None]) -> None:
    """Answer a request that nobody serves; that we answer shows that we are alive (NettyRemotingAbstract)."""
    if not request.flag & FLAG_ONEWAY:
        remark = f" request type {request.code} not supported"
        answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))


class _RemoteConnection(asyncio.Protocol):
    """One outgoing connection."""

    def __init__(self, remotes: "Remotes", address: str) -> None:
        self._remotes = remotes
        self._reader = FrameReader()
        self._corked: list[bytes] = []
        self.address = address
        self.pending: PendingRequests[Done] = PendingRequests()
        self.last_read_ms = remotes.monotonic_ms()
        self.is_mute = True
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none, but behaves as one.
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.last_read_ms = self._remotes.monotonic_ms()
        self.is_mute = False
        try:
            commands = self._reader.receive(data)
        except ProtocolError as error:
            log.warning("connection closed", peer=self.address, reason=str(error))
            self.close()
            return
        for command in commands:
            if command.is_response:
                done = self.pending.take(command)
                if done is not None:
                    done(command)
            else:
                self._remotes.asked(self.address, command, self.write)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.ended.set()
        self._remotes.discard(self)
        reason = "" if exc is None else str(exc)
        told = self._remotes.access.lost(self.address, is_mute=self.is_mute, reason=reason)
        for done in self.pending.drain():
            done(ConnectionLost(told))

    def ask(self, request: Command) -> None:
        """Send a request, signed."""
        self.write(self._remotes.access.signed(request))

    def write(self, command: Command) -> None:
        """Send a command with what else this turn of the loop sends."""
        if not self._corked:
            asyncio.get_running_loop().call_soon(self._uncork)
        self._corked.append(encode_frame(command))

    def _uncork(self) -> None:
        corked, self._corked = self._corked, []
        if self.transport is not None and corked:
            self.transport.write(corked[0] if len(corked) == 1 else b"".join(corked))

    def close(self) -> None:
        if self.transport is not None:
            self._uncork()
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Remotes:
    """Every process we talk to, by address. Lives on one event loop.

    asked: called with requests the other side makes over our connections; None: they are refused.
    lost: called when a connection ended that had been open.
    access: how we come into them; raises ConfigError for files that cannot be used.
    """

    def __init__(
        self,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        asked: Asked | None = None,
        lost: Lost | None = None,
        access: Access = OPEN,
    ) -> None:
        if access.tls is not None:
            access.tls.context()  # What is wrong with its files is said now.
        self.asked = asked or refuse
        self.access = access
        self._lost = lost
        self.monotonic_ms = monotonic_ms
        self._connections: dict[str, _RemoteConnection] = {}
        self._connecting: dict[str, asyncio.Task[_RemoteConnection]] = {}
        self._scan: asyncio.TimerHandle | None = None
        self._closing = False

    def send(
        self, address: str, request: Command, done: Done, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Make a request; `done` is called exactly once, with the reply or a RemoteError."""
        connection = self._connections.get(address)
        if connection is not None:
            self._write(connection, request, done, timeout_ms)
            return

        def connected(task: asyncio.Task[_RemoteConnection]) -> None:
            error = ConnectionLost("stopped") if task.cancelled() else task.exception()
            if error is None:
                self._write(task.result(), request, done, timeout_ms)
            elif isinstance(error, RemoteError):
                done(error)
            else:
                done(ConnectFailed(f"cannot connect to {address}: {error}"))

        self._connect(address).add_done_callback(connected)

    def send_oneway(self, address: str, request: Command) -> None:
        """Make a one-way request; dropped when there is no connection and none can be made."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.pending.number(request)
            connection.ask(request)
            return

        def connected(task: asyncio.Task[_RemoteConnection]) -> None:
            if not task.cancelled() and task.exception() is None:
                connection = task.result()
                connection.pending.number(request)
                connection.ask(request)

        self._connect(address).add_done_callback(connected)

    async def call(self, address: str, request: Command, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Make a request and wait for its reply; raises RemoteError."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def done(outcome: Command | RemoteError) -> None:
            if future.done():
                return
            if isinstance(outcome, Command):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        self.send(address, request, done, timeout_ms=timeout_ms)
        return await future

    def is_connected(self, address: str) -> bool:
        """Whether a connection to the address is open."""
        return address in self._connections

    def close_connection(self, address: str) -> None:
        """End the connection to an address, if there is one."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close()

    def discard(self, connection: _RemoteConnection) -> None:
        """A connection ended."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self._lost is not None and not self._closing:
                self._lost(connection.address)

    async def close(self) -> None:
        """End every connection; requests in flight fail with ConnectionLost."""
        self._closing = True
        if self._scan is not None:
            self._scan.cancel()
        for task in list(self._connecting.values()):
            task.cancel()
        closing = list(self._connections.values())
        for connection in closing:
            connection.close()
        await asyncio.sleep(0)
        if self.access.tls is not None:  # Its goodbye wants an answer.
            await asyncio.gather(*(connection.ended.wait() for connection in closing))

    def _write(self, connection: _RemoteConnection, request: Command, done: Done, timeout_ms: int) -> None:
        if connection.transport is None:
            done(ConnectionLost(f"the connection to {connection.address} ended"))
            return
        try:
            connection.pending.add(request, done, deadline_ms=self.monotonic_ms() + timeout_ms)
            connection.ask(request)
        except ProtocolError as error:
            connection.pending.discard(request.opaque)
            done(RemoteError(str(error)))
            return
        if self._scan is None:
            self._scan = asyncio.get_running_loop().call_later(DEADLINE_SCAN_MS / 1000, self._expire)

    def _expire(self) -> None:
        now_ms = self.monotonic_ms()
        waiting = 0
        for connection in list(self._connections.values()):
            late = connection.pending.expire(now_ms)
            for done in late:
                done(RequestTimeout(f"{connection.address} did not answer in time"))
            if late and now_ms - connection.last_read_ms >= SILENCE_MS_MAX:
                log.warning("connection closed: the other side is silent", peer=connection.address)
                connection.abort()
            waiting += len(connection.pending)
        self._scan = (
            asyncio.get_running_loop().call_later(DEADLINE_SCAN_MS / 1000, self._expire) if waiting else None
        )

    def _connect(self, address: str) -> asyncio.Task[_RemoteConnection]:
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return task

    async def _open(self, address: str) -> _RemoteConnection:
        host, port = split_address(address)
        tls = self.access.tls
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "ssl": tls.context(),
                "server_hostname": host,
                "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
            }
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _RemoteConnection(self, address), host, port, **secured
                )
        except TimeoutError:
            raise ConnectFailed(
                f"{address} did not accept a connection within {CONNECT_TIMEOUT_MS} ms"
            ) from None
        except OSError as error:
            told = None if tls is None else handshake_failure(address, error)
            raise ConnectFailed(told or f"cannot connect to {address}: {error.strerror or error}") from None
        if self._closing or connection.transport is None:
            connection.close()
            raise ConnectionLost(f"the connection to {address} ended")
        self._connections[address] = connection
        return connection
