"""The simulated connection: two ends, and bytes on their way between them.

    client end ── frames, one after the other, each some ms under way ──► server end
               ◄──────────────────────────────────────────────────────

Bytes arrive in order or not at all; several writes may arrive in one read, and one in two. The connection
breaks if bytes were lost.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from libramq.clock import MonotonicMs
from libramq.errors import ProtocolError
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import decode_frame, frame_end
from libramq.testing.machine.air import Air
from libramq.testing.machine.process import Process
from libramq.transport.server_connection import Handler


class Reader(Protocol):
    """Cuts bytes into a protocol's units: frames, lines."""

    def receive(self, data: bytes) -> list[Any]:
        """Take received bytes; return the units that are complete now."""
        ...


class ClientHandler(Protocol):
    """The client's side of its connection."""

    def received(self, commands: list[Any]) -> None:
        """Take the units of one read."""
        ...

    def closed(self) -> None:
        """Handle the end of the connection."""
        ...


class _Way:
    """One direction of a connection: bytes in flight from one process to another."""

    __slots__ = ("_air", "_arrivals", "_reader", "_receive", "_target", "_when_ended", "key", "last_ms")

    def __init__(
        self,
        air: Air,
        source: Process,
        target: Process,
        receive: Callable[[list[Any]], None],
        when_ended: Callable[[], None],
        reader: Reader,
    ) -> None:
        self._air = air
        self._target = target
        self._reader = reader
        self._receive = receive
        self._when_ended = when_ended
        self._arrivals: deque[tuple[MonotonicMs, bytes | None]] = deque()
        self.key = (source.name, target.name)
        self.last_ms = target.time.now_ms

    def send(self, data: bytes | None) -> None:
        """Send bytes, or None: the end."""
        air = self._air
        kept = air.blocked.get(self.key)
        if kept is not None:
            if kept.keeps or data is None:  # The end of a connection is repeated until it arrives.
                kept.sent.append((self.send, data))
            else:
                kept.has_lost = True
            return
        delay_ms, arrivals = air.carry(data), self._arrivals
        due_ms = self._target.time.now_ms + delay_ms
        if arrivals:  # An earlier arrival handles it.
            arrivals.append((max(due_ms, arrivals[-1][0]), data))
            return
        arrivals.append((due_ms, data))
        self._target.reach(delay_ms, self._arrived)

    def _arrived(self) -> None:
        """Deliver everything that has arrived, in one read or two."""
        now_ms = self._target.time.now_ms
        arrivals, pieces, ended = self._arrivals, [], False
        while arrivals and arrivals[0][0] <= now_ms and not ended:
            data = arrivals.popleft()[1]
            if data is None:
                ended = True
            else:
                pieces.append(data)
        if arrivals and not ended:
            self._target.reach(arrivals[0][0] - now_ms, self._arrived)
        if pieces:
            self.last_ms = now_ms
            self._read(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            arrivals.clear()
            self._when_ended()

    def _read(self, data: bytes) -> None:
        cut = self._air.cut(len(data))
        for part in (data[:cut], data[cut:]) if cut else (data,):
            commands = self._reader.receive(part)
            if commands:
                self._receive(commands)


class ServerEnd:
    """The server's end of a connection; a `transport.server_connection.Peer`."""

    __slots__ = ("_connection", "address", "is_open", "number", "principal")

    #: How many bytes have not left: none, the network accepts all at once.
    unsent_bytes = leaving_bytes = 0

    def __init__(self, connection: "Connection", address: str) -> None:
        self._connection = connection
        self.address = address
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        #: Whether the server believes that data written now can still arrive.
        self.is_open = True

    def abort(self, reason: str) -> None:
        """Close the connection now."""
        self._connection.close_by_server()

    def pause_reading(self) -> None:
        """Stop reading: arriving data waits at the performer while a thread works for the connection."""

    def resume_reading(self) -> None:
        """Read again."""

    def write(self, data: bytes) -> None:
        """Send bytes: frames of one write."""
        self._connection.write_to_client(data)

    def close(self, reason: str) -> None:
        """Close the connection."""
        self._connection.close_by_server()


class Connection:
    """Both ends of one connection. Each end learns of a close when that arrives."""

    def __init__(
        self,
        air: Air,
        client: Process,
        server: Process,
        handler: ClientHandler,
        served: Handler,
        readers: tuple[Reader, Reader],
    ) -> None:
        self._air = air
        self._client = client
        self._server = server
        self._handler = handler
        self._served = served
        self.client_is_open = True
        self.end = ServerEnd(self, f"{client.host}:{air.next_port()}")
        self._has_frames = isinstance(readers[1], FrameReader)
        self._up = _Way(air, client, server, self._server_received, self._server_saw_end, readers[1])
        self._down = _Way(air, server, client, self._client_received, self._client_saw_end, readers[0])

    @property
    def server_is_open(self) -> bool:
        """Return whether the server believes that data written now can still arrive."""
        return self.end.is_open

    @property
    def ends(self) -> tuple[Process, Process]:
        """Return client and server."""
        return self._client, self._server

    @property
    def server_silent_ms(self) -> int:
        """Return for how long the server has read nothing."""
        return self._server.time.now_ms - self._up.last_ms

    def write(self, data: bytes) -> None:
        """Send a frame from the client."""
        if self.client_is_open:
            self._up.send(data)

    def write_to_client(self, data: bytes) -> None:
        """Send a frame from the server."""
        if not self.end.is_open:
            return
        if not (self._has_frames and self._air.weather.harms_notifications):
            self._down.send(data)
            return
        for frame in _frames(data):  # One write may carry several.
            self._write_frame(frame)

    def _write_frame(self, data: bytes) -> None:
        if not _is_notification(data):
            self._down.send(data)
            return
        for delay_ms in self._air.fate_of_notification():
            if delay_ms:
                self._server.reach(delay_ms, lambda: self._down.send(data) if self.end.is_open else None)
            else:
                self._down.send(data)

    def close(self) -> None:
        """Close by the client; the server still reads data sent before."""
        if self.client_is_open:
            self.client_is_open = False
            self._up.send(None)
            self._handler.closed()

    def close_by_server(self) -> None:
        """Close by the server."""
        if self.end.is_open:
            self.end.is_open = False
            self._down.send(None)
            self._served.closed(self.end)

    def reset(self) -> None:
        """Break the connection: both ends notice, data in flight is lost."""
        self._server.do(self._server_saw_end)
        self._client.do(self._client_saw_end)

    def dropped_by(self, process: Process) -> None:
        """Handle the end of a process: its kernel closes the connection."""
        if process is self._client:
            self.client_is_open = False
            self._up.send(None)
        else:
            self.end.is_open = False
            self._down.send(None)

    def _server_received(self, commands: list[Any]) -> None:
        if self.end.is_open:
            self._served.received(self.end, commands)
        else:  # The kernel answers for a dead process.
            self._down.send(None)

    def _client_received(self, commands: list[Any]) -> None:
        if self.client_is_open:
            self._handler.received(commands)
        else:
            self._up.send(None)

    def _server_saw_end(self) -> None:
        if self.end.is_open:
            self.end.is_open = False
            self._served.closed(self.end)

    def _client_saw_end(self) -> None:
        if self.client_is_open:
            self.client_is_open = False
            self._handler.closed()


def _frames(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while (end := frame_end(data, position)) is not None:
        frames.append(data[position:end])
        position = end
    return frames


def _is_notification(data: bytes) -> bool:
    try:
        decoded = decode_frame(data, 0)
    except ProtocolError:
        return False
    return decoded is not None and decoded[0].is_oneway and not decoded[0].is_response
