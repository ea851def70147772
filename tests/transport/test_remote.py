"""Outgoing connections: every request completes exactly once, no matter how the other side fails."""

import asyncio
import socket
import threading
import time

import pytest

from libramq.clock import SystemClock
from libramq.errors import ConnectFailed, ConnectionLost, RemoteError, RequestTimeout
from libramq.kernel.connection import Connection
from libramq.remoting import connection
from libramq.remoting.command import FLAG_ONEWAY, Command, reply_to
from libramq.remoting.connection import SpareMemory
from libramq.remoting.frame import encode_frame
from libramq.runtime.seams import Link
from libramq.transport import asyncio_remotes
from libramq.transport import remotes as remotes_module
from libramq.transport.asyncio_remotes import AsyncioRemotes, SocketDialer
from libramq.transport.blocking import BlockingRemote
from libramq.transport.server import Server
from tests.transport.loops import LOOPS, run_on, until

both = pytest.mark.parametrize("loop", list(LOOPS))


class Answering:
    """A server that answers code 1, ignores code 2, closes at code 3, and sends a request back at code 4."""

    def __init__(self) -> None:
        self.received_codes: list[int] = []
        self.connections = 0

    def connected(self, peer: Connection) -> None:
        self.connections += 1

    def closed(self, peer: Connection) -> None:
        pass

    def received(self, peer: Connection, commands: list[Command]) -> None:
        for command in commands:
            self.received_codes.append(command.code)
            if command.code == 3:
                peer.close("asked to")
            elif command.code == 4:
                peer.write(encode_frame(Command(code=40, flag=FLAG_ONEWAY, ext={"consumerGroup": "G"})))
            if command.code in (1, 4) and not command.is_oneway:
                peer.write(encode_frame(reply_to(command, 0, body=command.body)))


async def serve() -> tuple[Server, Answering, str]:
    handler = Answering()
    server = Server(handler, SystemClock().monotonic_ms)
    return server, handler, f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"


@both
def test_requests_share_one_connection_and_each_gets_its_answer(loop):
    async def scenario() -> None:
        server, handler, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        replies = await asyncio.gather(
            *(remotes.call(address, Command(code=1, body=str(n).encode())) for n in range(50))
        )
        assert [reply.body for reply in replies] == [str(n).encode() for n in range(50)]
        assert handler.connections == 1
        assert remotes.is_connected(address)
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


@both
def test_large_replies_are_received_in_memory_that_the_next_ones_use(loop, monkeypatch):
    spare = SpareMemory()
    monkeypatch.setattr(connection, "SPARE", spare)

    async def scenario() -> None:
        server, _, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        bodies = [bytes([number]) * 300_000 for number in range(3)]
        for body in bodies:
            assert (await remotes.call(address, Command(code=1, body=body))).body == body
        assert len(spare.sizes) == 1
        together = await asyncio.gather(
            *(remotes.call(address, Command(code=1, body=body)) for body in bodies)
        )
        assert [reply.body for reply in together] == bodies
        assert len(spare.sizes) == 1
        assert min(spare.sizes) >= 300_000
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


@both
def test_an_ended_connection_fails_its_requests_and_the_next_one_reconnects(loop):
    async def scenario() -> None:
        lost: list[str] = []
        server, handler, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms, lost=lost.append)
        waiting = [asyncio.ensure_future(remotes.call(address, Command(code=2))) for _ in range(3)]
        await remotes.call(address, Command(code=1))
        for outcome in await asyncio.gather(
            remotes.call(address, Command(code=3)), *waiting, return_exceptions=True
        ):
            assert isinstance(outcome, ConnectionLost)
        assert lost == [address]
        assert not remotes.is_connected(address)
        assert (await remotes.call(address, Command(code=1, body=b"again"))).body == b"again"
        assert handler.connections == 2
        await remotes.aclose()
        assert lost == [address]
        await server.close()

    run_on(loop, scenario)


@both
def test_a_loop_that_was_late_sees_that_a_connection_is_made_before_it_gives_it_up(loop, monkeypatch):
    """A thousand consumers that start together keep the loop busy: half did not start on a loaded machine."""
    monkeypatch.setattr(asyncio_remotes, "CONNECT_TIMEOUT_MS", 50)

    async def scenario() -> None:
        server, _, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        readable, other = socket.socketpair()
        with readable, other:
            other.send(b"x")  # It is not read, so every turn of the loop is too long.
            asyncio.get_running_loop().add_reader(readable, time.sleep, 0.06)
            assert (await remotes.call(address, Command(code=1))).code == 0
            asyncio.get_running_loop().remove_reader(readable)
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


class GivenUp:
    """A dialed connection whose attempt is abandoned at the moment the connection is made."""

    def __init__(self, dialer: SocketDialer) -> None:
        self.dialer = dialer
        self.link: Link | None = None
        self.ends = 0

    def opened(self, link: Link) -> None:
        self.link = link
        for task in self.dialer._dialing:
            task.cancel()

    def received(self, data: bytes) -> None:
        raise AssertionError("nobody has sent anything")

    def ended(self, reason: str) -> None:
        self.ends += 1

    def refused(self, error: RemoteError) -> None:
        raise AssertionError("it was opened")


@both
def test_a_connection_whose_attempt_is_given_up_as_it_is_made_has_ended(loop):
    """A loaded machine may need the whole timeout. uvloop's protocol then never hears of the end: requests
    over the connection were never answered, and each raised RuntimeError in a callback.
    """

    async def scenario() -> None:
        server, _, address = await serve()
        dialer = SocketDialer()
        dialed = GivenUp(dialer)
        dialer.dial(address, dialed)
        await until(lambda: bool(dialed.ends))
        assert dialer.links == {}
        assert dialed.link is not None
        dialed.link.write(b"into the void")
        await asyncio.sleep(0)
        assert dialed.ends == 1
        await server.close()

    run_on(loop, scenario, seconds=10)


@both
def test_a_request_without_an_answer_times_out_and_the_connection_stays(loop):
    async def scenario() -> None:
        server, handler, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        with pytest.raises(RequestTimeout, match=rf"{address} did not answer in time \(allow more time"):
            await remotes.call(address, Command(code=2), timeout_ms=60)
        assert (await remotes.call(address, Command(code=1))).code == 0
        assert handler.connections == 1
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


@both
def test_a_silent_connection_is_closed(loop, monkeypatch):
    """A router that lost the connection drops our data silently; TCP notices after a quarter of an hour."""
    monkeypatch.setattr(remotes_module, "SILENCE_MS_MAX", 100)

    async def scenario() -> None:
        server, handler, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        await remotes.call(address, Command(code=1))
        with pytest.raises(RequestTimeout):
            await remotes.call(address, Command(code=2), timeout_ms=200)
        await until(lambda: not remotes.is_connected(address))
        await remotes.call(address, Command(code=1))
        assert handler.connections == 2
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


@both
def test_a_refused_connection_is_an_error(loop):
    async def scenario() -> None:
        server, _, address = await serve()
        await server.close()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        outcomes: list[object] = []
        remotes.send(address, Command(code=1), outcomes.append)
        with pytest.raises(ConnectFailed, match=address):
            await remotes.call(address, Command(code=1))
        assert [type(outcome) for outcome in outcomes] == [ConnectFailed]
        remotes.send(address, Command(code=1, flag=FLAG_ONEWAY), None)
        with pytest.raises(RemoteError):
            await remotes.call("not an address", Command(code=1))
        await remotes.aclose()

    run_on(loop, scenario)


@both
def test_oneway_requests_arrive_and_incoming_requests_are_handed_over(loop):
    async def scenario() -> None:
        asked: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        server, handler, address = await serve()
        remotes = AsyncioRemotes(
            SystemClock().monotonic_ms,
            on_request=lambda where, command, _: asked.put_nowait((where, command.code)),
        )
        remotes.send(address, Command(code=1, flag=FLAG_ONEWAY), None)
        await remotes.call(address, Command(code=4))
        remotes.send(address, Command(code=1, flag=FLAG_ONEWAY), None)
        assert await asked.get() == (address, 40)
        await remotes.call(address, Command(code=1))
        assert handler.received_codes == [1, 4, 1, 1]
        await remotes.aclose()
        await server.close()

    run_on(loop, scenario)


@both
def test_stopping_ends_waiting_and_connecting_requests(loop):
    async def scenario() -> None:
        server, _, address = await serve()
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        await remotes.call(address, Command(code=1))
        outcomes: list[object] = []
        remotes.send(address, Command(code=2), outcomes.append)
        remotes.send("192.0.2.1:9", Command(code=1), outcomes.append)
        await asyncio.sleep(0)
        await remotes.aclose()
        await until(lambda: len(outcomes) == 2)
        assert {type(outcome) for outcome in outcomes} <= {ConnectionLost, ConnectFailed}
        await server.close()

    run_on(loop, scenario)


@both
def test_a_garbage_answer_ends_the_connection(loop):
    async def scenario() -> None:
        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"\xff" * 20)
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(garbage, "127.0.0.1", 0)
        address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        remotes = AsyncioRemotes(SystemClock().monotonic_ms)
        with pytest.raises(ConnectionLost):
            await remotes.call(address, Command(code=1))
        await remotes.aclose()
        listener.close()
        await listener.wait_closed()

    run_on(loop, scenario)


# The blocking shell.


class Background:
    """A server on a separate thread, for tests of blocking code."""

    def __enter__(self) -> str:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._ready.wait()
        return self._address

    async def _serve(self) -> None:
        server, _, self._address = await serve()
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await server.close()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def test_blocking_requests_can_be_pipelined_and_finished_in_any_order():
    with Background() as address:
        remote = BlockingRemote(address, SystemClock().monotonic_ms)
        started = [remote.start(Command(code=1, body=str(n).encode())) for n in range(5)]
        assert [remote.finish(opaque).body for opaque in reversed(started)] == [b"4", b"3", b"2", b"1", b"0"]
        assert remote.call(Command(code=4, body=b"x")).body == b"x"
        remote.close()


def test_blocking_requests_time_out():
    with Background() as address:
        remote = BlockingRemote(address, SystemClock().monotonic_ms)
        for _ in range(3):
            with pytest.raises(
                RequestTimeout, match=rf"{address} did not answer within \d+ ms \(allow more time"
            ):
                remote.call(Command(code=2), timeout_ms=20)
        assert len(remote._pending) == 0
        assert remote.call(Command(code=1)).code == 0
        with pytest.raises(ConnectionLost):
            remote.call(Command(code=3))
        remote.close()
    with pytest.raises(ConnectFailed, match=address):
        BlockingRemote(address, SystemClock().monotonic_ms)
