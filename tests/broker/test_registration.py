"""The registration: what name servers hear of a broker."""

import asyncio
from pathlib import Path

from libramq.auth.authorizer import AllowAll
from libramq.broker.config import BrokerConfig
from libramq.broker.registration import HEARTBEAT_TIMEOUT_MS, Registration
from libramq.broker.tables import Tables
from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.filesystem import LocalFileSystem
from libramq.remoting import headers as h
from libramq.rpc.endpoint import Endpoint, Request
from libramq.rpc.outcome import Outcome, Reply
from libramq.transport.remote import Remotes
from libramq.transport.server import Server

HOST = "127.0.0.1"


async def test_a_broker_says_that_it_is_there_once_a_second_and_is_gone_after_ten(tmp_path: Path):
    """So one that stands still is forgotten by all name servers, and its groups go elsewhere."""
    heard: asyncio.Queue[h.Header] = asyncio.Queue()

    def registered(request: Request) -> Outcome:
        heard.put_nowait(h.decode_header(request.command, h.RegisterBrokerHeader))
        return Reply()

    def beat(request: Request) -> Outcome:
        heard.put_nowait(h.decode_header(request.command, h.BrokerHeartbeatHeader))
        return Reply()

    clock = SystemClock()
    processors = {R.REGISTER_BROKER: registered, R.BROKER_HEARTBEAT: beat}
    server = Server(Endpoint(clock=clock, authorizer=AllowAll(), processors=processors), clock.monotonic_ms)
    name_server = f"{HOST}:{await server.listen(HOST, 0)}"
    config = BrokerConfig(store_path=str(tmp_path), namesrv_addr=name_server)
    remotes = Remotes(clock.monotonic_ms)
    registration = Registration(config, Tables(config, LocalFileSystem()).topics, remotes, [name_server])
    running = asyncio.create_task(registration.run())
    first = await heard.get()
    assert isinstance(first, h.RegisterBrokerHeader)
    assert first.heartbeat_timeout_millis == HEARTBEAT_TIMEOUT_MS == 10_000
    for _ in range(2):
        assert await heard.get() == h.BrokerHeartbeatHeader(
            cluster_name=first.cluster_name, broker_addr=first.broker_addr, broker_name=first.broker_name
        )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await remotes.close()
    await server.close()
