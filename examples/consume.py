"""Consume orders as a member of a group. Start several copies and watch `libra groups`.

    libra up                    # in another terminal
    python examples/consume.py

It prints:

    handled 3
"""

import asyncio
import sys

from libramq import LibraError, Message, MessageQueue, Producer, PushConsumer, Retry, log_to_stderr

STOP_AFTER = int(sys.argv[1]) if len(sys.argv) > 1 else None  # A real service leaves this out.


async def main() -> None:
    handled = 0
    stop = asyncio.Event()

    async def handle(messages):
        nonlocal handled
        late = [
            message for message in messages if message.body == b"too early" and not message.reconsume_times
        ]
        if late:
            return Retry(messages=late, after=1)  # Redeliver these after one second.
        handled += len(messages)
        if STOP_AFTER is not None and handled >= STOP_AFTER:
            stop.set()
        return None  # All are consumed. An exception would redeliver the whole batch later.

    def assigned(queues: tuple[MessageQueue, ...]) -> None:
        print("more queues assigned", file=sys.stderr)

    def failed(error: LibraError) -> None:
        print("cannot receive:", error, file=sys.stderr)

    consumer = PushConsumer(group="kitchen", consume_from="earliest", on_assigned=assigned, on_error=failed)
    consumer.subscribe("Kitchen", "*", handle)

    async with Producer() as producer:  # Send something to consume.
        for body in (b"soup", b"too early", b"salad"):
            await producer.send(Message("Kitchen", body))

    async with consumer:
        if STOP_AFTER is None:
            await consumer.wait_closed()
        await stop.wait()
    print("handled", handled)


log_to_stderr("warning")
asyncio.run(main())
