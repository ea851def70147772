"""The check of torture: compares a restarted broker with the ledger."""

from libramq.errors import LibraError
from libramq.testing.torture.client import QUEUE_COUNT, Client
from libramq.testing.torture.ledger import Identity, Ledger
from libramq.testing.torture.load import GROUPS


async def check(address: str, ledger: Ledger, first: dict[int, int]) -> list[str]:
    """Return the violations found at a restarted broker.

    first: where each queue is read from; it is set to where it ends.
    """
    async with Client(address, is_serving=True) as client:
        wrong = await _check_messages(client, ledger, first, is_copy=False)
        for queue_id in range(QUEUE_COUNT):
            for group in GROUPS:
                wrong += ledger.check_commit(group, queue_id, await client.committed(group, queue_id))
    return wrong


async def check_copy(address: str, ledger: Ledger, first: dict[int, int]) -> list[str]:
    """Return the violations among the messages of a slave; it copies commits later."""
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
