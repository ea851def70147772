"""The accept loop: TLS and plaintext on one port, silent and slow peers, and descriptor shortage."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest
import trustme

from libramq.clock import SystemClock
from libramq.errors import ConfigError
from libramq.transport import handshakes as handshakes_module
from libramq.transport import listener as listener_module
from libramq.transport import server as server_module
from libramq.transport.admission import Census, ConnectionLimits
from libramq.transport.server import Server
from tests.fakes import ManualClock
from tests.transport.loops import LOOPS, run_on, until
from tests.transport.test_server import Client, Echo, serve

pytestmark = pytest.mark.parametrize("loop", list(LOOPS))

TLS_HANDSHAKE = 22


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def served(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def serve_both(handler: Echo, served: ssl.SSLContext, clock: object = None) -> tuple[Server, int]:
    """Serve TLS and plaintext connections on one port; clients must authenticate."""
    server = Server(
        handler,
        (clock or SystemClock()).monotonic_ms,  # type: ignore[attr-defined]
        census=Census(ConnectionLimits(unauthenticated_max=10)),
        tls=lambda first: served if first == TLS_HANDSHAKE else None,
    )
    return server, await server.listen("127.0.0.1", 0)


async def connect_encrypted(port: int, trusting: ssl.SSLContext) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=trusting))


def test_one_port_serves_encrypted_and_plain_connections(loop, served, trusting):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        plain, encrypted = await Client.connect(port), await connect_encrypted(port, trusting)
        body = b"large" * 100_000
        for client in (plain, encrypted, plain):
            assert await client.ask(body) == body
        addresses = {"{}:{}".format(*each.writer.get_extra_info("sockname")) for each in (plain, encrypted)}
        assert {peer.address for peer in echo.peers} == addresses
        assert server.connection_count == 2
        await plain.close()
        await encrypted.close()
        await until(lambda: not server.connection_count)
        await server.close()

    run_on(loop, scenario)


def test_encrypted_connections_end_with_the_server(loop, served, trusting):
    """A connection whose client stops reading and does not answer the TLS close is aborted."""

    async def scenario() -> None:
        echo = Echo(bytes(15_000_000))
        server, port = await serve_both(echo, served)
        idle, stuck = await connect_encrypted(port, trusting), await connect_encrypted(port, trusting)
        for _ in range(2):
            stuck.writer.write(stuck.frame())
        await until(lambda: sum(echo.batches) == 2)
        await server.close()
        assert server.connection_count == 0
        assert len(echo.gone) == len(echo.peers) == 2
        assert await idle.is_ended()
        for client in (idle, stuck):
            client.writer.transport.abort()

    run_on(loop, scenario)


def test_a_port_without_tls_serves_a_connection_before_its_first_byte(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        await until(lambda: bool(echo.peers))
        accepted = echo.peers[0]._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_first_byte_may_be_late_and_alone(loop, served):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        client = await Client.connect(port)
        await until(lambda: server.connection_count == 1)
        frame = client.frame(b"late")
        client.writer.write(frame[:1])
        await until(lambda: bool(echo.peers))
        client.writer.write(frame[1:])
        assert [reply.body for reply in await client.read(1)] == [b"late"]
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_connection_without_a_first_byte_is_closed(loop, served):
    async def scenario() -> None:
        clock = ManualClock()
        echo = Echo()
        server, port = await serve_both(echo, served, clock)
        silent = await Client.connect(port)
        await until(lambda: server.connection_count == 1)
        clock.advance(server_module.FIRST_BYTE_MS_MAX)
        server._close_late()
        assert server.connection_count == 1
        clock.advance(1)
        server._close_late()
        assert await silent.is_ended()
        assert server.connection_count == 0
        assert not echo.peers
        await silent.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_peer_that_leaves_before_its_first_byte_leaves_nothing(loop, served, is_reset):
    """A load balancer's check connects and closes; others reset the connection."""

    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                if is_reset:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        another = await Client.connect(port)
        assert await another.ask() == b"hi"
        await until(lambda: server.connection_count == 1)
        assert len(echo.peers) == 1
        await another.close()
        await server.close()

    run_on(loop, scenario)


def test_a_reset_between_the_first_byte_and_the_look_at_it_leaves_nothing(loop, served):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        for first in (b"\x16", b"\0"):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                await until(lambda: server.connection_count == 1)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sendall(first)
            await until(lambda: server.connection_count == 0)
        assert len(echo.gone) == len(echo.peers)
        await server.close()

    run_on(loop, scenario)


def test_a_handshake_of_invalid_bytes_ends_its_connection(loop, served):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        client = await Client.connect(port)
        client.writer.write(b"\x16 is no handshake")
        with contextlib.suppress(ConnectionError):
            await client.reader.read()  # An alert.
        await until(lambda: server.connection_count == 0)
        assert not echo.peers
        await client.close()
        await server.close()

    run_on(loop, scenario)


def test_a_handshake_has_a_limited_time(loop, served, monkeypatch):
    monkeypatch.setattr(handshakes_module, "HANDSHAKE_MS_MAX", 50)

    async def scenario() -> None:
        server, port = await serve_both(Echo(), served)
        client = await Client.connect(port)
        client.writer.write(b"\x16")
        assert await client.is_ended()
        await until(lambda: server.connection_count == 0)
        await client.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\0", b"\0\0\1"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 20])
def test_a_server_that_closes_ends_connections_that_are_not_served_yet(loop, served, sent, rounds):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve_both(echo, served)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(sent)
            for _ in range(rounds):
                await asyncio.sleep(0)
            await server.close()
            assert server.connection_count == 0
            assert len(echo.gone) == len(echo.peers)
            with contextlib.suppress(ConnectionResetError):
                while client.recv(100):  # At most an alert.
                    pass

    run_on(loop, scenario)


def test_addresses_of_a_family_that_the_kernel_does_not_have_are_left_out(loop, monkeypatch):
    create, families = socket.create_server, {socket.AF_INET}

    def create_server(address: object, *, family: int, backlog: int) -> socket.socket:
        if family not in families:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return create(address, family=family, backlog=backlog)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", create_server)

    async def scenario() -> None:
        server = Server(Echo(), SystemClock().monotonic_ms)
        client = await Client.connect(await server.listen("", 0))
        assert await client.ask() == b"hi"
        await client.close()
        await server.close()
        families.clear()
        with pytest.raises(ConfigError, match="cannot listen on 127"):
            await server.listen("127.0.0.1", 0)

    run_on(loop, scenario)


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Leave this process without a free descriptor, with a limit near the number in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    filling: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in filling:
            os.close(number)


@pytest.mark.parametrize("has_spare", [True, False])
def test_without_descriptors_connections_are_refused_and_accepted_again_later(
    loop, caplog, monkeypatch, has_spare
):
    """libuv does the same: a connection that is not accepted would be reported in every round."""
    monkeypatch.setattr(listener_module, "ACCEPT_RETRY_S", 0.05)

    async def scenario() -> None:
        server, port = await serve(Echo())
        open_one = await Client.connect(port)
        assert await open_one.ask() == b"hi"
        waiting = [socket.socket() for _ in range(5)]
        if not has_spare:
            server._listener._release_spare()
        with no_free_descriptors():
            for each in waiting:
                each.connect(("127.0.0.1", port))
            assert await open_one.ask() == b"hi"
            await until(lambda: server._admission._refused_count == (5 if has_spare else 1))
            assert await open_one.ask() == b"hi"
        for each in waiting:
            each.setblocking(False)
            client = Client(*await asyncio.open_connection(sock=each))
            if has_spare:
                assert await client.is_ended()
            else:
                assert await client.ask() == b"hi"
            await client.close()
        again = await Client.connect(port)
        assert await again.ask() == b"hi"
        assert caplog.text.count("connections are refused") == 1
        await again.close()
        await open_one.close()
        await server.close()

    run_on(loop, scenario)


def failing_accepts(monkeypatch, failures: list[int]) -> None:
    """Make listening sockets fail with these errors, the last one first."""

    class Listening(socket.socket):
        def accept(self):
            if failures:
                raise OSError(failures.pop(), "of a connection that is gone")
            return super().accept()

    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda *a, **k: Listening(fileno=create(*a, **k).detach()))


def test_an_error_of_one_connection_costs_the_others_nothing(loop, caplog, monkeypatch):
    """Linux reports pending network errors through `accept`; they are no shortage of descriptors."""
    failures = [errno.EPROTO, errno.ENETUNREACH]
    failing_accepts(monkeypatch, failures)

    async def scenario() -> None:
        server, port = await serve(Echo())
        clients = [await Client.connect(port) for _ in range(3)]
        for client in clients:
            assert await client.ask() == b"hi"
            await client.close()
        await server.close()

    run_on(loop, scenario)
    assert not failures
    assert "refused" not in caplog.text


def test_an_error_of_one_connection_among_those_refused_is_no_shortage(loop, monkeypatch):
    """The server used to accept nothing for a second."""
    monkeypatch.setattr(listener_module, "ACCEPT_RETRY_S", 3_600)
    failing_accepts(monkeypatch, [errno.EPROTO, errno.EMFILE])

    async def scenario() -> None:
        server, port = await serve(Echo())
        refused = await Client.connect(port)
        assert await refused.is_ended()
        client = await Client.connect(port)
        assert await client.ask() == b"hi"
        await client.close()
        await refused.close()
        await server.close()

    run_on(loop, scenario)
