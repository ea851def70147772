"""Read messages as Arrow record batches and sum a column, without creating an object per message.

    pip install libramq[arrow]
    libra up                    # in another terminal
    python examples/record_batches.py

It prints:

    3 sales, 600 cents
"""

import asyncio
import sys

import pyarrow as pa
import pyarrow.compute as pc

from libramq import Consumer, Message, Producer

STOP_AFTER = int(sys.argv[1]) if len(sys.argv) > 1 else None  # A real service leaves this out.


async def main() -> None:
    sales = cents = 0
    async with Producer() as producer:  # Send something to read.
        for price in (b"100", b"200", b"300"):
            await producer.send(Message("TillSales", price))

    consumer = Consumer(group="till", consume_from="earliest")
    consumer.subscribe("TillSales")
    async with consumer:
        async for batch in consumer.batches(["body"]):
            prices = batch["body"].cast(pa.string()).cast(pa.int64())
            sales += len(prices)
            cents += pc.sum(prices).as_py()
            if STOP_AFTER is not None and sales >= STOP_AFTER:
                break
    print(f"{sales} sales, {cents} cents")


asyncio.run(main())
