"""Poll for messages in batches, and commit each batch after processing it.

    libra up                    # in another terminal
    python examples/fetch.py

It prints:

    written ['beans', 'rice', 'salt']
"""

import asyncio
import sys

from libramq import Consumer, Message, MessageQueue, Producer

STOP_AFTER = int(sys.argv[1]) if len(sys.argv) > 1 else None  # A real service leaves this out.


async def main() -> None:
    written: list[str] = []  # Stands in for a database.

    def revoked(queues: tuple[MessageQueue, ...]) -> None:
        print("queues revoked", file=sys.stderr)

    consumer = Consumer(group="store-room", consume_from="earliest", auto_commit=False, on_revoked=revoked)
    consumer.subscribe("Groceries")

    async with Producer() as producer:  # Send something to fetch.
        for body in (b"rice", b"beans", b"salt"):
            await producer.send(Message("Groceries", body))

    async with consumer:
        while STOP_AFTER is None or len(written) < STOP_AFTER:
            batch = await consumer.getmany(timeout_ms=1_000, max_records=100)
            for messages in batch.values():
                written += [message.body.decode() for message in messages]
            if batch:
                await consumer.commit()  # If the program dies before this line, it receives the batch again.
    print("written", sorted(written))


asyncio.run(main())
