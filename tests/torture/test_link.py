"""The link of torture forwards, delays and refuses data that two brokers send to each other."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from bench.torturing.link import LINK_HOST, Cut, Link

from tests.transport.loops import LOOPS, run_on

HOST = "127.0.0.1"


def has_link_host() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LINK_HOST, 0))
        except OSError:
            return False
    return True


pytestmark = pytest.mark.skipif(not has_link_host(), reason=f"macOS has no address {LINK_HOST}")


class Echo:
    """A server that echoes what it receives, and records which connections have ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except ConnectionResetError:
            pass
        writer.close()
        self.ended.set()


async def linked(scenario: Callable[[Link, int, Echo], Awaitable[None]]) -> None:
    """Run a scenario with a link to an echo's port."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        try:
            link = await Link([port], host=LINK_HOST, target=HOST).__aenter__()
        except OSError:  # Another process uses that port at this address: try another one.
            await linked(scenario)
            return
        try:
            await scenario(link, port, echo)
        finally:
            await link.__aexit__(None, None, None)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_silent_link_passes_neither_bytes_nor_ends_until_it_is_mended(loop: str) -> None:
    async def scenario(link: Link, port: int, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection(LINK_HOST, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        link.cut(Cut.SILENT)
        writer.write(b"two")
        other_reader, other = await asyncio.open_connection(LINK_HOST, port)
        other.write(b"new")
        # A round trip over a direct connection ends long after the link had these bytes.
        direct_reader, direct = await asyncio.open_connection(HOST, port)
        direct.write(b"here")
        assert await direct_reader.readexactly(4) == b"here"
        writer.write_eof()
        assert not echo.ended.is_set()
        assert not reader._buffer  # type: ignore[attr-defined]
        link.mend()
        assert await reader.read() == b"two"
        assert await other_reader.readexactly(3) == b"new"
        await echo.ended.wait()
        for each in (writer, other, direct):
            each.close()

    run_on(loop, lambda: linked(scenario))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_refused_link_ends_connections_old_and_new(loop: str) -> None:
    async def scenario(link: Link, port: int, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection(LINK_HOST, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        link.cut(Cut.REFUSED)
        another = await asyncio.open_connection(LINK_HOST, port)
        for ended, its_writer in ((reader, writer), another):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await ended.readexactly(1)
            its_writer.close()
        await echo.ended.wait()
        link.mend()
        reader, writer = await asyncio.open_connection(LINK_HOST, port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()

    run_on(loop, lambda: linked(scenario))
