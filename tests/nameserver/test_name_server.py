"""The name server over sockets: liveness by connection, several servers, bad bytes, bad addresses."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from libramq.clock import SystemClock
from libramq.errors import ConfigError, TopicNotExist
from libramq.formats.route import TopicRouteData
from libramq.nameserver import NameServer
from libramq.nameserver.engine import SCAN_INTERVAL_MS
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.rpc import name_server_calls
from libramq.transport.address import check_bind_address, is_loopback
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.fakes import ManualClock
from tests.nameserver.tables import header, table


@asynccontextmanager
async def connected():
    remotes = AsyncioRemotes(SystemClock().monotonic_ms)
    try:
        yield remotes
    finally:
        await remotes.aclose()


async def ask(remotes: AsyncioRemotes, server: NameServer, call):
    return call.result(await remotes.call(server.address, call.command()), where=server.address)


async def register(remotes: AsyncioRemotes, server: NameServer, *topics: str) -> None:
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table(*topics))
    await ask(remotes, server, name_server_calls.register_broker(header(), body))


async def until(condition) -> None:
    """Let the loop run until a condition holds; the test's own timeout is the deadline."""
    while not condition():  # noqa: ASYNC110 # What we wait for has no event: the other end sees it.
        await asyncio.sleep(0)


async def test_a_registered_broker_appears_in_routes():
    async with NameServer(port=0) as server, connected() as remotes:
        await register(remotes, server, "T", "U")
        route = await ask(remotes, server, name_server_calls.topic_route("T"))
        assert isinstance(route, TopicRouteData)
        assert route.broker_datas[0].master_address == "10.0.0.1:10911"
        with pytest.raises(TopicNotExist, match="libra admin updateTopic"):
            await ask(remotes, server, name_server_calls.topic_route("V"))


async def test_a_closed_connection_removes_its_broker():
    async with NameServer(port=0) as server, connected() as client:
        async with connected() as broker:
            await register(broker, server, "T", "U")
            assert await ask(client, server, name_server_calls.all_topics()) == ["T", "U"]
        await until(lambda: server.route_info.topics() == [])
        assert await ask(client, server, name_server_calls.all_topics()) == []


def tick(server: NameServer) -> None:
    """Let the timer fire."""
    server.engine.tick()
    server.performer.follow()


async def test_a_silent_broker_is_dropped_and_its_connection_closed():
    clock = ManualClock()
    async with NameServer(port=0, clock=clock) as server, connected() as broker:
        await register(broker, server, "T", "U")
        for _ in range(120_000 // SCAN_INTERVAL_MS):
            clock.advance(SCAN_INTERVAL_MS)
            tick(server)
        assert server.route_info.topics() == ["T", "U"]
        clock.advance(1)  # Not only at the next liveness scan, because groups wait for it.
        tick(server)
        assert server.route_info.topics() == []
        await until(lambda: not broker.is_connected(server.address))


async def test_a_name_server_that_stalled_keeps_its_brokers():
    """Their data is still in the sockets when the timers fire."""
    clock = ManualClock()
    async with NameServer(port=0, clock=clock) as server, connected() as broker:
        await register(broker, server, "T", "U")
        clock.advance(600_000)
        tick(server)
        assert server.route_info.topics() == ["T", "U"]


async def test_a_broker_registers_with_several_name_servers():
    """Name servers do not know each other; brokers register with all of them, clients query any."""
    async with NameServer(port=0) as one, NameServer(port=0) as two, connected() as remotes:
        await register(remotes, one, "T", "U")
        with pytest.raises(TopicNotExist):
            await ask(remotes, two, name_server_calls.topic_route("T"))
        await register(remotes, two, "T", "U")
        assert await ask(remotes, one, name_server_calls.topic_route("T")) == await ask(
            remotes, two, name_server_calls.topic_route("T")
        )


async def test_a_bad_frame_closes_that_connection_only():
    async with NameServer(port=0) as server, connected() as bystander:
        await register(bystander, server, "T", "U")
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert await ask(bystander, server, name_server_calls.all_topics()) == ["T", "U"]


async def test_a_taken_port_is_an_error_with_a_remedy():
    async with NameServer(port=0) as server:
        with pytest.raises(
            ConfigError, match=rf"port {server.port} on 127.0.0.1 is taken; stop .* or choose"
        ):
            await NameServer(port=server.port).start()


async def test_a_public_address_needs_permission():
    with pytest.raises(ConfigError, match=r"refusing to listen on 0\.0\.0\.0: .*--allow-public"):
        await NameServer("0.0.0.0", 0).start()
    async with NameServer("0.0.0.0", 0, allow_public=True) as server:
        assert server.port > 0


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no such host", False),
    ],
)
def test_local_addresses_need_no_permission(host, loopback):
    assert is_loopback(host) == loopback
    if not loopback:
        with pytest.raises(ConfigError, match="set bindAllowPublic"):
            check_bind_address(host, allow_public=False, remedy="set bindAllowPublic=true")
    check_bind_address(host, allow_public=True, remedy="")
