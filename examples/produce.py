"""Send orders: one that waits for its result, many in batches, and one with a delay.

    libra up                    # in another terminal
    python examples/produce.py

It prints:

    sent to Orders SEND_OK
    10000 sent, 0 failed
"""

import asyncio

from libramq import LibraError, Message, Producer, log_to_stderr
from libramq.client import by_hash


async def main() -> None:
    failures = []

    def answered(result: object) -> None:
        if isinstance(result, LibraError):
            failures.append(result)

    # By default a send times out after three seconds; with 10,000 at once the last may take longer.
    async with Producer(group="tills", send_timeout_ms=30_000) as producer:
        # One message; the result says where it was stored.
        result = await producer.send(Message("Orders", b"a tea", tags="paid", keys="order-1"))
        print("sent to", result.queue.topic, result.status.name)

        # Many messages; those of one customer go to the same queue and stay in order.
        for number in range(10_000):
            if not producer.has_room:
                await producer.wait_for_room()
            body = f"item {number} of customer {number % 100}".encode()
            producer.send_nowait(Message("Orders", body), answered, selector=by_hash(number % 100))
        await producer.flush()
        print("10000 sent,", len(failures), "failed")

        # Delay level 3: consumers receive this one after 10 seconds.
        await producer.send(Message("Orders", b"a reminder", delay_level=3))


log_to_stderr("warning")
asyncio.run(main())
