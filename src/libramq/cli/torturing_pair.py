"""`libra torture --replicated`: a master and its slave under load, of which one or both are killed.

load ─► kill master, slave or both ─► what was acknowledged is at the one that lives ─► start
     ─► at the master ─► in sync again ─► at the slave ─► load …       at the end: their logs are equal
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Final

from libramq.cli.servers.broker_children import BrokerEnded
from libramq.cli.servers.ports import free_port
from libramq.cli.servers.tortured_broker import HOST, TorturedBroker, check_files, tortured_config
from libramq.nameserver import NameServer
from libramq.testing.torture.bodies import Identity
from libramq.testing.torture.check import check, check_copy
from libramq.testing.torture.client import Client
from libramq.testing.torture.ledger import Ledger
from libramq.testing.torture.load import PRODUCER_COUNT, Load

#: Ours: how long the pair is under load before a kill; how long the load goes on without the slave; how long
#: after the first of both the second is killed.
LOAD_SECONDS: Final = (0.05, 1.5)
ALONE_SECONDS: Final = 0.5
BETWEEN_SECONDS: Final = 0.1
#: Ours: a slave searches for its master for some seconds, and copies tables every ten.
IN_SYNC_SECONDS_MAX: Final = 120
PROBE_SECONDS: Final = 0.05
MASTER, SLAVE, BOTH = "the master", "the slave", "both"


class TorturedPair:
    """A master, its slave, and their rounds."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger()
        self._root = root
        self._load = Load(self.ledger)
        self._ends: dict[int, int] = {}
        self._copied: dict[int, int] = {}
        self._probes = count(1)

    async def run(self, rounds: int) -> list[str]:
        """Run so many rounds, or to the first that breaks something; return what is wrong."""
        async with NameServer(HOST, 0) as name_server:
            self._master, self._slave = self._brokers(name_server.address)
            try:
                await self._start(self._master, self._slave)
                async with Client(self._master.config.address, is_serving=True) as client:
                    await client.create_topic()
                await self._wait_in_sync()
                await self._wait_topic_copied()
                for number in range(1, rounds + 1):
                    wrong = await self._round(number, rounds)
                    if wrong:
                        return wrong
                return await self._check_everything()
            except BrokerEnded as error:
                return [str(error)]
            finally:
                await self._master.kill()
                await self._slave.kill()

    def _brokers(self, name_server: str) -> tuple[TorturedBroker, TorturedBroker]:
        def broker(name: str, **options: object) -> TorturedBroker:
            config = tortured_config(self._root / name, namesrv_addr=name_server, **options)
            return TorturedBroker(config, self._root / f"{name}.log")

        ha_port = free_port(HOST)
        master = broker("master", broker_role="SYNC_MASTER", in_sync_replicas=2, ha_listen_port=ha_port)
        return master, broker("slave", broker_role="SLAVE", broker_id=1, slave_read_enable=True)

    async def _round(self, number: int, rounds: int) -> list[str]:
        messages, commits = self.ledger.message_count, self.ledger.commit_count
        seconds, victims = random.uniform(*LOAD_SECONDS), random.choice((MASTER, SLAVE, BOTH))
        loading = asyncio.create_task(self._load.run(self._master.config.address))
        await asyncio.wait([loading], timeout=seconds)
        if loading.done():
            self._load.wrong.append("the master, or every connection to it, ended by itself")
        wrong = await self._kill(victims, loading)
        if self._load.failure is not None:
            raise self._load.failure
        messages, commits = self.ledger.message_count - messages, self.ledger.commit_count - commits
        began = time.monotonic()
        await self._start(*[each for each in (self._master, self._slave) if not each.is_running])
        wrong += self._load.wrong + await check(self._master.config.address, self.ledger, self._ends)
        await self._wait_in_sync()
        wrong += await check_copy(self._slave.config.address, self.ledger, self._copied)
        print(
            f"round {number:>{len(str(rounds))}}: killed {victims} after {seconds * 1000:4.0f} ms; "
            f"{messages:,} messages and {commits:,} commits acknowledged; checked and in sync again after "
            f"{time.monotonic() - began:.1f} s: {'BROKEN' if wrong else 'nothing lost'}",
            flush=True,
        )
        return wrong

    async def _kill(self, victims: str, loading: asyncio.Task[None]) -> list[str]:
        """Kill, and end the load; return what is wrong with the slave if it lives."""
        if victims == SLAVE:
            await self._slave.kill()
            await asyncio.wait([loading], timeout=random.uniform(0, ALONE_SECONDS))
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
            return []
        order = [self._master, self._slave] if victims == BOTH else [self._master]
        random.shuffle(order)
        for broker in order:
            await broker.kill()
            await asyncio.sleep(random.uniform(0, BETWEEN_SECONDS) if victims == BOTH else 0)
        await loading
        if victims == BOTH:
            return []
        return await check_copy(self._slave.config.address, self.ledger, self._copied)

    async def _start(self, *brokers: TorturedBroker) -> None:
        await asyncio.gather(*(broker.start() for broker in brokers))

    async def _wait_in_sync(self) -> None:
        """Send until a send is acknowledged, which takes a slave; raises BrokerEnded."""
        async with (
            Client(self._master.config.address, is_serving=True) as client,
            _within("the slave is not in sync again"),
        ):
            while True:
                identity = Identity(PRODUCER_COUNT, next(self._probes))
                offset = await client.send(identity, 0)
                if offset is not None:
                    self._load.wrong += self.ledger.acknowledged(0, offset, identity)
                    return
                await asyncio.sleep(PROBE_SECONDS)

    async def _wait_topic_copied(self) -> None:
        """Wait until the slave serves the topic; raises BrokerEnded."""
        async with (
            Client(self._slave.config.address, is_serving=True) as client,
            _within("the slave does not know the topic"),
        ):
            while True:
                if await client.serves_topic():
                    return
                await asyncio.sleep(PROBE_SECONDS)

    async def _check_everything(self) -> list[str]:
        """Check all messages at both, and then the files of both."""
        wrong = await check(self._master.config.address, self.ledger, {})
        wrong += await check_copy(self._slave.config.address, self.ledger, {})
        await self._slave.stop()
        await self._master.stop()
        stores = [Path(broker.config.store_path) for broker in (self._master, self._slave)]
        ends = []
        for store in stores:
            end, damage = check_files(store)
            ends.append(end)
            wrong += damage
        if min(ends) and _log_bytes(stores[0], min(ends)) != _log_bytes(stores[1], min(ends)):
            wrong.append(f"the logs of master and slave differ before {min(ends)}")
        return wrong


@contextlib.asynccontextmanager
async def _within(failure: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(IN_SYNC_SECONDS_MAX):
            yield
    except TimeoutError:
        raise BrokerEnded(f"{failure} within {IN_SYNC_SECONDS_MAX} s") from None


def _log_bytes(store: Path, end: int) -> list[bytes]:
    """Return a log's bytes by file, up to an offset."""
    files = sorted((store / "commitlog").iterdir())
    return [path.read_bytes()[: max(0, end - int(path.name))] for path in files if int(path.name) < end]
