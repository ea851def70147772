"""The sender of the demonstration: the flights of 2013 in order of time, as fast as the broker accepts them.

Run as a process; reports to standard output how many have been acknowledged.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Final

from libramq.client import Producer
from libramq.demo import flights, topics
from libramq.demo.children import report
from libramq.message import Message

STRETCH: Final = 5_000
"""After this many flights (five days of them) all must be acknowledged before more are sent: the queues are
never further apart than that, which is less than the pipeline's watermark allows."""


async def send(namesrv: str, rows: Sequence[Sequence[str]]) -> int:
    """Send all flights; return how many were acknowledged."""
    sent = 0
    async with Producer(group="flights", namesrv=namesrv) as producer:
        queues = {queue.queue_id: queue for queue in await producer.publish_queues(topics.FLIGHTS)}
        for flight in flights.messages(rows, len(queues)):
            message = Message(topics.FLIGHTS, flight.body, tags=flight.tag, keys=flight.key)
            producer.send_nowait(message, queue=queues[flight.queue_id])
            sent += 1
            if sent % STRETCH == 0:
                await producer.flush()  # Raises the error of any of them.
                report("progress", sent=sent)
        await producer.flush()
    return sent


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--flights", type=int, default=flights.FLIGHT_COUNT)
    options = parser.parse_args(arguments)
    rows = flights.read_rows(flights.archive())
    flights.check_unique(rows)
    del rows[options.flights :]
    report("started", flights=len(rows))
    sent = asyncio.run(send(options.namesrv, rows))
    report("progress", sent=sent)
    report("result", sent=sent)


if __name__ == "__main__":
    main()
