"""The simulated network: listeners, connections, and their delays, losses and blocks.

A blocked direction keeps its connections open without an error; once it is unblocked, connections that lost
bytes break.
"""

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, LibraError, ProtocolError, RemoteError
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import decode_frame, frame_end
from libramq.rpc.call import Call
from libramq.runtime.seams import Dialed
from libramq.testing.happening import Happening
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.transport.access import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from libramq.transport.remotes import OnConnectionLost, Remotes
from libramq.transport.server import Handler


@dataclass(slots=True)
class Weather:
    """The faults of frames. Chances are between 0 and 1.

    A blocked direction drops data or keeps it until it is unblocked.
    """

    latency_ms_max: int = 3
    split_chance: float = 0.02
    #: For notifications (one-way requests of servers): dropped, sent twice, late by up to `late_ms_max`.
    loss_chance: float = 0.0
    double_chance: float = 0.0
    late_chance: float = 0.0
    late_ms_max: int = 3_000

    @property
    def harms_notifications(self) -> bool:
        """Return whether a server's frames must be examined one by one."""
        return bool(self.loss_chance or self.double_chance or self.late_chance)


class Kept:
    """The state of a blocked direction: the bytes it keeps, or whether it has dropped any."""

    __slots__ = ("has_lost", "keeps", "sent")

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.has_lost = False
        self.sent: list[tuple[Callable[[bytes | None], None], bytes | None]] = []


class Reader(Protocol):
    """Cuts bytes into a protocol's units: frames, lines."""

    def receive(self, data: bytes) -> list[Any]:
        """Add received bytes; return the units that are now complete."""
        ...


class _Way:
    """One direction of a connection: bytes in flight from one process to another."""

    __slots__ = ("_air", "_arrivals", "_receive", "_target", "_when_ended", "key", "last_ms")

    def __init__(
        self,
        air: "Network",
        source: Process,
        target: Process,
        receive: Callable[[bytes], None],
        when_ended: Callable[[], None],
    ) -> None:
        self._air = air
        self._target = target
        self._receive = receive
        self._when_ended = when_ended
        self._arrivals: deque[tuple[MonotonicMs, bytes | None]] = deque()
        self.key = (source.name, target.name)
        self.last_ms = target.time.now_ms

    def send(self, data: bytes | None) -> None:
        """Send bytes, or None for the end of the connection."""
        air = self._air
        kept = air.blocked.get(self.key)
        if kept is not None:
            if kept.keeps or data is None:  # The end of a connection is resent until it arrives.
                kept.sent.append((self.send, data))
            else:
                kept.has_lost = True
            return
        delay_ms, arrivals = air.carry(data), self._arrivals
        due_ms = self._target.time.now_ms + delay_ms
        if arrivals:  # The event of an earlier arrival delivers it.
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
            self._receive(part)


class ServerEnd:
    """The server's end of a connection; a `transport.server_connection.Peer`."""

    __slots__ = (
        "_connection",
        "address",
        "certificate_names",
        "is_authenticated",
        "is_open",
        "number",
        "principal",
    )

    #: Unsent bytes: none, because the network accepts everything at once.
    unsent_bytes = leaving_bytes = 0

    def __init__(self, connection: "Connection", address: str) -> None:
        self._connection = connection
        self.address = address
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.certificate_names: tuple[str, ...] = ()
        self.is_authenticated = False
        #: Whether the server believes that data written now can still arrive.
        self.is_open = True

    def abort(self, reason: str) -> None:
        """Close the connection immediately."""
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
    """Both ends of one connection; the client's end is a Link. A close takes time to reach the other end."""

    def __init__(
        self,
        air: "Network",
        client: Process,
        server: Process,
        dialed: Dialed,
        served: Handler,
        reader: Reader,
    ) -> None:
        self._air = air
        self._client = client
        self._server = server
        self._dialed = dialed
        self._served = served
        self._reader = reader
        self.client_is_open = True
        self.end = ServerEnd(self, f"{client.host}:{air.next_port()}")
        self._has_frames = isinstance(reader, FrameReader)
        self._up = _Way(air, client, server, self._server_received, self._server_saw_end)
        self._down = _Way(air, server, client, self._client_received, self._client_saw_end)

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
        """Return how long ago the server last read anything."""
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
        for frame in _frames(data):  # One write may contain several frames.
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
        """Close from the client; the server still reads data sent before."""
        if self.client_is_open:
            self._up.send(None)
            self._client_saw_end()

    abort = close

    def close_by_server(self) -> None:
        """Close from the server."""
        if self.end.is_open:
            self.end.is_open = False
            self._down.send(None)
            self._served.closed(self.end)

    def reset(self) -> None:
        """Break the connection: both ends notice, and data in flight is lost."""
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

    def _server_received(self, data: bytes) -> None:
        commands = self._reader.receive(data)
        if not commands:
            return
        if self.end.is_open:
            self._served.received(self.end, commands)
        else:  # The kernel answers for a dead process.
            self._down.send(None)

    def _client_received(self, data: bytes) -> None:
        if self.client_is_open:
            self._dialed.received(data)
        else:
            self._up.send(None)

    def _server_saw_end(self) -> None:
        if self.end.is_open:
            self.end.is_open = False
            self._served.closed(self.end)

    def _client_saw_end(self) -> None:
        if self.client_is_open:
            self.client_is_open = False
            self._client.after(0, lambda: self._dialed.ended(""))  # Deferred, as an event loop would.


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


class Network:
    """The simulated network: listening addresses, connections and blocks.

    All frames pass through it; their delays, splits and losses come from one source of randomness. happened:
    called for each lost, doubled or late notification.
    """

    def __init__(self, randomness: random.Random, happened: Callable[[Happening], None]) -> None:
        self.weather = Weather()
        self._happened = happened
        #: Blocked directions, as pairs of process names.
        self.blocked: dict[tuple[str, str], Kept] = {}
        #: The checksum of all bytes sent; equal in two runs of one seed.
        self.checksum = 0
        self.frame_count = 0
        self._random = randomness
        self._port = 40_000
        self._listeners: dict[str, tuple[Process, Handler, Callable[[], Reader]]] = {}
        self._names: dict[str, str] = {}
        self._connections: list[Connection] = []

    def carry(self, data: bytes | None) -> int:
        """Accept sent data or the end of a connection; return its delay in milliseconds."""
        self.frame_count += 1
        self.checksum = zlib.crc32(data or b"end", self.checksum)
        return int(self._random.random() * (self.weather.latency_ms_max + 1))

    def latency_ms(self) -> int:
        """Return the delay of the next frame."""
        return int(self._random.random() * (self.weather.latency_ms_max + 1))

    def cut(self, size: int) -> int:
        """Return the position at which to split a read; 0 for no split."""
        if self._random.random() >= self.weather.split_chance:
            return 0
        return self._random.randrange(size)

    def fate_of_notification(self) -> list[int]:
        """Return the delays in milliseconds: none if it is lost, two if it is duplicated."""
        weather, random_ = self.weather, self._random
        if random_.random() < weather.loss_chance:
            self._happened(Happening.NOTICE_LOST)
            return []
        times = 1
        if random_.random() < weather.double_chance:
            self._happened(Happening.NOTICE_DOUBLED)
            times = 2
        fate = []
        for _ in range(times):
            is_late = random_.random() < weather.late_chance
            if is_late:
                self._happened(Happening.NOTICE_LATE)
            fate.append(random_.randrange(weather.late_ms_max) if is_late else 0)
        return fate

    def next_port(self) -> int:
        """Return the next ephemeral port for a client."""
        self._port += 1
        return self._port

    def listen(
        self, address: str, process: Process, handler: Handler, reader: Callable[[], Reader] = FrameReader
    ) -> None:
        """Accept connections at an address while the process lives. reader: for the server's ends."""
        self._listeners[address] = (process, handler, reader)
        self._names[address] = process.name

    def name_at(self, address: str) -> str:
        """Return the name of the process at an address."""
        return self._names[address]

    def dial(self, address: str, client: Process, dialed: Dialed) -> None:
        """Connect a client; `dialed` gets the result."""

        def refused() -> None:
            dialed.refused(ConnectFailed(f"cannot connect to {address}"))

        def reached() -> None:
            if address not in self._listeners:  # The server has died in the meantime.
                refused()
                return
            process, served, reader = self._listeners[address]
            connection = Connection(self, client, process, dialed, served, reader())
            self._connections.append(connection)
            served.connected(connection.end)
            dialed.opened(connection)

        if address not in self._listeners:
            client.reach(self.latency_ms() + self.latency_ms(), refused)
            return
        server = self._listeners[address][0].name
        if (client.name, server) in self.blocked or (server, client.name) in self.blocked:
            client.after(CONNECT_TIMEOUT_MS, refused)
        else:
            client.reach(self.latency_ms() + self.latency_ms(), reached)

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
        """Handle the death of a process: its connections and listeners end."""
        for address in [address for address, (at, _, _) in self._listeners.items() if at is process]:
            del self._listeners[address]
        for connection in self.connections():
            if process in connection.ends:
                connection.dropped_by(process)

    def block(self, source: str, target: str, *, keeps: bool) -> None:
        """Block one direction. keeps: data sent while it is blocked arrives after the unblocking."""
        self.blocked.setdefault((source, target), Kept(keeps))

    def unblock(self, source: str, target: str) -> None:
        """Unblock a direction; connections with lost bytes break."""
        kept = self.blocked.pop((source, target), None)
        if kept is not None and kept.has_lost:
            for connection in self.between(source, target):
                connection.reset()
        for send, data in kept.sent if kept is not None else ():
            send(data)


class SimulatedDialer:
    """Connects one process to others."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect; `dialed` gets the result."""
        self._network.dial(address, self._process, dialed)


def simulated_remotes(network: Network, process: Process, *, lost: OnConnectionLost | None = None) -> Remotes:
    """Return the connections of a simulated process to others."""
    dialer, timers = SimulatedDialer(network, process), SimulatedTimers(process)
    return Remotes(dialer, timers, process.clock.monotonic_ms, lost=lost)


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
