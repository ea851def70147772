"""`bench/torture`: a broker under load is killed at random moments, and must lose nothing it acknowledged.

start ─► check its contents ─► load ─► kill -9 ─► start …      at the end: stop, check the files
"""

import asyncio
import contextlib
import enum
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Final

from bench.torturing.broker import TorturedBroker, TorturedPair, check_files, tortured_config
from bench.torturing.client import Client
from bench.torturing.ledger import Identity, Ledger
from bench.torturing.link import LINK_HOST, Cut, Link
from bench.torturing.load import PRODUCER_COUNT, LaterLoad, Load, check, check_copy

from libramq.cli import running
from libramq.cli.servers.broker_children import BrokerEnded
from libramq.errors import ConfigError

#: Ours: how long the load continues without the slave, and how long the second kill follows the first.
ALONE_SECONDS: Final = 0.5
BETWEEN_SECONDS: Final = 0.1
#: Ours: how long the link is cut: shorter or longer than a send waits for slaves, and one time in LONG_CUTS
#: longer than master and slave consider each other alive (`SILENT_MS_MAX`).
CUT_SECONDS: Final = (0.05, 5)
LONG_CUT_SECONDS: Final = (20.5, 22)
LONG_CUTS: Final = 8
#: Ours: a slave needs some seconds to find its master, and copies tables every ten.
IN_SYNC_SECONDS_MAX: Final = 120
PROBE_SECONDS: Final = 0.05


class Fault(enum.Enum):
    """The faults of a round; the text goes into its line.

    load ─► a fault ─► acknowledged messages are at the survivor ─► start, mend
         ─► at the master ─► in sync again ─► at the slave ─► the logs are equal ─► load …
    """

    MASTER = "killed the master"
    SLAVE = "killed the slave"
    BOTH = "killed both"
    LINK = "cut the link"
    PROMOTION = "cut the link, killed both and promoted the slave"


class PairTorturer:
    """A pair and its rounds."""

    def __init__(self, root: Path) -> None:
        self.ledger = Ledger()
        self._root = root
        self.later = LaterLoad()
        self._load = Load(self.ledger)
        self._ends: dict[int, int] = {}
        self._copied: dict[int, int] = {}
        self._probes = count(1)

    async def run(self, rounds: int) -> list[str]:
        """Run this many rounds, stopping at the first violation; return the violations."""
        async with TorturedPair.opened(self._root) as self._pair:
            faults = self._faults()
            try:
                await self._pair.start()
                async with Client(self._pair.master.address, is_serving=True) as client:
                    await client.create_topics()
                await self._wait_in_sync()
                await self._wait_topics_copied()
                for number in range(1, rounds + 1):
                    wrong = await self._round(f"round {number:>{len(str(rounds))}}", next(faults))
                    if wrong:
                        return wrong
                return await self._check_everything()
            except BrokerEnded as error:
                return [str(error)]

    def _faults(self) -> Iterator[Fault]:
        """Yield faults in random order, all of them before any is repeated."""
        faults = list(Fault)
        if self._pair.link is None:
            print(f"the link is not cut, as this machine has no address {LINK_HOST}")
            faults = [Fault.MASTER, Fault.SLAVE, Fault.BOTH]
        while True:
            yield from random.sample(faults, len(faults))

    async def _round(self, name: str, fault: Fault) -> list[str]:
        messages, commits = self.ledger.message_count, self.ledger.commit_count
        seconds = random.uniform(*LOAD_SECONDS)
        loading = asyncio.create_task(self._run_load(self._pair.master.address))
        await asyncio.wait([loading], timeout=seconds)
        if loading.done():
            self._load.wrong.append("the master, or every connection to it, ended by itself")
        wrong = await self._cause(fault, loading)
        if self._load.failure is not None:
            raise self._load.failure
        messages, commits = self.ledger.message_count - messages, self.ledger.commit_count - commits
        began = time.monotonic()
        await self._pair.start()
        wrong += self._load.wrong + await check(self._pair.master.address, self.ledger, self._ends)
        wrong += await self.later.check(self._pair.master.address)
        await self._wait_in_sync()
        wrong += await check_copy(self._pair.slave.address, self.ledger, self._copied)
        wrong += await self._pair.compare_logs()
        self.ledger.note_replicated()
        self.later.note_replicated()
        print(
            f"{name}: {fault.value} after {seconds * 1000:4.0f} ms; "
            f"{messages:,} messages and {commits:,} commits acknowledged; checked and in sync again after "
            f"{time.monotonic() - began:.1f} s: {'BROKEN' if wrong else 'nothing lost'}",
            flush=True,
        )
        return wrong

    async def _run_load(self, address: str) -> None:
        await asyncio.gather(self._load.run(address), self.later.run(address))

    async def _cause(self, fault: Fault, loading: asyncio.Task[None]) -> list[str]:
        """Cause a fault and end the load; return the violations of a surviving slave."""
        match fault:
            case Fault.MASTER:
                await self._pair.master.kill()
                await loading
                return await check_copy(self._pair.slave.address, self.ledger, self._copied)
            case Fault.SLAVE:
                await self._pair.slave.kill()
                await asyncio.wait([loading], timeout=random.uniform(0, ALONE_SECONDS))
                await _cancel(loading)
            case Fault.BOTH:
                await self._kill_both()
                await loading
            case Fault.LINK:
                await self._cut_link(loading)
                await _cancel(loading)
                self._link.mend()
            case Fault.PROMOTION:
                await self._cut_link(loading)
                await self._kill_both()
                await loading
                self._link.mend()
                self._pair.exchange_roles()
                self.ledger.note_promotion()
                self.later.note_promotion()
        return []

    async def _kill_both(self) -> None:
        for broker in random.sample(self._pair.brokers, 2):
            await broker.kill()
            await asyncio.sleep(random.uniform(0, BETWEEN_SECONDS))

    async def _cut_link(self, loading: asyncio.Task[None]) -> None:
        """Cut the link and keep it cut for a while under load."""
        is_long = not random.randrange(LONG_CUTS)
        self.later.note_parted()
        self._link.cut(random.choice(list(Cut)))
        await asyncio.wait([loading], timeout=random.uniform(*(LONG_CUT_SECONDS if is_long else CUT_SECONDS)))
        if loading.done():
            self._load.wrong.append("the master, or every connection to it, ended with the link")

    @property
    def _link(self) -> Link:
        assert self._pair.link is not None
        return self._pair.link

    async def _wait_in_sync(self) -> None:
        """Send until a send is acknowledged, which requires the slave; raises BrokerEnded."""
        async with (
            Client(self._pair.master.address, is_serving=True) as client,
            _within("the slave is not in sync again"),
        ):
            while True:
                identity = Identity(PRODUCER_COUNT, next(self._probes))
                offset = await client.send(identity, 0)
                if offset is not None:
                    self._load.wrong += self.ledger.acknowledged(0, offset, identity)
                    return
                await asyncio.sleep(PROBE_SECONDS)

    async def _wait_topics_copied(self) -> None:
        """Wait until the slave serves the topics; raises BrokerEnded."""
        async with (
            Client(self._pair.slave.address, is_serving=True) as client,
            _within("the slave does not know the topics"),
        ):
            while True:
                if await client.serves_topics():
                    return
                await asyncio.sleep(PROBE_SECONDS)

    async def _check_everything(self) -> list[str]:
        """Check all messages at both brokers, then the files of both."""
        wrong = await check(self._pair.master.address, self.ledger, {})
        wrong += await check_copy(self._pair.slave.address, self.ledger, {})
        return wrong + await self._pair.stop()


async def _cancel(loading: asyncio.Task[None]) -> None:
    loading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loading


@contextlib.asynccontextmanager
async def _within(failure: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(IN_SYNC_SECONDS_MAX):
            yield
    except TimeoutError:
        raise BrokerEnded(f"{failure} within {IN_SYNC_SECONDS_MAX} s") from None


#: The exit code of a broker that lost something.
EXIT_BROKEN: Final = 1
#: Ours: how long a broker is under load before it is killed.
LOAD_SECONDS: Final = (0.05, 1.5)
#: Ours: one start in KILLED_STARTS is killed as well, up to START_SECONDS after it began.
KILLED_STARTS: Final = 5
START_SECONDS: Final = 1.0


def torture(rounds: int, directory: Path | None, *, is_replicated: bool = False) -> int:
    """Torture a broker; print a line per round and the verdict; return the exit code.

    directory: new or empty; by default temporary, and kept if anything was lost.
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
        """Run this many rounds, stopping at the first violation; return the violations."""
        address = self._broker.config.address
        try:
            await self._broker.start()
            async with Client(address, is_serving=True) as client:
                await client.create_topics()
            for number in range(1, rounds + 1):
                wrong = await self._round(number, rounds)
                if wrong:
                    return wrong
            wrong = await check(address, self.ledger, {})  # Check everything, from the first message on.
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
