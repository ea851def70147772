"""An accepted connection: frames in, one callback per read with every command it brought, bytes out.

It is closed at the first invalid byte, with the reason logged; others are not affected. A client that does
not read its replies is not read from either; its handler is called when it reads again (`writable`).
Upstream: remoting/netty/NettyRemotingServer.java.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from libramq.clock import MonotonicMs
from libramq.errors import ProtocolError
from libramq.kernel.connection import ANONYMOUS, NUMBERS, Connection
from libramq.logs import get_logger
from libramq.transport.large_reads import LARGE_FRAME_BYTES, LARGE_READ_BYTES
from libramq.transport.large_write import LARGE_BYTES, LargeWrite, may_be_sliced

if TYPE_CHECKING:
    from libramq.transport.server import Server

log = get_logger(__name__)

#: The other end of a connection, as services see it.
Peer = Connection

#: NettyServerConfig.writeBufferHighWaterMark is off upstream; above ours a peer must read first.
WRITE_BUFFER_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: the limit of unsolicited data (woken pulls) to a peer that does not read.
WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024


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
    """One accepted connection. It has slots: a server may have 20,000 connections, most of them idle."""

    __slots__ = (
        "_is_congested",
        "_is_paused",
        "_large_frame",
        "_large_write",
        "_reader",
        "_server",
        "_transport",
        "_unfinished_bytes",
        "_waits_to_read_on",
        "address",
        "closing_since_ms",
        "last_read_ms",
        "number",
        "principal",
    )

    def __init__(self, server: "Server", address: str) -> None:
        self._server = server
        self.address = address
        self._reader = server.reader()
        self._transport: asyncio.Transport | None = None
        self._is_congested = self._is_paused = self._waits_to_read_on = False
        self._unfinished_bytes = 0
        self._large_frame: int | None = None
        self._large_write: LargeWrite | None = None
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.last_read_ms = server.monotonic_ms()
        self.closing_since_ms: MonotonicMs | None = None

    @property
    def is_open(self) -> bool:
        """Return whether data written now can still arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle asyncio's new connection."""
        # uvloop's is not a subclass, but behaves like one.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        if not self._server.connected(self):
            self._transport.abort()

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
        self._transport = self._large_write = None
        self._server.discard(self)

    def eof_received(self) -> None:
        """Handle a client that sends nothing more: it gets what was written before, for a while."""
        if self.is_open:
            self._begin_closing()  # The transport closes itself, as nothing is returned.

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
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self.leaving_bytes

    @property
    def leaving_bytes(self) -> int:
        """Return how many of these the system has not refused so far: the rest of a large write."""
        return self._large_write.size if self._large_write is not None else 0

    def write(self, data: bytes) -> None:
        """Send bytes, after those that were written before; many of them in slices, with others' between."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._large_write is not None:
            self._large_write.add(data)
        elif len(data) < LARGE_BYTES or not may_be_sliced(transport):
            transport.write(data)
        else:
            large = LargeWrite(data)
            if large.send(transport, self._server.large_writes.until_ns()):
                self._large_write = large
                self._server.large_writes.wait(self)
        if self._is_congested and self.unsent_bytes > WRITE_BUFFER_BYTES_MAX:
            self.abort(f"{WRITE_BUFFER_BYTES_MAX} bytes wait to be read by the peer")

    def write_on(self) -> None:
        """Send the next slice of a large write."""
        if self._large_write is None or not self.is_open:
            return
        assert self._transport is not None
        if self._large_write.send(self._transport, self._server.large_writes.until_ns()):
            self._server.large_writes.wait(self)
            return
        self._large_write = None
        if not self._is_congested:  # Otherwise the handler is called when the client has read.
            self._server.handler.writable(self)

    def close(self, reason: str) -> None:
        """Close the connection after all written data has left; at the latest after CLOSING_MS_MAX."""
        if self._transport is not None and not self._transport.is_closing():
            log.info("connection closed", peer=self.address, reason=reason)
            self._begin_closing()
            self._transport.close()

    def _begin_closing(self) -> None:
        assert self._transport is not None
        self.closing_since_ms = self._server.monotonic_ms()
        if self._large_write is not None:
            self._large_write.hand_over(self._transport)
            self._large_write = None

    def abort(self, reason: str) -> None:
        """Close the connection now, dropping data that has not left yet."""
        if self._transport is not None:
            log.info("connection aborted", peer=self.address, reason=reason)
            self._transport.abort()
