"""A listening socket: frames in, one callback per read with every command it brought, bytes out.

A connection is closed at the first invalid byte, with the reason logged; others are not affected. A client
that does not read its replies is not read from either; its handler is called when it reads again
(`writable`). Upstream: remoting/netty/NettyRemotingServer.java.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, LibraError, ProtocolError
from libramq.kernel.connection import NUMBERS, Connection
from libramq.logs import get_logger
from libramq.remoting.connection import FrameReader
from libramq.transport import waiting_frames
from libramq.transport.descriptors import for_connections
from libramq.transport.large_reads import LARGE_FRAME_BYTES, LARGE_READ_BYTES, LargeReads
from libramq.transport.large_write import LARGE_BYTES, send_now
from libramq.transport.unfinished import UNFINISHED_BYTES_MAX, UnfinishedFrames
from libramq.transport.waiting_frames import WaitingFrames

log = get_logger(__name__)

#: The other end of a connection, as services see it.
Peer = Connection

#: Ours; NettyServerConfig has no limit and runs into the operating system's.
CONNECTIONS_MAX: Final = 20_000
#: Ours: a shortage is over when this share of the connections at its beginning is left.
ROOM_SHARE: Final = 0.9
#: NettyServerConfig.writeBufferHighWaterMark is off upstream; above ours a peer must read first.
WRITE_BUFFER_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: the limit of unsolicited data (woken pulls) to a peer that does not read.
WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024
#: Ours: how long a closing connection may take to deliver what was written before.
CLOSING_MS_MAX: Final = 1_000
#: NettyServerConfig.serverChannelMaxIdleTimeSeconds.
IDLE_MS_MAX: Final = 120_000
#: NettyServerConfig.serverSocketBacklog.
BACKLOG: Final = 1024


class Handler(Protocol):
    """The server's side of its connections. All methods are called on the event loop and must not block."""

    def connected(self, connection: Any) -> None:
        """Handle a new connection."""
        ...

    def received(self, connection: Any, requests: list[Any]) -> None:
        """One read brought these requests."""
        ...

    def writable(self, connection: Any) -> None:
        """Continue: the client has read most of the data sent to it."""
        ...

    def closed(self, connection: Any) -> None:
        """Handle the end of the connection."""
        ...


class Reader(Protocol):
    """Cuts a connection's bytes into requests; raises ProtocolError for invalid ones."""

    @property
    def partial_bytes(self) -> int:
        """The number of bytes held of an unfinished request."""
        ...

    def receive(self, data: bytes) -> list[Any]:
        """Take the bytes that arrived; return the requests that are whole now."""
        ...


class ServerConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._reader = server.reader()
        self._transport: asyncio.Transport | None = None
        self._is_congested = self._is_paused = self._waits_to_read_on = False
        self._unfinished_bytes = 0
        self._large_frame: int | None = None
        self.address = ""
        self.number = next(NUMBERS)
        self.last_read_ms = server.monotonic_ms()
        self.closing_since_ms: MonotonicMs | None = None

    @property
    def is_open(self) -> bool:
        """Return whether data written now can still arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle asyncio's new connection."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass, but behaves like one.
        peer_name = transport.get_extra_info("peername")
        self.address = f"{peer_name[0]}:{peer_name[1]}" if peer_name else ""
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        if not self._server.admit(self, transport.get_extra_info("socket").fileno()):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle the bytes of one read."""
        self.last_read_ms = self._server.monotonic_ms()
        try:
            requests = self._reader.receive(data)
        except ProtocolError as error:
            self.close(str(error))
            return
        unfinished_bytes = self._reader.partial_bytes
        whole_bytes = self._unfinished_bytes + len(data) - unfinished_bytes
        if unfinished_bytes or self._unfinished_bytes:
            self._unfinished_bytes = unfinished_bytes
            self._server.holds_unfinished(self, unfinished_bytes, is_another=bool(requests))
            self._wait_to_read_on(unfinished_bytes, is_another=bool(requests))
        if requests:
            try:
                self._server.handler.received(self, requests)
            except Exception:
                log.exception("handler failed; connection closed", peer=self.address)
                self.close("handler failed")
            if self._is_paused and self.is_open:
                self._server.holds_waiting(self, whole_bytes)
        if len(data) >= LARGE_READ_BYTES and not self._waits_to_read_on and self.is_open:
            self._wait(self._server.large_reads.begin())

    def give_up_frame(self, reason: str) -> None:
        """End the connection, and keep nothing of the frame whose rest has not come."""
        self._reader = self._server.reader()
        self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._transport = None
        self._server.discard(self)

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its replies."""
        self._is_congested = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """Read again: the client reads its replies."""
        self._is_congested = False
        self.last_read_ms = self._server.monotonic_ms()
        self._server.handler.writable(self)
        self._read_or_not()

    def _wait_to_read_on(self, unfinished_bytes: int, *, is_another: bool) -> None:
        """Read the next part of a large frame when those of others that were begun before have been read."""
        large_reads = self._server.large_reads
        if unfinished_bytes < LARGE_FRAME_BYTES:
            self._large_frame = None
        elif self.is_open:
            if self._large_frame is None or is_another:
                self._large_frame = large_reads.begin()
            self._wait(self._large_frame)

    def _wait(self, number: int) -> None:
        self._waits_to_read_on = True
        self._read_or_not()
        self._server.large_reads.wait(self, number)

    def read_on(self) -> None:
        """Read again: the next part of a large frame, or the next of many requests."""
        self._waits_to_read_on = False
        self._read_or_not()

    def pause_reading(self) -> None:
        """Stop reading: earlier requests are not processed yet."""
        self._is_paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        """Read again, unless the client must read first."""
        self._is_paused = False
        self._server.holds_none_waiting(self)
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.is_open:
            assert self._transport is not None
            if self._is_paused or self._is_congested or self._waits_to_read_on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    @property
    def unsent_bytes(self) -> int:
        """Return how many written bytes have not left yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data if len(data) < LARGE_BYTES else send_now(self._transport, data))
            if self._is_congested and self._transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
                self.abort(f"{WRITE_BUFFER_BYTES_MAX} bytes wait to be read by the peer")

    def close(self, reason: str) -> None:
        """Close the connection after all written data has left; at the latest after CLOSING_MS_MAX."""
        if self._transport is not None and not self._transport.is_closing():
            log.info("connection closed", peer=self.address, reason=reason)
            self.closing_since_ms = self._server.monotonic_ms()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection now, dropping data that has not left yet."""
        if self._transport is not None:
            log.info("connection aborted", peer=self.address, reason=reason)
            self._transport.abort()


class Server:
    """A listening socket and its connections.

    reader: makes what cuts a connection's bytes into requests; RocketMQ's frames by default.
    is_allowed: returns whether an address may connect. descriptors_max: the number from which on no
    connection may have a descriptor; by default the process's limit less what files need, when it begins to
    listen.
    """

    def __init__(
        self,
        handler: Handler,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        reader: Callable[[], Reader] = FrameReader,
        is_allowed: Callable[[str], bool] = lambda _: True,
        descriptors_max: int | None = None,
    ) -> None:
        self.reader = reader
        self._is_allowed = is_allowed
        self._descriptors_max = descriptors_max
        self._refused_count = 0
        self._full_count = 0
        self.handler = handler
        self.monotonic_ms = monotonic_ms
        self._connections: set[ServerConnection] = set()
        self._unfinished: UnfinishedFrames[ServerConnection] = UnfinishedFrames()
        self._server: asyncio.Server | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._waiting: WaitingFrames[ServerConnection] = WaitingFrames()
        self._stuck_check: asyncio.TimerHandle | None = None
        self.large_reads = LargeReads(
            lambda work: asyncio.get_running_loop().call_soon(work), has_room=lambda: self._waiting.has_room
        )

    @property
    def connection_count(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port (for 0: the one the system chose).

        Raises ConfigError when the address is taken or not ours.
        """
        if self._descriptors_max is None:
            self._descriptors_max = for_connections()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ServerConnection(self), host, port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise _listen_error(host, port, error) from None
        self._idle_check = loop.call_later(IDLE_MS_MAX / 4000, self._close_idle)
        bound: Any = self._server.sockets[0].getsockname()
        return int(bound[1])

    def admit(self, connection: ServerConnection, descriptor: int) -> bool:
        """Accept a new connection within the limits; a shortage is logged once."""
        assert self._descriptors_max is not None, "the server does not listen"
        if not self._is_allowed(connection.address):
            log.warning("a connection is refused: its address is not allowed", peer=connection.address)
            return False
        if len(self._connections) >= CONNECTIONS_MAX or descriptor >= self._descriptors_max:
            if not self._refused_count:
                log.warning(
                    "connections are refused: too many connections or files; raise the limit (ulimit -n)",
                    peer=connection.address,
                    connections=len(self._connections),
                    descriptors=self._descriptors_max,
                )
            self._full_count = len(self._connections)
            self._refused_count += 1
            return False
        # A low descriptor alone says little: a file that was closed had it.
        if self._refused_count and len(self._connections) < self._full_count * ROOM_SHARE:
            log.warning("connections are accepted again", refused=self._refused_count)
            self._refused_count = 0
        self._connections.add(connection)
        self.handler.connected(connection)
        return True

    def holds_unfinished(self, connection: ServerConnection, size: int, *, is_another: bool) -> None:
        """Record a connection's incomplete frame; close the worst ones if all together hold too much."""
        unfinished = self._unfinished
        worst = unfinished.update(connection, size, connection.last_read_ms, is_another=is_another)
        if worst:
            held = f"{unfinished.total_bytes} bytes of unfinished frames; {UNFINISHED_BYTES_MAX} are allowed"
            for each in worst:
                unfinished.forget(each)
                each.give_up_frame(f"this connection held the most for the longest of {held}")

    def holds_waiting(self, connection: ServerConnection, size: int) -> None:
        """Record whole frames of a connection whose requests wait; without room, large ones are not read."""
        self._waiting.add(connection, size)
        if not self._waiting.has_room and self._stuck_check is None:
            self._check_stuck_later()

    def holds_none_waiting(self, connection: ServerConnection) -> None:
        """Record that a connection's requests are processed."""
        self._waiting.forget(connection)
        if self._waiting.has_room:
            if self._stuck_check is not None:
                self._stuck_check.cancel()
                self._stuck_check = None
            self.large_reads.resume()

    def _check_stuck_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._stuck_check = loop.call_later(waiting_frames.STUCK_MS / 1000, self._end_stuck)

    def _end_stuck(self) -> None:
        """End a connection that keeps the room for large frames because its client does not read."""
        self._stuck_check = None
        stuck = self._waiting.stuck()
        if stuck is not None:
            held = f"{self._waiting.total_bytes} bytes of requests wait"
            stuck.abort(f"{held}, and this client leaves {stuck.unsent_bytes} bytes of its answers unread")
        self._check_stuck_later()

    def discard(self, connection: ServerConnection) -> None:
        """Handle the end of a connection."""
        self._unfinished.forget(connection)
        self.holds_none_waiting(connection)
        if connection in self._connections:
            self._connections.discard(connection)
            if not self._connections:
                self._all_closed.set()
            self.handler.closed(connection)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._stuck_check is not None:
            self._stuck_check.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close("server stops")
        try:
            async with asyncio.timeout(CLOSING_MS_MAX / 1000):
                await self._wait_all_closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort("the server stops and the peer does not read")
            await self._wait_all_closed()
        if self._server is not None:
            await self._server.wait_closed()

    async def _wait_all_closed(self) -> None:
        if self._connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _close_idle(self) -> None:
        now_ms = self.monotonic_ms()
        for connection in list(self._connections):
            closing_since_ms = connection.closing_since_ms
            if closing_since_ms is not None and now_ms - closing_since_ms >= CLOSING_MS_MAX:
                connection.abort("the peer does not read what was written before the end")
            elif now_ms - connection.last_read_ms > IDLE_MS_MAX:
                connection.close(f"nothing read for {IDLE_MS_MAX} ms")
        self._idle_check = asyncio.get_running_loop().call_later(IDLE_MS_MAX / 4000, self._close_idle)


def _listen_error(host: str, port: int, error: OSError) -> LibraError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is taken; stop what listens there or choose another port")
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
        return ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port"
        )
    return ConfigError(f"cannot listen on {host}:{port}: {error}")
