"""A member of the demonstration's group: computes how late flights are, and records each consumed one.

Run as a process; leaves the group cleanly on SIGTERM, or when its parent has ended.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from libramq.client import ConsumeFrom, PushConsumer
from libramq.demo import topics
from libramq.demo.children import report
from libramq.demo.journal import SUFFIX, Journal, entry
from libramq.message import MessageExt

INPUT_BYTES: Final = 4096
BATCH: Final = 256  # Messages per call; each call is one write to the journal.


async def consume(namesrv: str, name: str, journal: Journal) -> None:
    """Consume as a member until asked to stop."""
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    loop.add_reader(sys.stdin, _leave_at_end_of_input, leave)

    async def handle(messages: list[MessageExt]) -> None:
        journal.append([entry(each.queue_id, each.queue_offset, each.body) for each in messages])

    consumer = PushConsumer(
        group=topics.GROUP,
        namesrv=namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        batch_size=BATCH,
    )
    consumer.subscribe(topics.FLIGHTS, "*", handle)
    async with consumer:
        report("started", member=name, client_id=consumer.client_id)
        await leave.wait()
    report("left", member=name)


def _leave_at_end_of_input(leave: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), INPUT_BYTES):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        leave.set()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    journal = Journal(options.directory / f"{options.name}{SUFFIX}")
    try:
        asyncio.run(consume(options.namesrv, options.name, journal))
    finally:
        journal.close()


if __name__ == "__main__":
    main()
