"""The load of torture: producers and committing consumers, until their broker dies.

Each has its own connection and never retries: an unacknowledged message may be stored or not.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from bench.torturing.client import (
    QUEUE_COUNT,
    TIMERS_TOPIC,
    TRANSACTIONS_TOPIC,
    Client,
    Half,
)
from bench.torturing.ledger import Deliveries, Identity, Ledger, identity_of

from libramq.clock import SystemClock
from libramq.errors import ConnectFailed, ConnectionLost, LibraError

GROUPS: Final = ("one", "two")
PRODUCER_COUNT: Final = 4
#: Ours: a producer's concurrent sends, so that one flush confirms several.
SENDS_AT_ONCE: Final = 8
#: Ours: how long a consumer at the end of its queue waits for more.
HOLD_MS: Final = 500


class Load:
    """Producers and consumers over many rounds.

    wrong: the broker's violations before it was killed. failure: why it became unusable, such as a full disk.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.wrong: list[str] = []
        self.failure: LibraError | None = None
        self._ledger = ledger
        self._serials = [count(1) for _ in range(PRODUCER_COUNT)]

    async def run(self, address: str) -> None:
        """Send, pull and commit until the broker dies."""
        async with contextlib.AsyncExitStack() as stack:
            work: list[Any] = []
            for producer in range(PRODUCER_COUNT):
                client = await stack.enter_async_context(Client(address))
                work += [self._produce(client, producer) for _ in range(SENDS_AT_ONCE)]
            for group in GROUPS:
                client = await stack.enter_async_context(Client(address))
                work += [self._consume(client, group, queue_id) for queue_id in range(QUEUE_COUNT)]
            await asyncio.gather(*work)

    @contextlib.contextmanager
    def _until_killed(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionLost, ConnectFailed):
            pass
        except LibraError as error:
            self.failure = self.failure or error

    async def _produce(self, client: Client, producer: int) -> None:
        with self._until_killed():
            while True:
                identity = Identity(producer, next(self._serials[producer]))
                queue_id = identity.serial % QUEUE_COUNT
                offset = await client.send(identity, queue_id)
                if offset is not None:
                    self.wrong += self._ledger.acknowledged(queue_id, offset, identity)

    async def _consume(self, client: Client, group: str, queue_id: int) -> None:
        with self._until_killed():
            offset = await client.committed(group, queue_id) or 0
            while True:
                found = await client.pull(group, queue_id, offset, hold_ms=HOLD_MS)
                for at, identity in found:
                    self.wrong += self._ledger.seen(queue_id, at, identity)
                    offset = at + 1
                if found:
                    self._ledger.requested(group, queue_id, offset)
                    await client.commit(group, queue_id, offset)
                    self._ledger.committed(group, queue_id, offset)


#: The producer numbers after those of the other load and of its probes.
TRANSACTIONS_PRODUCER: Final = PRODUCER_COUNT + 1
TIMERS_PRODUCER: Final = PRODUCER_COUNT + 2
#: Ours: concurrent transactions and timer messages.
AT_ONCE: Final = 4
#: Ours: the share of half messages left open until the broker is killed and restarted.
OPEN_SHARE: Final = 0.25
#: Ours: the delays of timer messages; some are due under load, some while no broker runs, some later.
TIMER_MS: Final = (0, 4_000)
#: Ours: everything must be delivered this long after a start; timers are up to a second late.
DELIVERED_SECONDS_MAX: Final = 60
LOOK_SECONDS: Final = 0.1


class LaterLoad:
    """Transactions and timer messages over many rounds.

    wrong: the broker's violations before it was killed.

        half message ─┬─► commit    ─► delivered once, also if the commit is repeated after a kill
                      ├─► rollback  ─► never delivered
                      └─► nothing, until the broker has been killed and started; then one of both

    Upstream: EndTransactionProcessor.java, TimerMessageStore.java.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.rolled_back_count = 0
        self.transactions = Deliveries(TRANSACTIONS_TOPIC)
        self.timers = Deliveries(TIMERS_TOPIC)
        self._serials = count(1)
        self._clock = SystemClock()
        #: Open half messages, and the requested end of each: commit, rollback, or None for no request.
        self._open: dict[Half, bool | None] = {}
        #: Half messages that have ended at the master, but maybe not at its slave; the value is whether by a
        #: commit. An end that no slave confirms is answered normally: the producer could not react to it.
        self._unsafe: dict[Half, bool] = {}
        self._has_slave = True
        self._ends = {
            (topic, each): 0 for topic in (TRANSACTIONS_TOPIC, TIMERS_TOPIC) for each in range(QUEUE_COUNT)
        }

    async def run(self, address: str) -> None:
        """Send and end until the broker dies."""
        async with Client(address) as one, Client(address) as other:
            transactions = [self._transact(one) for _ in range(AT_ONCE)]
            await asyncio.gather(*transactions, *(self._send_timers(other) for _ in range(AT_ONCE)))

    def note_parted(self) -> None:
        """Record that the slave receives no more of this load."""
        self._has_slave = False

    def note_replicated(self) -> None:
        """Record that master and slave have the same log."""
        for half, is_commit in self._unsafe.items():
            self._ended(half, is_commit=is_commit)
        self._unsafe.clear()

    def note_promotion(self) -> None:
        """Record that the slave is the master now; it may lack unacknowledged messages."""
        self._open.update(self._unsafe)  # The new master checks with producers about them.
        self._unsafe.clear()
        self.transactions.note_promotion(
            [half.identity for half, is_commit in self._open.items() if is_commit]
        )
        self.timers.note_promotion(())
        self._ends = dict.fromkeys(self._ends, 0)

    async def check(self, address: str) -> list[str]:
        """End the open transactions, wait for due messages, and return the violations."""
        self._has_slave = True
        async with Client(address, is_serving=True) as client:
            for half, requested in list(self._open.items()):
                is_commit = requested if requested is not None else random.choice((True, False))
                try:
                    await self._end(client, half, is_commit=is_commit)
                except LibraError as error:
                    self.wrong.append(f"an acknowledged half message cannot be ended: {error}")
            deadline = time.monotonic() + DELIVERED_SECONDS_MAX
            while True:
                await self._read(client)
                is_missing = self.transactions.is_missing_any or self.timers.is_missing_any
                if self.wrong or not is_missing:
                    return self.wrong
                if time.monotonic() > deadline:
                    return self.transactions.missing() + self.timers.missing()
                await asyncio.sleep(LOOK_SECONDS)

    def summary(self) -> str:
        """Return a summary of deliveries, after the last check."""
        transactions, timers = self.transactions, self.timers
        return (
            f"{transactions.promised_count:,} transactions committed and delivered, "
            f"{transactions.twice_count:,} of them twice, "
            f"{self.rolled_back_count:,} rolled back and never delivered; "
            f"{timers.promised_count:,} timer messages delivered, {timers.twice_count:,} of them twice"
        )

    async def _read(self, client: Client) -> None:
        for (topic, queue_id), end in self._ends.items():
            deliveries = self.transactions if topic == TRANSACTIONS_TOPIC else self.timers
            async for message in client.messages_of(topic, queue_id, end):
                self.wrong += deliveries.delivered(identity_of(message.body), message.store_timestamp_ms)
                self._ends[topic, queue_id] = message.queue_offset + 1

    async def _transact(self, client: Client) -> None:
        with self._until_killed():
            while True:
                identity = Identity(TRANSACTIONS_PRODUCER, next(self._serials))
                self.transactions.withhold(identity)
                half = await client.send_half(identity, identity.serial % QUEUE_COUNT)
                if not half.is_safe:  # As Java's producer does; a promoted slave may never have had it.
                    await self._roll_back_unsafe(client, half)
                    continue
                self._open[half] = None
                if random.random() > OPEN_SHARE:
                    await self._end(client, half, is_commit=random.choice((True, False)))

    async def _roll_back_unsafe(self, client: Client, half: Half) -> None:
        await client.end_transaction(half, is_commit=False)
        self.rolled_back_count += 1

    async def _end(self, client: Client, half: Half, *, is_commit: bool) -> None:
        """Commit or roll back; requests left unanswered by a kill are repeated after it."""
        self._open[half] = is_commit
        if is_commit:
            self.transactions.allow(half.identity)
        await client.end_transaction(half, is_commit=is_commit)
        del self._open[half]
        if self._has_slave:
            self._ended(half, is_commit=is_commit)
        else:
            self._unsafe[half] = is_commit

    def _ended(self, half: Half, *, is_commit: bool) -> None:
        if is_commit:
            self.transactions.promise(half.identity)
        else:
            self.rolled_back_count += 1

    async def _send_timers(self, client: Client) -> None:
        with self._until_killed():
            while True:
                identity = Identity(TIMERS_PRODUCER, next(self._serials))
                deliver_ms = int(self._clock.wall_ms()) + random.randint(*TIMER_MS)
                self.timers.allow(identity, deliver_ms)
                if await client.send_timer(identity, identity.serial % QUEUE_COUNT, deliver_ms):
                    self.timers.promise(identity)

    @contextlib.contextmanager
    def _until_killed(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionLost, ConnectFailed):
            pass
        except LibraError as error:
            self.wrong.append(f"a transaction or timer message was refused: {error}")


async def check(address: str, ledger: Ledger, first: dict[int, int]) -> list[str]:
    """Return the violations found at a restarted broker.

    first: the offset where each queue is read from; updated to the queue's end.
    """
    async with Client(address, is_serving=True) as client:
        wrong = await _check_messages(client, ledger, first, is_copy=False)
        for queue_id in range(QUEUE_COUNT):
            for group in GROUPS:
                wrong += ledger.check_commit(group, queue_id, await client.committed(group, queue_id))
    return wrong


async def check_copy(address: str, ledger: Ledger, first: dict[int, int]) -> list[str]:
    """Return the violations among a slave's messages; it copies commits later."""
    async with Client(address, is_serving=True) as client:
        return await _check_messages(client, ledger, first, is_copy=True)


async def _check_messages(
    client: Client, ledger: Ledger, first: dict[int, int], *, is_copy: bool
) -> list[str]:
    wrong: list[str] = []
    for queue_id in range(QUEUE_COUNT):
        begin = first.get(queue_id, 0)
        found: list[Identity | None] = []
        try:
            async for identity in client.messages(queue_id, begin):
                found.append(identity)
        except LibraError as error:
            wrong.append(str(error))
        wrong += ledger.check_messages(queue_id, found, begin, is_copy=is_copy)
        first[queue_id] = begin + len(found)
    return wrong
