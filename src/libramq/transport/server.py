"""A server: its connections, within the limits that all of them share.

Upstream: remoting/netty/NettyRemotingServer.java.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger
from libramq.remoting.connection import FrameReader
from libramq.transport import waiting_frames
from libramq.transport.admission import Admission
from libramq.transport.large_reads import LargeReads
from libramq.transport.large_write import LargeWrites
from libramq.transport.listener import Listener
from libramq.transport.server_connection import Handler, Reader, ServerConnection
from libramq.transport.tls import TlsByFirstByte
from libramq.transport.unfinished import UNFINISHED_BYTES_MAX, UnfinishedFrames
from libramq.transport.waiting_frames import WaitingFrames

log = get_logger(__name__)

#: Ours: how long a closing connection may take to deliver what was written before.
CLOSING_MS_MAX: Final = 1_000
#: NettyServerConfig.serverChannelMaxIdleTimeSeconds.
IDLE_MS_MAX: Final = 120_000


class Server:
    """The connections to one port.

    reader: makes what cuts a connection's bytes into requests; RocketMQ's frames by default.
    is_allowed, descriptors_max: see `Admission`. tls: see `Listener`.
    """

    def __init__(
        self,
        handler: Handler,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        reader: Callable[[], Reader] = FrameReader,
        is_allowed: Callable[[str], bool] = lambda _: True,
        descriptors_max: int | None = None,
        tls: TlsByFirstByte | None = None,
    ) -> None:
        self.reader = reader
        self._admission = Admission(is_allowed, descriptors_max)
        self._listener = Listener(
            self._admission, lambda address: ServerConnection(self, address), monotonic_ms, tls
        )
        self.handler = handler
        self.monotonic_ms = monotonic_ms
        self._connections: set[ServerConnection] = set()
        self._is_closing = False
        self._unfinished: UnfinishedFrames[ServerConnection] = UnfinishedFrames()
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
        """Return how many connections are open, those included that are being made."""
        return self._admission.count

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port (for 0: the one the system chose).

        Raises ConfigError when the address is taken or not ours.
        """
        self._is_closing = False  # It may have been closed before.
        port = await self._listener.listen(host, port)
        self._idle_check = asyncio.get_running_loop().call_later(IDLE_MS_MAX / 4000, self._close_idle)
        return port

    def connected(self, connection: ServerConnection) -> bool:
        """Handle a connection that is made; return False if it comes while the server closes."""
        if self._is_closing:
            return False
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
        self._admission.ended()
        if not self._admission.count:
            self._all_closed.set()
        if connection in self._connections:
            self._connections.remove(connection)
            self.handler.closed(connection)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._is_closing = True
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._stuck_check is not None:
            self._stuck_check.cancel()
        await self._listener.close()
        for connection in list(self._connections):
            connection.close("server stops")
        try:
            async with asyncio.timeout(CLOSING_MS_MAX / 1000):
                await self._wait_all_closed()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort("the server stops and the peer does not read")
            await self._wait_all_closed()

    async def _wait_all_closed(self) -> None:
        if self._admission.count:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _close_idle(self) -> None:
        now_ms = self.monotonic_ms()
        self._listener.close_silent(now_ms - IDLE_MS_MAX)
        for connection in list(self._connections):
            closing_since_ms = connection.closing_since_ms
            if closing_since_ms is not None and now_ms - closing_since_ms >= CLOSING_MS_MAX:
                connection.abort("the peer does not read what was written before the end")
            elif now_ms - connection.last_read_ms > IDLE_MS_MAX:
                connection.close(f"nothing read for {IDLE_MS_MAX} ms")
        self._idle_check = asyncio.get_running_loop().call_later(IDLE_MS_MAX / 4000, self._close_idle)
