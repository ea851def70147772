"""The name server as a process: a listening socket, the route table, and a scan for silent brokers.

Upstream: NamesrvController.java, routeinfo/BrokerHousekeepingService.java.
"""

import asyncio
from typing import Final

from libramq.auth.authorizer import AllowAll, Authorizer
from libramq.clock import Clock, MonotonicMs, SystemClock
from libramq.logs import get_logger
from libramq.nameserver.processor import NameServerProcessor
from libramq.nameserver.route_info import RouteInfo
from libramq.rpc.endpoint import Endpoint
from libramq.rpc.outcome import SUCCESS, Reply
from libramq.standstill import Standstill
from libramq.transport.bind import check_bind_address
from libramq.transport.server import Peer, Server, ServerConnection

log = get_logger(__name__)

#: NamesrvStartup.java.
NAME_SERVER_PORT: Final = 9876
#: NamesrvConfig.scanNotActiveBrokerInterval.
SCAN_INTERVAL_MS: Final = 5_000


class NameServer:
    """A name server. Use it as `async with NameServer(...)`, or call `start` and `stop`.

    port: 0 lets the system choose one; `port` says which after the start.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = NAME_SERVER_PORT,
        clock: Clock | None = None,
        *,
        authorizer: Authorizer | None = None,
        allow_public: bool = False,
    ) -> None:
        self.host = host
        self.port = port
        self.route_info = RouteInfo()
        self._standstill = Standstill(SCAN_INTERVAL_MS)
        self._allow_public = allow_public
        self._clock = clock or SystemClock()
        endpoint = Endpoint(
            clock=self._clock,
            authorizer=authorizer or AllowAll(),
            processors=NameServerProcessor(self.route_info).processors(),
            closed=self._connection_closed,
        )
        self._server = Server(endpoint, self._clock.monotonic_ms)
        self._scan: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen; ConfigError when the port is taken or the address is public without leave."""
        check_bind_address(self.host, allow_public=self._allow_public, remedy="say --allow-public")
        self.port = await self._server.listen(self.host, self.port)
        self._standstill.look(self._clock.monotonic_ms())
        self._scan = asyncio.get_running_loop().call_later(SCAN_INTERVAL_MS / 1000, self._scan_brokers)
        log.info("name server started", address=self.address)

    async def stop(self) -> None:
        """End every connection and stop listening."""
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        await self._server.close()
        log.info("name server stopped", address=self.address)

    async def __aenter__(self) -> "NameServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def expire_brokers(self) -> None:
        """Forget the brokers that were silent too long."""
        now_ms = self._clock.monotonic_ms()
        stood_ms = self._standstill.look(now_ms)
        if stood_ms:  # What brokers sent meanwhile lies in sockets.
            log.warning("the name server stood still; brokers have that time again", ms=stood_ms)
            self.route_info.stood_still(stood_ms, now_ms)
        forgotten, connections = self.route_info.expire(now_ms)
        for key in forgotten:
            log.warning("broker expired", cluster=key.cluster, address=key.address)
        for connection in connections:
            assert isinstance(connection, ServerConnection)
            connection.close("its broker was silent too long")

    def _scan_brokers(self) -> None:
        self.expire_brokers()
        self._scan = asyncio.get_running_loop().call_later(SCAN_INTERVAL_MS / 1000, self._scan_brokers)

    def _connection_closed(self, peer: Peer, _now_ms: MonotonicMs) -> Reply:
        for key in self.route_info.owner_lost(peer):
            log.info("broker's connection closed", cluster=key.cluster, address=key.address)
        return SUCCESS
