"""Sending from the command line: one message, or every line of standard input."""

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import CancelledError
from typing import Any, Final

from libramq.cli.access import client_options
from libramq.client import Producer, SendResult, SendStatus
from libramq.errors import LibraError, LocalProtocolError
from libramq.message import Message
from libramq.message.message import BODY_BYTES_MAX

READ_BYTES: Final = 256 * 1024
#: Chunks read ahead of the sending; limits what a fast pipe can accumulate.
CHUNKS_AHEAD: Final = 4
#: No message is longer: sending what was read of such a line says so.
LINE_BYTES_MAX: Final = BODY_BYTES_MAX + 1
GROUP: Final = "LIBRA_SEND"
_LESS_SAFE: Final = {
    SendStatus.FLUSH_DISK_TIMEOUT: "stored, but the disk has not confirmed it",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "stored, but too few slaves have confirmed it",
    SendStatus.SLAVE_NOT_AVAILABLE: "stored at the master, but too few slaves are in sync",
}


async def send_one(
    namesrv: str, topic: str, body: str, *, tags: str | None, keys: str | None, as_json: bool
) -> None:
    """Send one message and print its position."""
    async with Producer(group=GROUP, namesrv=namesrv, **client_options()) as producer:
        result = await producer.send(Message(topic, os.fsencode(body), tags=tags, keys=keys or ()))
    if as_json:
        print(json.dumps(_as_json(result)))
    else:
        print(f"sent {result.message_id} to {result.queue} at offset {result.queue_offset}")
        _warn_of([result.status])


async def send_lines(
    namesrv: str, topic: str, file: int, *, tags: str | None, keys: str | None, as_json: bool
) -> None:
    """Send every non-empty line; the first failure is raised after all others have finished."""
    sent = 0
    statuses: Counter[SendStatus] = Counter()
    failures: list[LibraError] = []

    def done(outcome: SendResult | LibraError) -> None:
        nonlocal sent
        if isinstance(outcome, LibraError):
            failures.append(outcome)
            return
        sent += 1
        statuses[outcome.status] += 1
        if as_json:
            print(json.dumps(_as_json(outcome)), flush=True)

    async with Producer(group=GROUP, namesrv=namesrv, **client_options()) as producer:
        async for line in _lines(file):
            if line:
                await producer.wait_for_room()
                producer.send_nowait(Message(topic, line, tags=tags, keys=keys or ()), done)
            if failures:
                break
        await producer.flush()
    if failures:
        raise LocalProtocolError(f"{sent} sent; then: {failures[0]}") from failures[0]
    if not as_json:
        print(f"sent {sent} message{'' if sent == 1 else 's'} to {topic}")
        _warn_of(statuses.elements())


def _warn_of(statuses: Iterable[SendStatus]) -> None:
    """Warn of messages that are stored less safely than their broker is configured to."""
    for status, count in Counter(statuses).items():
        if status is not SendStatus.SEND_OK:
            print(f"libra: {count} {_LESS_SAFE[status]} ({status.value})", file=sys.stderr)


async def _lines(file: int) -> AsyncIterator[bytes]:
    """Yield the lines of a file as they come, read by a daemon thread, since a terminal may never end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(CHUNKS_AHEAD)

    def read() -> None:
        data = b"."
        while data:
            data = os.read(file, READ_BYTES)
            put = chunks.put(data)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, CancelledError):  # The loop has ended.
                put.close()
                return

    threading.Thread(target=read, name="libra-stdin", daemon=True).start()
    partial = b""
    while chunk := await chunks.get():
        *whole, partial = (partial + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
        if len(partial) > LINE_BYTES_MAX:
            break
    yield partial.rstrip(b"\r")


def _as_json(result: SendResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "messageId": result.message_id,
        "offsetMessageId": result.offset_message_id,
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
    }
