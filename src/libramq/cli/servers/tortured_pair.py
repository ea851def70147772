"""The tortured pair: a master and its slave in processes of their own, and the link between them.

        torture's clients ─► 127.0.0.1:PORT ◄─ link ◄─ 127.0.0.2:PORT ◄─ the other broker

Brokers register with the link's address, so all that one sends the other passes through it, and what
torture's own clients send does not. Where a machine has no such address there is no link.
"""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from libramq.broker.config import VIP_DISTANCE
from libramq.cli.servers.ports import free_port
from libramq.cli.servers.tortured_broker import HOST, TorturedBroker, check_files, tortured_config
from libramq.errors import ConfigError
from libramq.nameserver import NameServer
from libramq.rpc import admin_calls
from libramq.testing.torture.client import Client
from libramq.testing.torture.link import LINK_HOST, Link

#: Ours: a port that is free at one address may be taken at the other.
PORTS_TRIES: Final = 20


class Ports(NamedTuple):
    """The ports of a broker: for requests, and for its slave."""

    listen: int
    ha: int


class TorturedPair:
    """Two brokers of one name, one of which is the master."""

    def __init__(self, name_server: str, root: Path, ports: Sequence[Ports], link: Link | None) -> None:
        self.link = link
        host = HOST if link is None else LINK_HOST

        def broker(name: str, listen_port: int) -> TorturedBroker:
            config = tortured_config(
                root / name, listen_port=listen_port, namesrv_addr=name_server, broker_ip=host
            )
            return TorturedBroker(config, root / f"{name}.log")

        self.master, self.slave = broker("one", ports[0].listen), broker("two", ports[1].listen)
        self._ha_ports = {self.master: ports[0].ha, self.slave: ports[1].ha}
        self._assign_roles()
        self._equal_end = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, root: Path) -> AsyncIterator[Self]:
        """Yield a pair that was not started; its processes are killed in the end."""
        async with NameServer(HOST, 0) as name_server, contextlib.AsyncExitStack() as stack:
            ports, link = await _linked_ports(stack)
            pair = cls(name_server.address, root, ports, link)
            try:
                yield pair
            finally:
                await pair.master.kill()
                await pair.slave.kill()

    async def start(self) -> None:
        """Start what does not run."""
        await asyncio.gather(*(broker.start() for broker in self.brokers if not broker.is_running))

    @property
    def brokers(self) -> tuple[TorturedBroker, TorturedBroker]:
        """Return both; the first is the master."""
        return self.master, self.slave

    def exchange_roles(self) -> None:
        """Make the slave the master and the master its slave; both must be down."""
        assert not any(broker.is_running for broker in self.brokers)
        self.master, self.slave = self.slave, self.master
        self._assign_roles()

    def _assign_roles(self) -> None:
        self.master.config = replace(
            self.master.config,
            broker_id=0,
            broker_role="SYNC_MASTER",
            in_sync_replicas=2,
            ha_listen_port=self._ha_ports[self.master],
            slave_read_enable=False,
        )
        self.slave.config = replace(
            self.slave.config,
            broker_id=1,
            broker_role="SLAVE",
            in_sync_replicas=1,
            ha_listen_port=0,
            slave_read_enable=True,
        )

    async def compare_logs(self) -> list[str]:
        """Return whether the logs differ, from where they were last compared up to where both end."""
        ends = []
        for broker in self.brokers:
            async with Client(broker.address, is_serving=True) as client:
                information = await client.make(admin_calls.RUNTIME_INFO)
            ends.append(int(information["commitLogMaxOffset"]))
        return await asyncio.to_thread(self._compare_bytes, min(ends))

    async def stop(self) -> list[str]:
        """Stop both, and return the damage to their files and whether the whole logs differ."""
        await self.slave.stop()
        await self.master.stop()
        ends, wrong = [], []
        for broker in self.brokers:
            end, damage = check_files(Path(broker.config.store_path))
            ends.append(end)
            wrong += damage
        if ends[0] < ends[1]:  # A master writes a moment longer: it checks open transactions.
            wrong.append(f"the master's log ends at {ends[0]} and the slave's at {ends[1]}")
        self._equal_end = 0
        return wrong + self._compare_bytes(min(ends))

    def _compare_bytes(self, end: int) -> list[str]:
        begin, self._equal_end = self._equal_end, end
        one, other = (_log_bytes(Path(broker.config.store_path), begin, end) for broker in self.brokers)
        return [] if one == other else [f"the logs of master and slave differ between {begin} and {end}"]


async def _linked_ports(stack: contextlib.AsyncExitStack) -> tuple[list[Ports], Link | None]:
    """Return the ports of both brokers, and the link over them; None where no address is left for it."""
    for _ in range(PORTS_TRIES):
        ports = [Ports(free_port(HOST, below=VIP_DISTANCE), free_port(HOST)) for _ in range(2)]
        numbers = [number for each in ports for number in each]
        if len({*numbers}) < len(numbers):
            continue
        try:
            link = Link(numbers, host=LINK_HOST, target=HOST)
            return ports, await stack.enter_async_context(link)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return ports, None
            if error.errno != errno.EADDRINUSE:
                raise
    raise ConfigError(f"no ports are free at both {HOST} and {LINK_HOST}")


def _log_bytes(store: Path, begin: int, end: int) -> bytes:
    """Return a stretch of a log."""
    stretch = bytearray()
    for path in sorted((store / "commitlog").iterdir()):
        start = int(path.name)
        if start < end and start + path.stat().st_size > begin:
            with path.open("rb") as file:
                file.seek(max(0, begin - start))
                stretch += file.read(end - max(begin, start))
    return bytes(stretch)
