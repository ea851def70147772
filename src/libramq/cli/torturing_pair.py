"""`libra torture --replicated`: what may happen to a master, its slave and their link, round by round.

load ─► a fault ─► what was acknowledged is at the one that lives ─► start, mend
     ─► at the master ─► in sync again ─► at the slave ─► the logs are equal ─► load …
"""

import asyncio
import contextlib
import enum
import random
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Final

from libramq.cli.servers.broker_children import BrokerEnded
from libramq.cli.servers.tortured_pair import TorturedPair
from libramq.testing.torture.check import check, check_copy
from libramq.testing.torture.client import Client
from libramq.testing.torture.ledger import Identity, Ledger
from libramq.testing.torture.link import LINK_HOST, Cut, Link
from libramq.testing.torture.load import PRODUCER_COUNT, LaterLoad, Load

#: Ours: how long the pair is under load before a fault; how long the load continues without the slave; how
#: long after the first of both the second is killed.
LOAD_SECONDS: Final = (0.05, 1.5)
ALONE_SECONDS: Final = 0.5
BETWEEN_SECONDS: Final = 0.1
#: Ours: how long the link is cut: less than a send waits for slaves, more than that, and one time in so many
#: longer than master and slave believe each other to be there (`SILENT_MS_MAX`).
CUT_SECONDS: Final = (0.05, 5)
LONG_CUT_SECONDS: Final = (20.5, 22)
LONG_CUTS: Final = 8
#: Ours: a slave searches for its master for some seconds, and copies tables every ten.
IN_SYNC_SECONDS_MAX: Final = 120
PROBE_SECONDS: Final = 0.05


class Fault(enum.Enum):
    """The events of a round; the text goes into its line."""

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
        """Run so many rounds, or to the first that breaks something; return what is wrong."""
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
        """Yield faults in random order, all of them before one is repeated."""
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
        """Cause a fault, and end the load; return what is wrong with the slave if it lives."""
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
        """Cut the link, and keep it cut for a while under load."""
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
        """Send until a send is acknowledged, which takes a slave; raises BrokerEnded."""
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
        """Check all messages at both, and then the files of both."""
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
