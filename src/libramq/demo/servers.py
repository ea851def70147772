"""The demonstration's own name server and broker: `libra up` in a process, at free ports."""

import asyncio
import socket
from pathlib import Path
from typing import Final

from libramq.clock import SystemClock
from libramq.demo import topics
from libramq.demo.children import Child, ChildFailed
from libramq.errors import LibraError, RemoteError
from libramq.rpc.name_server_calls import cluster_info
from libramq.transport.blocking import BlockingRemote

HOST: Final = "127.0.0.1"
NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
VIP_DISTANCE: Final = 2  # The broker answers at this port too: MixAll.brokerVIPChannel.
READY_SECONDS: Final = 20
ASK_AGAIN_SECONDS: Final = 0.05


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _any_free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if _is_free(port - VIP_DISTANCE):
            return port


def choose_ports() -> tuple[int, int]:
    """RocketMQ's own ports where they are free, else any two."""
    namesrv = NAMESRV_PORT if _is_free(NAMESRV_PORT) else _any_free_port()
    if _is_free(BROKER_PORT) and _is_free(BROKER_PORT - VIP_DISTANCE):
        return namesrv, BROKER_PORT
    return namesrv, _any_free_port()


class Servers:
    """Name server and broker, and the demonstration's topics on them."""

    def __init__(self, child: Child, data: Path, namesrv_port: int, broker_port: int) -> None:
        self.child = child
        self.namesrv = f"{HOST}:{namesrv_port}"
        self._ports = (namesrv_port, broker_port)
        self._data = data

    async def start(self) -> None:
        namesrv_port, broker_port = self._ports
        arguments = ["up", "--nameserver-port", str(namesrv_port), "--broker-port", str(broker_port)]
        # A session of their own: they may outlive this process (--keep) and an interrupt is not for them.
        await self.child.start("libramq", [*arguments, "--data", str(self._data)], own_session=True)
        async with asyncio.timeout(READY_SECONDS):
            while (address := await asyncio.to_thread(self._broker_address)) is None:
                if not self.child.is_running:
                    raise ChildFailed(self.child, await self.child.ended())
                await asyncio.sleep(ASK_AGAIN_SECONDS)
        topics.create(address, topics.FLIGHTS, topics.FLIGHTS_QUEUES)
        topics.create(address, topics.CLOCK, 1)

    def _broker_address(self) -> str | None:
        try:
            remote = BlockingRemote(self.namesrv, SystemClock().monotonic_ms)
        except RemoteError:
            return None
        try:
            call = cluster_info()
            info = call.result(remote.call(call.command()), where=self.namesrv)
        except LibraError:
            return None
        finally:
            remote.close()
        return next((broker.master_address for broker in info.broker_addr_table.values()), None)
