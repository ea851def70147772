"""A listening socket over real connections, with bad, slow, silent and excessive peers."""

import asyncio
import contextlib
import os
import socket

import pytest

from libramq import logs
from libramq.clock import SystemClock
from libramq.errors import ConfigError
from libramq.kernel.connection import Connection
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Kernel
from libramq.remoting.command import Command, reply_to
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import encode_frame
from libramq.runtime import outgoing, performer
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.transport import server as server_module
from libramq.transport.admission import Census, ConnectionLimits, Limit
from libramq.transport.server import Handler, Server
from tests.fakes import ManualClock, ManualThreads
from tests.transport.loops import LOOPS, run_on, until

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))


class Echo:
    """A protocol that answers each request with a body, and records connections and disconnections."""

    def __init__(self, body: bytes = b"") -> None:
        self.body = body
        self.peers: list[Connection] = []
        self.gone: list[Connection] = []
        self.batches: list[int] = []
        self.someone_left = asyncio.Event()

    def connected(self, peer: Connection) -> None:
        self.peers.append(peer)

    def received(self, peer: Connection, commands: list[Command]) -> None:
        self.batches.append(len(commands))
        for command in commands:
            if command.code == 666:
                raise RuntimeError("a handler's bug")
            peer.write(encode_frame(reply_to(command, 0, body=self.body or command.body)))

    def writable(self, peer: Connection) -> None:
        pass

    def closed(self, peer: Connection) -> None:
        self.gone.append(peer)
        self.someone_left.set()


class Client:
    """A raw connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.replies: list[Command] = []
        self.opaque = 0

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int = 0) -> "Client":
        """Connect. `receive_bytes` limits what the system buffers without a reader; 0: its choice, some 30
        MB.
        """
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=raw))

    def frame(self, body: bytes = b"", code: int = 1) -> bytes:
        self.opaque += 1
        return encode_frame(Command(code=code, opaque=self.opaque, body=body))

    async def read(self, count: int) -> list[Command]:
        """Read the next replies; return fewer if the connection ends."""
        while len(self.replies) < count:
            data = await self.reader.read(1 << 20)
            if not data:
                break
            self.replies += self.frames.receive(data)
        found, self.replies = self.replies[:count], self.replies[count:]
        return found

    async def ask(self, body: bytes = b"hi") -> bytes:
        self.writer.write(self.frame(body))
        (reply,) = await self.read(1)
        assert reply.opaque == self.opaque
        return reply.body

    async def is_ended(self) -> bool:
        """Wait for the end of the connection; return whether no further data came before it."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def serve(
    handler: Handler, clock: object = None, *, census: Census | None = None
) -> tuple[Server, int]:
    clock = clock or SystemClock()
    server = Server(handler, clock.monotonic_ms, census=census)  # type: ignore[attr-defined]
    return server, await server.listen("127.0.0.1", 0)


def test_requests_of_one_read_are_handed_over_together_and_answered(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        client.writer.write(b"".join(client.frame(str(n).encode()) for n in range(20)))
        replies = await client.read(20)
        assert [reply.body for reply in replies] == [str(n).encode() for n in range(20)]
        assert sum(echo.batches) == 20
        assert len(echo.batches) < 20
        assert echo.peers[0].address == "{}:{}".format(*client.writer.get_extra_info("sockname")[:2])
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_request_that_comes_byte_by_byte_is_one_request(loop):
    async def scenario() -> None:
        server, port = await serve(Echo())
        client = await Client.connect(port)
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in client.frame(b"slowly"):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        (reply,) = await client.read(1)
        assert reply.body == b"slowly"
        await client.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n",
     b"\x00\x00\x00\x08\x09\x00\x00\x04{}{}", b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
     b"\x16\x03\x01\x02\x00\x01"],
)  # fmt: skip
def test_bad_bytes_close_their_connection_and_no_other(loop, garbage):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        good, bad = await Client.connect(port), await Client.connect(port)
        assert await good.ask() == b"hi"
        bad.writer.write(garbage)
        assert await bad.is_ended()
        assert await good.ask() == b"hi"
        assert server.connection_count == 1
        await good.close()
        await bad.close()
        await server.close()

    run_on(loop, scenario)


def test_unfinished_frames_are_bounded_over_all_connections(loop, monkeypatch):
    monkeypatch.setattr(server_module, "UNFINISHED_BYTES_MAX", 1_000_000)

    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        stalled = [await Client.connect(port) for _ in range(10)]
        for client in stalled:
            client.writer.write((16_000_000).to_bytes(4) + bytes(190_000))
            await client.writer.drain()
        good = await Client.connect(port)
        assert await good.ask(bytes(100_000)) == bytes(100_000)
        await until(lambda: server.connection_count <= 6)
        assert await good.ask() == b"hi"
        assert len(echo.gone) >= 5
        for client in (*stalled, good):
            await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_failing_handler_closes_its_connection_only(loop):
    async def scenario() -> None:
        server, port = await serve(Echo())
        good, bad = await Client.connect(port), await Client.connect(port)
        bad.writer.write(bad.frame(code=666))
        assert await bad.is_ended()
        assert await good.ask() == b"hi"
        await good.close()
        await bad.close()
        await server.close()

    run_on(loop, scenario)


class EchoEngine:
    """An engine that answers each request with a body, under a performer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.count = 0
        clock = SystemClock()
        kernel = Kernel(clock)
        self.effects = kernel.effects
        engine = Engine(kernel, self, Hooks())
        self.performer = Performer(
            engine,
            Seams(remotes=None, timers=LoopTimers(), threads=ManualThreads()),
            monotonic_ms=clock.monotonic_ms,
            listen=lambda listening: listening(),
        )

    def receive(self, connection: Connection, requests: list[Command], start: int) -> int:
        self.count += 1
        self.effects.send(connection, encode_frame(reply_to(requests[start], 0, body=self.body)))
        return start + 1


def test_a_client_that_does_not_read_is_paused_and_later_gets_every_answer(loop, monkeypatch):
    """A consumer of a thousand queues may request 256 MB at once.

    It used to be disconnected and to return, forever.
    """
    monkeypatch.setattr(server_module, "WRITE_BUFFER_BYTES_HIGH", 64 * 1024)
    for module in (outgoing, performer):
        monkeypatch.setattr(module, "UNSENT_BYTES_HIGH", 64 * 1024)

    async def scenario() -> None:
        echo = EchoEngine(b"x" * 50_000)
        server, port = await serve(echo.performer)
        slow, other = await Client.connect(port), await Client.connect(port)
        slow.writer.write(b"".join(slow.frame() for _ in range(2_000)))
        await slow.writer.drain()
        assert len(await other.ask()) == 50_000
        before = -1
        while before != echo.count:  # Until the server stops reading from this client.
            before = echo.count
            for _ in range(20):
                await other.ask()
                before += 1
        assert before < 1_000
        replies = await slow.read(2_000)
        assert [reply.opaque for reply in replies] == list(range(1, 2_001))
        assert await slow.ask() == echo.body
        await slow.close()
        await other.close()
        await server.close()

    run_on(loop, scenario)


def test_clients_that_read_large_answers_at_the_same_time_are_all_served(loop):
    """Forty responses of 4 MiB exceed the limit on unread data of all connections."""

    async def scenario() -> None:
        echo = EchoEngine(bytes(4 * 1024 * 1024))
        server, port = await serve(echo.performer)
        clients = [await Client.connect(port) for _ in range(40)]
        for _ in range(2):
            answers = await asyncio.gather(*(client.ask() for client in clients))
            assert all(len(answer) == len(echo.body) for answer in answers)
        for client in clients:
            await client.close()
        await server.close()

    run_on(loop, scenario)


def test_notifications_to_a_client_that_does_not_read_are_bounded(loop, monkeypatch):
    monkeypatch.setattr(server_module, "WRITE_BUFFER_BYTES_HIGH", 64 * 1024)
    monkeypatch.setattr(server_module, "WRITE_BUFFER_BYTES_MAX", 20 * 1024 * 1024)

    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        assert await client.ask() == b"hi"
        written = 0
        while echo.peers[0].is_open and written < 200:
            echo.peers[0].write(bytes(1024 * 1024))
            written += 1
            await asyncio.sleep(0)
        assert 15 < written < 60
        await echo.someone_left.wait()
        assert server.connection_count == 0
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_silent_connections_are_closed(loop):
    async def scenario() -> None:
        clock = ManualClock()
        server, port = await serve(Echo(), clock)
        silent, busy = await Client.connect(port), await Client.connect(port)
        await silent.ask()
        await busy.ask()
        clock.advance(server_module.IDLE_MS_MAX - 1)
        await busy.ask()
        clock.advance(2)
        server._close_idle()
        assert await silent.is_ended()
        assert await busy.ask() == b"hi"
        await silent.close()
        await busy.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("rounds", range(6))
def test_a_connection_that_is_being_accepted_while_the_server_closes_is_closed_too(loop, rounds):
    """Accepting takes several rounds of the loop; after the last one its socket would never be closed."""

    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            for _ in range(rounds):
                await asyncio.sleep(0)
            await server.close()
            assert server.connection_count == 0
            assert len(echo.gone) == len(echo.peers)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""

    run_on(loop, scenario)


def test_a_connection_that_cannot_finish_closing_is_aborted(loop):
    """Its peer does not read, so the data written earlier would be kept forever."""

    async def scenario() -> None:
        clock = ManualClock()
        echo = Echo(bytes(15_000_000))
        server, port = await serve(echo, clock)
        client = await Client.connect(port)
        client.writer.write(client.frame() + client.frame())
        await until(lambda: bool(echo.batches))
        echo.peers[0].close("asked to")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert server.connection_count == 1
        clock.advance(server_module.CLOSING_MS_MAX)
        server._close_idle()
        await echo.someone_left.wait()
        assert server.connection_count == 0
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_client_that_sends_nothing_more_and_does_not_read_is_aborted(loop):
    async def scenario() -> None:
        clock = ManualClock()
        # More than the kernel accepts, but less than the amount at which the server stops reading.
        echo = Echo(bytes(server_module.WRITE_BUFFER_BYTES_HIGH))
        server, port = await serve(echo, clock)
        client = await Client.connect(port)
        client.writer.write(client.frame())
        await until(lambda: bool(echo.batches))
        client.writer.write_eof()
        await until(lambda: not echo.peers[0].is_open)
        clock.advance(server_module.CLOSING_MS_MAX)
        server._close_idle()
        await echo.someone_left.wait()
        assert server.connection_count == 0
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_stopping_does_not_wait_for_peers_that_do_not_read(loop, monkeypatch):
    monkeypatch.setattr(server_module, "CLOSING_MS_MAX", 50)

    async def scenario() -> None:
        echo = Echo(bytes(15_000_000))
        server, port = await serve(echo)
        client = await Client.connect(port)
        client.writer.write(client.frame() + client.frame())
        await until(lambda: bool(echo.batches))
        await server.close()
        assert server.connection_count == 0
        assert len(echo.gone) == 1
        await client.close()

    run_on(loop, scenario)


def test_connections_are_limited(loop):
    async def scenario() -> None:
        census = Census(ConnectionLimits(connections_max=2))
        server, port = await serve(Echo(), census=census)
        clients = [await Client.connect(port) for _ in range(2)]
        for client in clients:
            assert await client.ask() == b"hi"
        refused = await Client.connect(port)
        assert await refused.is_ended()
        await clients[0].close()
        await until(lambda: server.connection_count < 2)
        again = await Client.connect(port)
        assert await again.ask() == b"hi"
        assert census.refused == {Limit.CONNECTIONS: 1}
        for client in (refused, clients[1], again):
            await client.close()
        await server.close()
        assert census.count == 0

    run_on(loop, scenario)


def test_one_address_does_not_take_all_connections_of_several_servers(loop, caplog):
    async def scenario() -> None:
        census = Census(ConnectionLimits(per_address_max=3))
        servers = [await serve(Echo(), census=census) for _ in range(2)]
        (_, one), (_, another) = servers
        clients = [await Client.connect(port) for port in (one, another, one)]
        for client in clients:
            assert await client.ask() == b"hi"
        for port in (one, another) * 10:
            refused = await Client.connect(port)
            assert await refused.is_ended()
            await refused.close()
        assert census.refused == {Limit.ADDRESS: 20}
        lines = [each.message for each in caplog.records if "too many" in each.message]
        assert len(lines) == 2 * logs.LINES_MAX
        elsewhere = Client(*await asyncio.open_connection("127.0.0.1", one, local_addr=("127.0.0.2", 0)))
        assert await elsewhere.ask() == b"hi"
        await clients[0].close()
        await until(lambda: census.count == 3)
        again = await Client.connect(another)
        assert await again.ask() == b"hi"
        for client in (*clients, elsewhere, again):
            await client.close()
        for server, _ in servers:
            await server.close()

    run_on(loop, scenario)


def test_the_oldest_that_is_not_authenticated_makes_room(loop):
    """The address with the most such connections loses one: an honest client elsewhere keeps its own."""

    async def scenario() -> None:
        echo = Echo()
        census = Census(ConnectionLimits(unauthenticated_max=4))
        server, port = await serve(echo, census=census)
        signed_in = await Client.connect(port)
        assert await signed_in.ask() == b"hi"
        echo.peers[0].is_authenticated = True
        honest = Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))
        assert await honest.ask() == b"hi"
        silent = [await Client.connect(port) for _ in range(8)]
        assert await silent[-1].ask() == b"hi"
        for client in silent[:5]:
            assert await client.is_ended()
        for client in (signed_in, honest, *silent[5:]):
            assert await client.ask() == b"hi"
        assert census.refused == {Limit.UNAUTHENTICATED: 5}
        for client in (signed_in, honest, *silent):
            await client.close()
        await server.close()
        assert census.count == 0

    run_on(loop, scenario)


def test_connections_that_are_being_made_make_room_as_well(loop):
    """One round of the loop accepts many connections, which are set up in the next rounds."""

    async def scenario() -> None:
        census = Census(ConnectionLimits(unauthenticated_max=3))
        server, port = await serve(Echo(), census=census)
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        await until(lambda: census.refused[Limit.UNAUTHENTICATED] == 47)
        await until(lambda: census.count == 3)
        for each in sockets:
            each.close()
        await until(lambda: census.count == 0)
        await server.close()

    run_on(loop, scenario)


def test_a_connection_without_a_first_byte_is_closed(loop):
    async def scenario() -> None:
        clock = ManualClock()
        limits = ConnectionLimits(unauthenticated_max=10)
        server, port = await serve(Echo(), clock, census=Census(limits))
        silent, quiet = await Client.connect(port), await Client.connect(port)
        assert await quiet.ask() == b"hi"
        await until(lambda: server.connection_count == 2)
        clock.advance(server_module.FIRST_BYTE_MS_MAX)
        server._close_late()
        assert server.connection_count == 2
        clock.advance(1)
        server._close_late()
        assert await silent.is_ended()
        assert await quiet.ask() == b"hi"
        await silent.close()
        await quiet.close()
        await server.close()

    run_on(loop, scenario)


def test_a_client_that_need_not_authenticate_may_be_silent(loop):
    """Java's client connects to every name server every three seconds unless it is connected."""

    async def scenario() -> None:
        clock = ManualClock()
        server, port = await serve(Echo(), clock)
        silent = await Client.connect(port)
        await until(lambda: server.connection_count == 1)
        clock.advance(server_module.IDLE_MS_MAX)
        server._close_late()
        assert await silent.ask() == b"hi"
        await silent.close()
        await server.close()

    run_on(loop, scenario)


def test_a_frame_has_a_limited_time_and_a_large_one_more(loop):
    """A byte a second never exceeds the idle timeout."""

    async def scenario() -> None:
        clock = ManualClock()
        server, port = await serve(Echo(), clock)
        slow, large = await Client.connect(port), await Client.connect(port)
        small_frame, large_frame = slow.frame(bytes(1_000)), large.frame(bytes(1_000_000))
        large.writer.write(large_frame[:-1])
        for count in range(1, 31):
            slow.writer.write(small_frame[count - 1 : count])
            await until(lambda count=count: server._unfinished.total_bytes == count + len(large_frame) - 1)  # type: ignore[misc]
            clock.advance(1_000)
            server._close_late()
        clock.advance(1 + 30 // server_module.FRAME_BYTES_A_MS)
        server._close_late()
        assert await slow.is_ended()
        large.writer.write(large_frame[-1:])
        assert len((await large.read(1))[0].body) == 1_000_000
        large.writer.write(large_frame[:-1])
        await until(lambda: server._unfinished.total_bytes == len(large_frame) - 1)
        clock.advance(server_module.FRAME_MS_MAX + len(large_frame) // server_module.FRAME_BYTES_A_MS)
        server._close_late()
        assert server.connection_count == 1
        clock.advance(1)
        server._close_late()
        assert await large.is_ended()
        await slow.close()
        await large.close()
        await server.close()

    run_on(loop, scenario)


def test_a_frame_that_the_server_does_not_read_is_not_late(loop, monkeypatch):
    """Without room for more requests, the rest of a large frame stays unread for as long as necessary."""

    class Busy(Echo):
        def received(self, peer: Connection, commands: list[Command]) -> None:
            if not self.batches:
                peer.pause_reading()  # type: ignore[attr-defined]
            super().received(peer, commands)

    async def scenario() -> None:
        monkeypatch.setattr(server_module, "WAITING_BYTES_MAX", 1)
        clock, echo = ManualClock(), Busy()
        server, port = await serve(echo, clock)
        first, large = await Client.connect(port), await Client.connect(port)
        assert await first.ask() == b"hi"
        frame = large.frame(bytes(1_000_000))
        large.writer.write(frame[:-1])
        await until(lambda: bool(server._unfinished.total_bytes))
        for _ in range(2):
            clock.advance(server_module.FRAME_MS_MAX + len(frame))
            server._close_late()
            assert server.connection_count == 2
        echo.peers[0].resume_reading()  # type: ignore[attr-defined]
        await until(lambda: server._unfinished.total_bytes == len(frame) - 1)
        server._close_late()
        large.writer.write(frame[-1:])
        assert len((await large.read(1))[0].body) == 1_000_000
        for client in (first, large):
            await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_client_that_reads_nothing_is_ended_and_one_that_reads_slowly_is_not(loop):
    """The client may keep sending, and leave less unread than the amount that stops the server's reads."""

    async def scenario() -> None:
        clock = ManualClock()
        echo = Echo(bytes(server_module.WRITE_BUFFER_BYTES_HIGH))
        server, port = await serve(echo, clock)
        stuck, slow = [await Client.connect(port, receive_bytes=1 << 16) for _ in range(2)]
        for client in (stuck, slow):
            client.writer.transport.pause_reading()
            client.writer.write(client.frame())
        await until(lambda: len(echo.batches) == 2 and all(peer.unsent_bytes for peer in echo.peers))
        await until(lambda: not any(peer.leaving_bytes for peer in echo.peers))
        server._close_idle()
        for _ in range(3):
            left = echo.peers[1].unsent_bytes
            slow.writer.transport.resume_reading()
            while echo.peers[1].unsent_bytes == left:
                await slow.reader.read(1 << 20)
            slow.writer.transport.pause_reading()
            clock.advance(server_module.WRITE_MS_MAX // 3)
            stuck.writer.write(stuck.frame()[:0])
            server._close_idle()
        await until(lambda: server.connection_count == 1)
        assert [peer.is_open for peer in echo.peers] == [False, True]
        slow.writer.transport.abort()
        stuck.writer.transport.abort()
        await server.close()

    run_on(loop, scenario)


def test_connections_leave_descriptors_to_files_and_a_shortage_is_logged_once(loop, caplog):
    """All descriptors of the process count: a new socket's number shows how many are in use."""

    async def scenario() -> None:
        # Other tests' descriptors leave holes, which would count for less than thirty; and so many are closed
        # later on that there is room again, however many these are.
        highest = max(int(number) for number in os.listdir("/proc/self/fd"))
        filling = [os.open(os.devnull, os.O_RDONLY)]
        while filling[-1] <= highest * 1.5:
            filling.append(os.open(os.devnull, os.O_RDONLY))
        limit = filling[-1] + 30
        census = Census(descriptors_max=limit)
        server = Server(Echo(), SystemClock().monotonic_ms, census=census)
        port = await server.listen("127.0.0.1", 0)
        clients = [await Client.connect(port) for _ in range(40)]
        answered = []
        for client in clients:
            client.writer.write(client.frame(b"hi"))
            answered += await client.read(1)
        assert 5 < len(answered) < 30
        assert server.connection_count == len(answered)
        assert sum("refused" in record.message for record in caplog.records) == 1
        for client in clients:
            await client.close()
        await until(lambda: not server.connection_count)
        for number in filling:
            os.close(number)
        again = await Client.connect(port)
        assert await again.ask() == b"hi"
        assert f"accepted again refused={40 - len(answered)}" in caplog.text
        await again.close()
        await server.close()

    run_on(loop, scenario)


def test_a_taken_port_and_a_foreign_address_are_named(loop):
    async def scenario() -> None:
        server, port = await serve(Echo())
        other = Server(Echo(), SystemClock().monotonic_ms)
        with pytest.raises(ConfigError, match=f"port {port} .* is taken"):
            await other.listen("127.0.0.1", port)
        with pytest.raises(ConfigError, match="cannot listen on 192"):
            await other.listen("192.0.2.1", 0)
        await other.close()
        await server.close()

    run_on(loop, scenario)
