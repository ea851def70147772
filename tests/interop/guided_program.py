"""A program of the guide that secures a cluster: it sends, or reads, from its start to SIGTERM.

    python -m tests.interop.guided_program orders-1 DIRECTORY     sends to the topic "orders"
    python -m tests.interop.guided_program billing-1 DIRECTORY    reads it as the group "billing"

Credentials and TLS come from `orders.properties` or `billing.properties`, as the guide says. What was
acknowledged, handled, or failed is a line in a file in DIRECTORY, with the time (monotonic, ms).
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from libramq import LibraError, Message, Producer, PushConsumer
from libramq.client import ConsumeFrom

PAUSE_S = 0.02


class Notes:
    """A file of lines, each written at once."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, text: str) -> None:
        os.write(self._file, f"{time.monotonic_ns() // 1_000_000} {text}\n".encode())


async def send(name: str, directory: Path, stopping: asyncio.Event, **options: Any) -> None:
    """Send until the end; a failed send is noted, and not repeated here."""
    sent, failed = Notes(directory / "sent"), Notes(directory / "failed")
    number = 0
    async with Producer(group=name, latency_fault=True, **options) as producer:
        print("Ctrl-C stops it.", flush=True)
        while not stopping.is_set():
            body = f"{name}-{os.getpid()}-{number}"
            number += 1
            try:
                await producer.send(Message("orders", body.encode()))
                sent.add(body)
            except LibraError as error:
                failed.add(f"{body} {error}")
            await asyncio.sleep(PAUSE_S)


async def read(name: str, directory: Path, stopping: asyncio.Event, **options: Any) -> None:
    """Read until the end."""
    handled = Notes(directory / "handled")

    async def handle(messages: list[Any]) -> None:
        for message in messages:
            handled.add(message.body.decode())

    consumer = PushConsumer(group="billing", consume_from=ConsumeFrom.FIRST_OFFSET, **options)
    consumer.subscribe("orders", "*", handle)
    async with consumer:
        print("Ctrl-C stops it.", flush=True)
        await stopping.wait()


async def main(name: str, directory: Path) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    kind = name.partition("-")[0]
    os.environ["LIBRA_ACCESS"] = f"{kind}.properties"
    run = send if kind == "orders" else read
    await run(name, directory, stopping)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
