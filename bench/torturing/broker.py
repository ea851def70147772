"""The tortured broker: a broker in its own process that can be killed at any moment.

It starts like the additional brokers of `libra up --brokers N` (`broker_process`).
"""

import asyncio
import contextlib
import errno
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from bench.torturing.client import Client
from bench.torturing.link import LINK_HOST, Link

from libramq.broker.config import VIP_DISTANCE, BrokerConfig
from libramq.cli.servers.broker_children import READY, STOP_SECONDS, BrokerEnded
from libramq.cli.servers.ports import free_port
from libramq.errors import ConfigError, StoreError
from libramq.filesystem import LocalFileSystem
from libramq.nameserver import NameServer
from libramq.rpc import admin_calls
from libramq.store.check import check_store

HOST: Final = "127.0.0.1"
#: Ours: small, so that new files begin often.
LOG_FILE_BYTES: Final = 16 * 1024 * 1024
QUEUE_FILE_BYTES: Final = 20 * 3_000
#: Ours: enough checks to keep half messages open through a round, however long its link is cut.
TRANSACTION_CHECKS_MAX: Final = 1_000
#: Ours: the longest a start may take; recovering a whole log file takes some seconds.
START_SECONDS_MAX: Final = 120


class TorturedBroker:
    """One broker's process. log: the file for its log output."""

    def __init__(self, config: BrokerConfig, log: Path) -> None:
        self.config = config
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Return the address where the process listens; it may be registered with a link's address."""
        return f"{self.config.bind_address}:{self.config.listen_port}"

    @property
    def is_running(self) -> bool:
        """Return whether the process was started, and neither killed nor stopped."""
        return self._process is not None

    async def spawn(self) -> None:
        """Start the process without waiting until it serves."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "libramq.cli.servers.broker_process",
                "info",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.config) + b"\n")

    async def start(self) -> float:
        """Start the process and wait until it serves; return the seconds. Raises BrokerEnded."""
        began = time.monotonic()
        await self.spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                line = (await self._process.stdout.readline()).decode(errors="replace").strip()
        except TimeoutError:
            line = f"it does not serve after {START_SECONDS_MAX} s"
        if line != READY:
            await self.kill()
            raise BrokerEnded(f"the broker does not start: {line or 'it ended'}; see {self._log}")
        return time.monotonic() - began

    async def kill(self) -> None:
        """Kill the process, as `kill -9` does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def stop(self) -> None:
        """Stop the process cleanly; raises BrokerEnded if that fails."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise BrokerEnded(f"the broker does not stop within {STOP_SECONDS} s; see {self._log}") from None
        self._process = None
        if code:
            raise BrokerEnded(f"the broker's stop failed with exit code {code}; see {self._log}")


def tortured_config(store: Path, **options: Any) -> BrokerConfig:
    """Return the configuration of a broker that confirms only messages on its disk."""
    usual: dict[str, Any] = {
        "store_path": str(store),
        "broker_name": "tortured",
        "bind_address": HOST,
        "flush_disk_type": "SYNC_FLUSH",
        "commit_log_file_bytes": LOG_FILE_BYTES,
        "consume_queue_file_bytes": QUEUE_FILE_BYTES,
        "transaction_timeout_ms": 1_000,
        "transaction_check_interval_ms": 500,
        "transaction_check_max": TRANSACTION_CHECKS_MAX,
    }
    if "listen_port" not in options:
        usual["listen_port"] = free_port(HOST, below=VIP_DISTANCE)
    return BrokerConfig(**usual, **options)


def check_files(store: Path) -> tuple[int, list[str]]:
    """Return the end of a stopped broker's log, and the damage to its files."""
    try:
        report = check_store(store, LocalFileSystem())
    except StoreError as error:
        return 0, [str(error)]
    damage = f"the files are damaged; see libra store check {store}"
    return report.log_end, [damage] if report.is_damaged else []


#: Ours: attempts to find ports; a port free at one address may be taken at the other.
PORTS_TRIES: Final = 20


class PairPorts(NamedTuple):
    """The ports of a broker: for requests, and for its slave.

        torture's clients ─► 127.0.0.1:PORT ◄─ link ◄─ 127.0.0.2:PORT ◄─ the other broker

    Brokers register with the link's address, so all traffic between them passes through it; the traffic of
    torture's own clients does not. A machine without such an address has no link.
    """

    listen: int
    ha: int


class TorturedPair:
    """Two brokers of one name: a master and its slave."""

    def __init__(self, name_server: str, root: Path, ports: Sequence[PairPorts], link: Link | None) -> None:
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
        """Yield a pair that is not started; kill its processes at the end."""
        async with NameServer(HOST, 0) as name_server, contextlib.AsyncExitStack() as stack:
            ports, link = await _linked_ports(stack)
            pair = cls(name_server.address, root, ports, link)
            try:
                yield pair
            finally:
                await pair.master.kill()
                await pair.slave.kill()

    async def start(self) -> None:
        """Start the brokers that are not running."""
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
        """Return the differences between the logs, from the last compared offset to the shorter one's end."""
        ends = []
        for broker in self.brokers:
            async with Client(broker.address, is_serving=True) as client:
                information = await client.make(admin_calls.RUNTIME_INFO)
            ends.append(int(information["commitLogMaxOffset"]))
        return await asyncio.to_thread(self._compare_bytes, min(ends))

    async def stop(self) -> list[str]:
        """Stop both; return the damage to their files and the differences between the whole logs."""
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


async def _linked_ports(stack: contextlib.AsyncExitStack) -> tuple[list[PairPorts], Link | None]:
    """Return the ports of both brokers and the link over them; None if no address is available."""
    for _ in range(PORTS_TRIES):
        ports = [PairPorts(free_port(HOST, below=VIP_DISTANCE), free_port(HOST)) for _ in range(2)]
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
