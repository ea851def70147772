"""A server's connections: how long one may be idle, delay its first byte or the rest of a frame, or leave its
answers unread, and how many bytes all unfinished and waiting requests may take.

A connection takes frames in, makes one callback per read with every command it brought, and sends bytes out.
It is closed at the first invalid byte, with the reason logged; others are not affected. While a client does
not read its replies, nothing is read from it; `writable` is called when it reads again.

A TLS connection counts as connected once its handshake is finished. All its bytes pass through a channel
(`server_tls.py`), and the same limits apply.

Two totals over all connections are bounded: bytes of incomplete frames (`UnfinishedFrames`), and bytes of
complete requests that wait to be processed (`WaitingFrames`).

Upstream: remoting/netty/NettyRemotingServer.java.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from libramq.clock import MonotonicMs
from libramq.errors import ProtocolError
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.logs import BoundedLog, get_logger
from libramq.remoting.connection import FrameReader
from libramq.transport.admission import Admission, Census, Limit, Place
from libramq.transport.handshakes import Handshakes
from libramq.transport.large_transfers import (
    LARGE_BYTES,
    LARGE_FRAME_BYTES,
    LARGE_READ_BYTES,
    LargeReads,
    LargeWrite,
    LargeWrites,
    may_be_sliced,
)
from libramq.transport.listener import Listener
from libramq.transport.server_tls import TlsChannel
from libramq.transport.tls import TlsByFirstByte

if TYPE_CHECKING:
    import ssl

log = get_logger(__name__)

#: Ours: with more unsent bytes a peer must read first. NettyServerConfig.writeBufferHighWaterMark is off.
WRITE_BUFFER_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: the limit of unsolicited data (woken pulls) to a peer that does not read.
WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024


class Handler(Protocol):
    """The server's side of its connections. All methods are called on the event loop and must not block."""

    def connected(self, connection: Any) -> None:
        """Handle a new connection."""
        ...

    def received(self, connection: Any, requests: list[Any]) -> None:
        """Handle the requests of one read."""
        ...

    def writable(self, connection: Any) -> None:
        """Continue serving: the client has read most of the data sent to it."""
        ...

    def closed(self, connection: Any) -> None:
        """Handle the end of the connection."""
        ...


class Reader(Protocol):
    """Splits a connection's bytes into requests; raises ProtocolError for invalid ones."""

    @property
    def partial_bytes(self) -> int:
        """Return the number of buffered bytes of an unfinished request."""
        ...

    def receive(self, data: bytes) -> list[Any]:
        """Take the bytes that arrived; return the requests that are now complete."""
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
        "_tls",
        "_transport",
        "_unfinished_bytes",
        "_waits_since_ms",
        "_waits_to_read_on",
        "address",
        "certificate_names",
        "closing_since_ms",
        "has_read",
        "is_authenticated",
        "last_read_ms",
        "number",
        "place",
        "principal",
        "progress",
        "resumed_ms",
        "written_bytes",
    )

    def __init__(self, server: "Server", place: Place, context: "ssl.SSLContext | None" = None) -> None:
        self._server = server
        self._tls = TlsChannel(context) if context is not None else None
        self.place = place
        place.occupant = self
        self.address = place.address
        self._reader = server.reader()
        self._transport: asyncio.Transport | None = None
        self._is_congested = self._is_paused = self._waits_to_read_on = False
        self._unfinished_bytes = 0
        self._large_frame: int | None = None
        self._large_write: LargeWrite | None = None
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.certificate_names: tuple[str, ...] = ()
        self.is_authenticated = False
        #: Whether any byte of a request has arrived.
        self.has_read = False
        self.written_bytes = 0
        #: The count of sent bytes at the last check, and the first check that saw it; None: none waited.
        self.progress: tuple[int, MonotonicMs] | None = None
        self.last_read_ms = self.resumed_ms = self._waits_since_ms = server.monotonic_ms()
        self.closing_since_ms: MonotonicMs | None = None

    @property
    def is_open(self) -> bool:
        """Return whether data written now may still arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle asyncio's new connection."""
        # uvloop's transport is not a subclass, but behaves like one.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self.place.end = self.abort
        if self.place.is_taken_away:
            self._transport.abort()
            return
        if self._tls is None:
            self._begin()
        else:
            self._server.handshakes.begin(self)

    def _begin(self) -> None:
        assert self._transport is not None
        if not self._server.connected(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle the bytes of one read."""
        self.last_read_ms = self._server.monotonic_ms()
        if self._tls is None:
            self._received(data)
        else:
            self._decrypt(data, self._tls)

    def _decrypt(self, data: bytes, tls: TlsChannel) -> None:
        """Handle bytes of a TLS connection, which begins when the handshake is finished."""
        is_new = not tls.is_established
        try:
            data = tls.receive(data)
        except ProtocolError as error:
            self.write(tls.to_send(), is_encrypted=True)  # An alert with the reason.
            self.close(str(error))
            return
        self.write(tls.to_send(), is_encrypted=True)
        if is_new and tls.is_established:
            self._server.handshakes.ended(self)
            self.certificate_names = tls.client_names
            self._begin()
        if data and self.is_open:
            self._received(data)
        if tls.is_ended and self.is_open:
            assert self._transport is not None
            self._begin_closing()
            self._transport.close()

    def _received(self, data: bytes) -> None:
        self.has_read = True
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
        """Close the connection and drop its incomplete frame."""
        self._reader = self._server.reader()
        self.close(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._transport = self._large_write = None
        self._server.discard(self)

    def eof_received(self) -> None:
        """Handle a client's end of input: for CLOSING_MS_MAX it may still read data already written."""
        if self.is_open:
            self._begin_closing()  # The transport closes itself, because this method returns None.

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its replies."""
        self._is_congested = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """Read again: the client reads its replies."""
        self._is_congested = False
        self.last_read_ms = self.resumed_ms = self._server.monotonic_ms()
        self._server.handler.writable(self)
        self._read_or_not()

    def _wait_to_read_on(self, unfinished_bytes: int, *, is_another: bool) -> None:
        """Queue the next part of a large frame behind those of frames that began earlier."""
        large_reads = self._server.large_reads
        if unfinished_bytes < LARGE_FRAME_BYTES:
            self._large_frame = None
        elif self.is_open:
            if self._large_frame is None or is_another:
                self._large_frame = large_reads.begin()
            self._wait(self._large_frame)

    def _wait(self, number: int) -> None:
        self._waits_to_read_on = True
        self._waits_since_ms = self._server.monotonic_ms()
        self._read_or_not()
        self._server.large_reads.wait(self, number)

    def read_on(self) -> None:
        """Read on: the next part of a large frame, or more of many requests."""
        self._waits_to_read_on = False
        now_ms = self._server.monotonic_ms()
        if now_ms - self._waits_since_ms > LATE_CHECK_MS:  # Not at each turn: a byte would gain one.
            self.resumed_ms = now_ms
        self._read_or_not()

    def pause_reading(self) -> None:
        """Stop reading: earlier requests are not processed yet."""
        self._is_paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        """Read again, unless the client must read first."""
        self._is_paused = False
        self.resumed_ms = self._server.monotonic_ms()
        self._server.holds_none_waiting(self)
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self.is_open:
            assert self._transport is not None
            if self._is_paused or self._is_congested or self._waits_to_read_on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def is_read_since(self, before_ms: MonotonicMs) -> bool:
        """Return whether we have been reading since a time, so that a delay is the client's fault."""
        is_held_up = self._is_paused or self._is_congested or self._waits_to_read_on
        return not is_held_up and self.resumed_ms < before_ms

    @property
    def unsent_bytes(self) -> int:
        """Return the number of written bytes that have not left yet."""
        if self._transport is None:
            return 0
        large = self._large_write
        return self._transport.get_write_buffer_size() + (large.size if large is not None else 0)

    @property
    def leaving_bytes(self) -> int:
        """Return the unsent bytes that the socket has not refused yet: the rest of a large write."""
        return self._large_write.size if self._large_write is not None else 0

    def write(self, data: bytes, *, is_encrypted: bool = False) -> None:
        """Send bytes, in order. Large writes leave in slices, interleaved with those of other connections.

        TLS bytes leave in the order in which they were encrypted.
        """
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        if self._tls is not None and not is_encrypted:
            data = self._tls.encrypt(data)
        self.written_bytes += len(data)
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
        """Close the connection once all written data has left, or after CLOSING_MS_MAX."""
        if self._transport is not None and not self._transport.is_closing():
            self._server.log("connection closed", peer=self.address, reason=reason)
            self._begin_closing()
            self._transport.close()

    def _begin_closing(self) -> None:
        assert self._transport is not None
        self.closing_since_ms = self._server.monotonic_ms()
        if self._large_write is not None:
            self._large_write.hand_over(self._transport)
            self._large_write = None
        if self._tls is not None:
            self._transport.write(self._tls.end())

    def abort(self, reason: str) -> None:
        """Close the connection now; unsent data is dropped."""
        if self._transport is not None:
            self._server.log("connection aborted", peer=self.address, reason=reason)
            self._transport.abort()

    def unread_since_ms(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return the time of the first check since which no waiting byte has left; None: none waits.

        A client that reads anything is alive, even while nothing is read from it.
        """
        unsent_bytes = self.unsent_bytes
        if not unsent_bytes:
            self.progress = None
            return None
        left = self.written_bytes - unsent_bytes
        if self.progress is None or self.progress[0] != left:
            self.progress = left, now_ms
        return self.progress[1]


#: Ours: how long a closing connection may take to deliver data already written.
CLOSING_MS_MAX: Final = 1_000
#: NettyServerConfig.serverChannelMaxIdleTimeSeconds.
IDLE_MS_MAX: Final = 120_000
#: Ours, if clients must authenticate: as long as a handshake (Netty's handshakeTimeoutMillis).
FIRST_BYTE_MS_MAX: Final = 10_000
#: Ours: how long a frame may take from its first byte to its last, plus the time for its size. Without a
#: limit, a client that sends a byte a second could hold a connection and its partial frame for ever.
FRAME_MS_MAX: Final = 30_000
#: Ours: the slowest transfer of a frame beyond FRAME_MS_MAX, 16 KiB/s.
FRAME_BYTES_A_MS: Final = 16
#: Ours: how long a client may leave its answers unread, half as long as it may be idle.
WRITE_MS_MAX: Final = 60_000
#: Ours: how often overdue first bytes and frames are looked for.
LATE_CHECK_MS: Final = 2_000


class Server:
    """The connections to one port.

    reader: makes the Reader of a connection; one for RocketMQ's frames by default.
    is_allowed, census: see `Admission`. tls: see `Listener`.
    """

    def __init__(
        self,
        handler: Handler,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        reader: Callable[[], Reader] = FrameReader,
        is_allowed: Callable[[str], bool] = lambda _: True,
        census: Census | None = None,
        tls: TlsByFirstByte | None = None,
    ) -> None:
        self.reader = reader
        self._census = census or Census()
        # Java's clients connect to every name server and send nothing to those that they do not use.
        must_prove = self._census.limits.unauthenticated_max is not None
        self._first_byte_ms_max = FIRST_BYTE_MS_MAX if must_prove else IDLE_MS_MAX
        self._admission = Admission(is_allowed, self._census, monotonic_ms)
        self.log = BoundedLog(log.info, monotonic_ms)
        #: Connections that had sent nothing at the last check, oldest first.
        self._new: dict[ServerConnection, MonotonicMs] = {}
        self._late_check: asyncio.TimerHandle | None = None
        self.handshakes = Handshakes(monotonic_ms)
        self._listener = Listener(
            self._admission,
            lambda place, context: ServerConnection(self, place, context),
            monotonic_ms,
            self.handshakes,
            tls,
        )
        self.handler = handler
        self.monotonic_ms = monotonic_ms
        self._connections: set[ServerConnection] = set()
        self._is_closing = False
        self._unfinished = UnfinishedFrames()
        self._idle_check: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._waiting = WaitingFrames()
        self._stuck_check: asyncio.TimerHandle | None = None
        self.large_reads = LargeReads(
            lambda work: asyncio.get_running_loop().call_soon(work), has_room=lambda: self._waiting.has_room
        )
        self.large_writes = LargeWrites(lambda work: asyncio.get_running_loop().call_soon(work))

    @property
    def connection_count(self) -> int:
        """Return the number of open connections, including those being established."""
        return self._admission.count

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port (for 0 the one that the system chose).

        Raises ConfigError if the address is in use or not this machine's.
        """
        self._is_closing = False  # The server may have been closed before.
        port = await self._listener.listen(host, port)
        self._idle_check = asyncio.get_running_loop().call_later(IDLE_MS_MAX / 4000, self._close_idle)
        self._late_check = asyncio.get_running_loop().call_later(LATE_CHECK_MS / 1000, self._close_late)
        return port

    def connected(self, connection: ServerConnection) -> bool:
        """Handle an established connection; return False if the server is closing."""
        if self._is_closing:
            return False
        self._connections.add(connection)
        self._new[connection] = self.monotonic_ms()
        self.handler.connected(connection)
        return True

    def holds_unfinished(self, connection: ServerConnection, size: int, *, is_another: bool) -> None:
        """Record a connection's incomplete frame; close the worst ones if the total exceeds its limit."""
        unfinished = self._unfinished
        worst = unfinished.update(connection, size, connection.last_read_ms, is_another=is_another)
        if worst:
            held = f"{unfinished.total_bytes} bytes of unfinished frames; {UNFINISHED_BYTES_MAX} are allowed"
            for each in worst:
                unfinished.forget(each)
                each.give_up_frame(f"this connection held the most for the longest of {held}")

    def holds_waiting(self, connection: ServerConnection, size: int) -> None:
        """Record a connection's waiting requests; without room, reading of large frames pauses."""
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
        self._stuck_check = loop.call_later(STUCK_MS / 1000, self._end_stuck)

    def _end_stuck(self) -> None:
        """Close a connection that blocks large frames because its client does not read its answers."""
        self._stuck_check = None
        stuck = self._waiting.stuck()
        if stuck is not None:
            held = f"{self._waiting.total_bytes} bytes of requests wait"
            stuck.abort(f"{held}, and this client leaves {stuck.unsent_bytes} bytes of its answers unread")
        self._check_stuck_later()

    def discard(self, connection: ServerConnection) -> None:
        """Handle the end of a connection."""
        self.handshakes.ended(connection)
        self._unfinished.forget(connection)
        self.holds_none_waiting(connection)
        self._new.pop(connection, None)
        self._admission.ended(connection.place)
        if not self._admission.count:
            self._all_closed.set()
        if connection in self._connections:
            self._connections.remove(connection)
            self.handler.closed(connection)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._is_closing = True
        for check in (self._idle_check, self._late_check):
            if check is not None:
                check.cancel()
        if self._stuck_check is not None:
            self._stuck_check.cancel()
        await self._listener.close()
        self.handshakes.give_up_all()
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
        refused = self._census.refused
        for connection in list(self._connections):
            closing_since_ms, unread_since_ms = (
                connection.closing_since_ms,
                connection.unread_since_ms(now_ms),
            )
            if closing_since_ms is not None and now_ms - closing_since_ms >= CLOSING_MS_MAX:
                connection.abort("the peer does not read the data written before the end")
            elif unread_since_ms is not None and now_ms - unread_since_ms >= WRITE_MS_MAX:
                refused[Limit.WRITE] += 1
                connection.abort(f"the peer has read nothing of its answers for {WRITE_MS_MAX} ms")
            elif unread_since_ms is None and now_ms - connection.last_read_ms > IDLE_MS_MAX:
                refused[Limit.IDLE] += 1
                connection.close(f"nothing read for {IDLE_MS_MAX} ms")
        self._idle_check = asyncio.get_running_loop().call_later(IDLE_MS_MAX / 4000, self._close_idle)

    def _close_late(self) -> None:
        """Close connections whose first byte, or the rest of a frame, is overdue."""
        now_ms = self.monotonic_ms()
        self._listener.close_silent(now_ms - self._first_byte_ms_max)
        late = []
        for connection, since_ms in self._new.items():
            if now_ms - since_ms <= self._first_byte_ms_max:
                break
            late.append(connection)
        for connection in late:
            del self._new[connection]
            if not connection.has_read:
                self._census.refused[Limit.FIRST_BYTE] += 1
                connection.close(f"no byte within {self._first_byte_ms_max} ms")
        for connection in self._unfinished.late(now_ms):
            if not connection.is_read_since(now_ms - FRAME_MS_MAX):
                continue
            self._census.refused[Limit.FRAME] += 1
            self._unfinished.forget(connection)
            connection.give_up_frame(f"a frame is unfinished after {FRAME_MS_MAX} ms")
        self._late_check = asyncio.get_running_loop().call_later(LATE_CHECK_MS / 1000, self._close_late)


#: Ours: four of the largest frames, or sixteen messages of maxMessageSize. Netty has no such limit.
UNFINISHED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Ours: connections are closed until this share remains, so that the next read does not exceed the limit.
LEFT_SHARE: Final = 0.75


class UnfinishedFrames:
    """The incomplete input of each connection, with the time at which it began.

    A frame may have 16 MiB. A client that sends nearly all of one and then stops occupies that much memory.
    So the sum is bounded, and connections that held the most for the longest are closed first. A frame that
    is still arriving, however large, is young and therefore safe.
    """

    def __init__(self) -> None:
        self._held: dict[ServerConnection, tuple[int, MonotonicMs]] = {}
        self.total_bytes = 0

    def update(
        self, connection: ServerConnection, size: int, now_ms: MonotonicMs, *, is_another: bool
    ) -> list[ServerConnection]:
        """Record a connection's incomplete input; return the connections to close, usually none.

        is_another: the bytes belong to a different frame than last time.
        """
        before = self._held.pop(connection, None)
        self.total_bytes += size - (before[0] if before is not None else 0)
        if size:
            since_ms = now_ms if before is None or is_another else before[1]
            self._held[connection] = size, since_ms
        return self._worst(now_ms) if self.total_bytes > UNFINISHED_BYTES_MAX else []

    def late(self, now_ms: MonotonicMs) -> list[ServerConnection]:
        """Return the connections whose frame is overdue."""
        return [
            each
            for each, (size, since_ms) in self._held.items()
            if now_ms - since_ms > FRAME_MS_MAX + size // FRAME_BYTES_A_MS
        ]

    def forget(self, connection: ServerConnection) -> None:
        """Drop a connection's input."""
        self.total_bytes -= self._held.pop(connection, (0, 0))[0]

    def _worst(self, now_ms: MonotonicMs) -> list[ServerConnection]:
        """Return connections to close, those that held the most bytes for the longest first."""
        excess_bytes = self.total_bytes - UNFINISHED_BYTES_MAX * LEFT_SHARE
        worst = []
        # + 1: of frames that began at the same moment, the larger one comes first.
        cost = {each: size * (now_ms - since_ms + 1) for each, (size, since_ms) in self._held.items()}
        for connection in sorted(cost, key=cost.__getitem__, reverse=True):
            if excess_bytes <= 0:
                break
            excess_bytes -= self._held[connection][0]
            worst.append(connection)
        return worst


#: Ours: sixteen messages of maxMessageSize. Netty has no such limit.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
#: Ours: after this long without room, a connection that does not read its answers is closed.
STUCK_MS: Final = 1_000


class WaitingFrames:
    """The bytes of complete requests that wait to be processed, by connection.

    A connection with waiting requests is not read, so it holds one frame and the rest of the same read.
    Without room, large frames are not read further (`LargeReads`) until requests are processed or their
    connections end. Small requests of other connections are read and served meanwhile.

    Requests that wait for a thread or for their turn make room eventually. If the client does not read its
    answers, they may wait for ever and block all other large frames, so the connection is closed (`stuck`).
    """

    def __init__(self) -> None:
        self._held: dict[ServerConnection, int] = {}
        self.total_bytes = 0

    @property
    def has_room(self) -> bool:
        """Return whether large frames may be read on."""
        return self.total_bytes < WAITING_BYTES_MAX

    def add(self, connection: ServerConnection, size: int) -> None:
        """Record complete frames of a connection whose requests wait."""
        self._held[connection] = self._held.get(connection, 0) + size
        self.total_bytes += size

    def forget(self, connection: ServerConnection) -> None:
        """Drop a connection's frames: they are processed, or the connection has ended."""
        self.total_bytes -= self._held.pop(connection, 0)

    def stuck(self) -> ServerConnection | None:
        """Return the connection with the most bytes of unread answers, if there are any."""
        unread = {each: each.unsent_bytes - each.leaving_bytes for each in self._held}
        worst = max(unread, key=unread.__getitem__, default=None)
        return worst if worst is not None and unread[worst] else None
