"""A listening socket and its connections, within the limits that all of them share.

Upstream: remoting/netty/NettyRemotingServer.java.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Final

from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, LibraError
from libramq.logs import get_logger
from libramq.remoting.connection import FrameReader
from libramq.transport import waiting_frames
from libramq.transport.descriptors import for_connections
from libramq.transport.large_reads import LargeReads
from libramq.transport.large_write import LargeWrites
from libramq.transport.server_connection import Handler, Reader, ServerConnection
from libramq.transport.unfinished import UNFINISHED_BYTES_MAX, UnfinishedFrames
from libramq.transport.waiting_frames import WaitingFrames

log = get_logger(__name__)

#: Ours; NettyServerConfig has no limit and runs into the operating system's.
CONNECTIONS_MAX: Final = 20_000
#: Ours: a shortage is over when this share of the connections at its beginning is left.
ROOM_SHARE: Final = 0.9
#: Ours: how long a closing connection may take to deliver what was written before.
CLOSING_MS_MAX: Final = 1_000
#: NettyServerConfig.serverChannelMaxIdleTimeSeconds.
IDLE_MS_MAX: Final = 120_000
#: NettyServerConfig.serverSocketBacklog.
BACKLOG: Final = 1024


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
        #: Those that the loop is accepting, in several of its rounds, and those that are refused.
        self._others: set[ServerConnection] = set()
        self._is_closing = False
        self._unfinished: UnfinishedFrames[ServerConnection] = UnfinishedFrames()
        self._server: asyncio.Server | None = None
        self._idle_check: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._waiting: WaitingFrames[ServerConnection] = WaitingFrames()
        self._stuck_check: asyncio.TimerHandle | None = None
        self.large_reads = LargeReads(
            lambda work: asyncio.get_running_loop().call_soon(work), has_room=lambda: self._waiting.has_room
        )
        self.large_writes = LargeWrites(lambda work: asyncio.get_running_loop().call_soon(work))

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
        self._is_closing = False  # It may have been closed before.
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._accepting, host, port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise _listen_error(host, port, error) from None
        self._idle_check = loop.call_later(IDLE_MS_MAX / 4000, self._close_idle)
        bound: Any = self._server.sockets[0].getsockname()
        return int(bound[1])

    def _accepting(self) -> ServerConnection:
        connection = ServerConnection(self)
        self._others.add(connection)
        return connection

    def admit(self, connection: ServerConnection, descriptor: int) -> bool:
        """Accept a new connection within the limits; a shortage is logged once."""
        assert self._descriptors_max is not None, "the server does not listen"
        if self._is_closing:
            return False
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
        self._others.discard(connection)
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
        self._others.discard(connection)
        was_admitted = connection in self._connections
        self._connections.discard(connection)
        if not self._connections and not self._others:
            self._all_closed.set()
        if was_admitted:
            self.handler.closed(connection)

    async def close(self) -> None:
        """Stop listening and close every connection, those too that are just being accepted."""
        self._is_closing = True
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._stuck_check is not None:
            self._stuck_check.cancel()
        if self._server is not None:
            await self._stop_accepting(self._server)
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

    @staticmethod
    async def _stop_accepting(server: asyncio.Server) -> None:
        """Close the listening sockets when the loop has made a protocol of every connection it has accepted.

        asyncio does that one round after `accept`; where its server is closed in between, it loses the
        connection's socket, open (Python 3.11: Server._attach).
        """
        loop = asyncio.get_running_loop()
        for each in server.sockets:
            loop.remove_reader(each.fileno())
        await asyncio.sleep(0)
        server.close()

    async def _wait_all_closed(self) -> None:
        if self._connections or self._others:
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
