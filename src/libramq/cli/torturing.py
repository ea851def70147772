"""`libra torture`: a broker under load is killed at random moments, and must lose nothing it acknowledged.

start ─► check what it has ─► load ─► kill -9 ─► start …      at the end: stop, check the files
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Final

from libramq.cli import running
from libramq.cli.servers.broker_children import BrokerEnded
from libramq.cli.servers.tortured_broker import TorturedBroker, check_files, tortured_config
from libramq.cli.torturing_pair import PairTorturer
from libramq.errors import ConfigError
from libramq.testing.torture.check import check
from libramq.testing.torture.client import Client
from libramq.testing.torture.ledger import Ledger
from libramq.testing.torture.load import LaterLoad, Load

#: The exit code of a broker that lost something.
EXIT_BROKEN: Final = 1
#: Ours: how long a broker is under load before it is killed.
LOAD_SECONDS: Final = (0.05, 1.5)
#: Ours: one start in so many is killed, too, up to so long after it began.
KILLED_STARTS: Final = 5
START_SECONDS: Final = 1.0


def torture(rounds: int, directory: Path | None, *, is_replicated: bool = False) -> int:
    """Torture a broker; print a line a round, and the verdict; return the exit code.

    directory: a new or empty one; by default a temporary one, which stays if anything was lost.
    is_replicated: torture a master and its slave.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; name a new directory")
    root = directory or Path(tempfile.mkdtemp(prefix="libra-torture-"))
    root.mkdir(parents=True, exist_ok=True)
    torturer = PairTorturer(root) if is_replicated else _Torturer(root)
    wrong: list[str] = []
    try:
        wrong = running.run(torturer.run(rounds))
    finally:
        if directory is None and not wrong:
            shutil.rmtree(root)
    for text in wrong:
        print(f"broken: {text}")
    print(_verdict(torturer.ledger, rounds, wrong))
    if not wrong:
        print(torturer.later.summary())
    if wrong:
        print(f"the broker's files and its log are in {root}")
    return EXIT_BROKEN if wrong else 0


class _Torturer:
    """One broker and its rounds."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger()
        self.later = LaterLoad()
        self._load = Load(self.ledger)
        self._ends: dict[int, int] = {}
        self._store = root / "store"
        config = tortured_config(self._store)
        self._broker = TorturedBroker(config, root / "broker.log")

    async def run(self, rounds: int) -> list[str]:
        """Run that many rounds, or up to the first violation; return the violations."""
        address = self._broker.config.address
        try:
            await self._broker.start()
            async with Client(address, is_serving=True) as client:
                await client.create_topics()
            for number in range(1, rounds + 1):
                wrong = await self._round(number, rounds)
                if wrong:
                    return wrong
            wrong = await check(address, self.ledger, {})  # Everything, from the first message on.
            await self._broker.stop()
            return wrong + check_files(self._store)[1]
        except BrokerEnded as error:
            return [str(error)]
        finally:
            await self._broker.kill()

    async def _round(self, number: int, rounds: int) -> list[str]:
        messages, commits = self.ledger.message_count, self.ledger.commit_count
        load_seconds = random.uniform(*LOAD_SECONDS)
        address = self._broker.config.address
        loading = asyncio.create_task(_both(self._load.run(address), self.later.run(address)))
        began = time.monotonic()
        await asyncio.wait([loading], timeout=load_seconds)
        if loading.done():
            self._load.wrong.append("the broker, or every connection to it, ended by itself")
        await self._broker.kill()
        await loading
        if self._load.failure is not None:
            raise self._load.failure
        load_seconds = time.monotonic() - began
        also = ""
        if not random.randrange(KILLED_STARTS):
            also = " and while it started"
            await self._broker.spawn()
            await asyncio.sleep(random.uniform(0, START_SECONDS))
            await self._broker.kill()
        start_seconds = await self._broker.start()
        wrong = self._load.wrong + await check(address, self.ledger, self._ends)
        wrong += await self.later.check(address)
        messages, commits = self.ledger.message_count - messages, self.ledger.commit_count - commits
        print(
            f"round {number:>{len(str(rounds))}}: killed after {load_seconds * 1000:4.0f} ms{also}; "
            f"{messages:,} messages and {commits:,} commits acknowledged; serves again after "
            f"{start_seconds:.2f} s: {'BROKEN' if wrong else 'nothing lost'}",
            flush=True,
        )
        return wrong


async def _both(one: Coroutine[None, None, None], other: Coroutine[None, None, None]) -> None:
    await asyncio.gather(one, other)


def _verdict(ledger: Ledger, rounds: int, wrong: list[str]) -> str:
    acknowledged = f"{ledger.message_count:,} messages and {ledger.commit_count:,} commits were acknowledged"
    if wrong:
        return f"BROKEN: {acknowledged}, and not all of them are what they were"
    return f"{rounds} kills: {acknowledged}; 0 messages lost, 0 commits gone back"
