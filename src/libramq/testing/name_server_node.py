"""The simulated name server: the real route table and processors behind simulated connections."""

from libramq.auth.authorizer import AllowAll
from libramq.clock import MonotonicMs
from libramq.nameserver.name_server import SCAN_INTERVAL_MS
from libramq.nameserver.processor import NameServerProcessor
from libramq.nameserver.route_info import RouteInfo
from libramq.rpc.endpoint import Endpoint
from libramq.rpc.outcome import SUCCESS, Reply
from libramq.standstill import Standstill
from libramq.testing.network import ServerEnd
from libramq.testing.process import Process
from libramq.testing.world import World
from libramq.transport.server import Peer


class SimulatedNameServer:
    """One name server; it remembers nothing over a restart. number: from 1 on."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"namesrv-{number}"
        self.address = f"10.0.1.{number}:9876"
        self.process = Process(self.name, world.time, clock=world.clock(self.name))
        self._world = world
        self.start()

    def start(self) -> None:
        """Listen, knowing nobody."""
        if self.process.is_alive:
            return
        world = self._world
        self.process.start()
        self._route_info = RouteInfo()
        self._standstill = Standstill(SCAN_INTERVAL_MS)
        self._standstill.look(self.process.now_ms)
        endpoint = Endpoint(
            clock=self.process.clock,
            authorizer=AllowAll(),
            processors=NameServerProcessor(self._route_info).processors(),
            closed=self._connection_closed,
        )
        world.network.listen(self.address, self.process, endpoint)
        self.process.every(SCAN_INTERVAL_MS, self._scan)

    def route(self, topic: str) -> object:
        """What it says of a topic; None: nothing."""
        return self._route_info.route(topic) if self.process.is_alive else None

    def kill(self) -> None:
        """The process is gone."""
        self.process.kill()
        self._world.network.died(self.process)

    def _scan(self) -> None:
        now_ms = self.process.now_ms
        stood_ms = self._standstill.look(now_ms)
        if stood_ms:
            self._route_info.stood_still(stood_ms, now_ms)
        for connection in self._route_info.expire(now_ms)[1]:
            assert isinstance(connection, ServerEnd)
            connection.close("its broker was silent too long")

    def _connection_closed(self, peer: Peer, _now_ms: MonotonicMs) -> Reply:
        self._route_info.owner_lost(peer)
        return SUCCESS
