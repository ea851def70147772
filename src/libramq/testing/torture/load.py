"""The load of torture: producers and committing consumers, until their broker dies.

Each has a connection of its own and repeats nothing: what was not acknowledged may be stored or not.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from libramq.errors import ConnectFailed, ConnectionLost, LibraError
from libramq.testing.torture.bodies import Identity
from libramq.testing.torture.client import QUEUE_COUNT, Client
from libramq.testing.torture.ledger import Ledger

GROUPS: Final = ("one", "two")
PRODUCER_COUNT: Final = 4
#: Ours: sends of one producer that are under way at once, so that the disk confirms several at a time.
SENDS_AT_ONCE: Final = 8
#: Ours: how long a consumer that has everything waits for more.
HOLD_MS: Final = 500


class Load:
    """Producers and consumers over many rounds.

    wrong: what a broker did wrong before it was killed. failure: why it was of no use any more, such as a
    full disk.
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
