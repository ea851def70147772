"""The demonstration's own name server and broker: `libra up` in a process, at free ports."""

import asyncio
from pathlib import Path
from typing import Final

from libramq.cli.servers.ports import Ports
from libramq.clock import SystemClock
from libramq.demo import topics
from libramq.demo.children import Child, ChildFailed
from libramq.errors import LibraError, RemoteError
from libramq.rpc.name_server_calls import cluster_info
from libramq.transport.blocking import BlockingRemote

HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 20
ASK_AGAIN_SECONDS: Final = 0.05


class Servers:
    """Name server and broker, and the demonstration's topics on them."""

    def __init__(self, child: Child, data: Path, ports: Ports) -> None:
        self.child = child
        self.namesrv = f"{HOST}:{ports.nameserver}"
        self._ports = ports
        self._data = data

    async def start(self) -> None:
        nameserver, broker, _ = self._ports
        arguments = ["up", "--nameserver-port", str(nameserver), "--broker-port", str(broker)]
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
