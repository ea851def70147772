"""Sending from the command line: one message, or every line of a file or standard input, with a warning if
some are stored less durably than configured.
"""

import asyncio
import base64
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from libramq.client import Producer, SendResult, SendStatus, by_hash
from libramq.errors import ConfigError, InvalidMessage, LibraError, LocalProtocolError, did_you_mean
from libramq.message import Message, MessageQueue
from libramq.message.message import BODY_BYTES_MAX
from libramq.message.properties import KEYS, RESERVED, TAGS

READ_BYTES: Final = 256 * 1024
#: Chunks read ahead of sending; limits the backlog of a fast pipe.
CHUNKS_AHEAD: Final = 4
#: Longer lines are not read to their end: sending the first part reports that it is too long.
LINE_BYTES_MAX: Final = BODY_BYTES_MAX + 1
GROUP: Final = "LIBRA_SEND"
#: The fields of a JSON object that are sent; those of `libra tail --json` are accepted as well.
_SENT_NAMES: Final = ("body", "bodyBase64", "tags", "keys", "properties", "orderKey", "delayMs")
_ROW_NAMES: Final = frozenset({
    *_SENT_NAMES, "topic", "broker", "queueId", "queueOffset", "storeTimestamp", "messageId",
})  # fmt: skip
_LESS_SAFE: Final = {
    SendStatus.FLUSH_DISK_TIMEOUT: "stored, but the disk has not confirmed it",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "stored, but too few slaves have confirmed it",
    SendStatus.SLAVE_NOT_AVAILABLE: "stored at the master, but too few slaves are in sync",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The options of all messages. queue: its number, or `BROKER:NUMBER`. order_key: selects the queue."""

    topic: str
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    deliver_at_ms: int | None = None
    queue: str | None = None
    order_key: str | None = None

    def message(self, body: bytes) -> Message:
        """Return a message with this body."""
        at_ms = self.deliver_at_ms
        return Message(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys or (),
            properties=dict(self.properties),
            delay_ms=self.delay_ms,
            deliver_at=None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC),
        )

    def of_row(self, line: bytes) -> tuple[Message, str | None]:
        """Return the message and order key of a JSON object, such as a line of `libra tail --json`."""
        row = _row(line)
        unknown = row.keys() - _ROW_NAMES
        if unknown:
            name = min(unknown)
            hint = did_you_mean(name, _SENT_NAMES)
            raise ConfigError(f"no field {name!r}{hint}: there are {', '.join(_SENT_NAMES)}")
        own = _texts(row.get("properties") or {})
        tags, key = row.get("tags", own.get(TAGS, self.tags)), row.get("orderKey", self.order_key)
        keys, delay_ms = row.get("keys", own.get(KEYS, self.keys or ())), row.get("delayMs", self.delay_ms)
        kept = {name: value for name, value in own.items() if name not in RESERVED}
        for name, value, kinds in (
            ("tags", tags, str | None),
            ("orderKey", key, str | None),
            ("keys", keys, str | list | tuple),
            ("delayMs", delay_ms, int),
        ):
            if not isinstance(value, kinds):
                raise ConfigError(f"{name} cannot be {value!r}")
        message = replace(
            self.message(_body(row)),
            tags=tags,
            keys=keys if isinstance(keys, str) else tuple(map(str, keys)),
            properties={**self.properties, **kept},
            delay_ms=delay_ms,
        )
        return message, key

    async def chosen(self, producer: Producer) -> MessageQueue | None:
        """Return the named queue; raises ConfigError if the topic has none of that name, or several."""
        if self.queue is None:
            return None
        broker, _, number = self.queue.rpartition(":")
        found = [
            queue
            for queue in await producer.publish_queues(self.topic)
            if str(queue.queue_id) == number and broker in ("", queue.broker_name)
        ]
        if len(found) != 1:
            there = ", ".join(
                f"{queue.broker_name}:{queue.queue_id}" for queue in await producer.publish_queues(self.topic)
            )
            raise ConfigError(f"--queue {self.queue}: name one of these queues of {self.topic}: {there}")
        return found[0]


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{line[:60].decode(errors='replace')!r} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{line[:60].decode(errors='replace')!r} is not a JSON object with a body")
    return row


def _body(row: Mapping[str, Any]) -> bytes:
    try:
        if "bodyBase64" in row:
            return base64.b64decode(row["bodyBase64"], validate=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"bodyBase64 cannot be decoded: {error}") from None
    body = row.get("body")
    if body is None:
        raise ConfigError("an object has neither body nor bodyBase64")
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()


def _texts(properties: object) -> dict[str, str]:
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise ConfigError("properties must be an object with strings as values")
    return properties


def named_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties of NAME=VALUE pairs; raises ConfigError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ConfigError(f"--property {pair}: write NAME=VALUE")
        found[name] = value
    return found


async def send_one(namesrv: str, sending: Sending, body: str, *, as_json: bool) -> None:
    """Send one message and print its position."""
    async with Producer(group=GROUP, namesrv=namesrv) as producer:
        message, queue = sending.message(os.fsencode(body)), await sending.chosen(producer)
        key = sending.order_key
        result = await producer.send(
            message, queue=queue, selector=by_hash(key) if key is not None and queue is None else None
        )
    if as_json:
        print(json.dumps(_as_json(result)))
    else:
        # The answer's offset is not in the topic: it is where the message waits until it is due.
        waits = sending.delay_ms > 0 or sending.deliver_at_ms is not None
        where = ", delivered when it is due" if waits else f" at offset {result.queue_offset}"
        print(f"sent {result.message_id} to {result.queue}{where}")
        _warn_of([result.status])


async def send_lines(
    namesrv: str, sending: Sending, file: int, *, is_rows: bool = False, as_json: bool
) -> None:
    """Send every non-empty line; the first failure is raised after the other sends have finished.

    is_rows: each line is a JSON object with body, tags, keys and properties.
    """
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

    number = 0
    async with Producer(group=GROUP, namesrv=namesrv) as producer:
        queue = await sending.chosen(producer)
        try:
            async for line in _lines(file):
                number += 1
                if line:
                    await producer.wait_for_room()
                    message, key = (
                        sending.of_row(line) if is_rows else (sending.message(line), sending.order_key)
                    )
                    by_key = by_hash(key) if key is not None and queue is None else None
                    producer.send_nowait(message, done, queue=queue, selector=by_key)
                if failures:
                    break
        except (
            ConfigError,
            InvalidMessage,
            UnicodeEncodeError,
        ) as error:  # Earlier messages are in flight.
            failures.append(ConfigError(f"line {number}: {error}"))
        except OSError as error:
            failures.append(ConfigError(f"line {number + 1} cannot be read: {error.strerror}"))
        await producer.flush()
    if failures:
        raise LocalProtocolError(f"{sent} sent; then: {failures[0]}") from failures[0]
    if not as_json:
        print(f"sent {sent} message{'' if sent == 1 else 's'} to {sending.topic}")
        _warn_of(statuses.elements())


def _warn_of(statuses: Iterable[SendStatus]) -> None:
    """Warn about messages that are stored less durably than configured."""
    for status, count in Counter(statuses).items():
        if status is not SendStatus.SEND_OK:
            print(f"libra: {count} {_LESS_SAFE[status]} ({status.value})", file=sys.stderr)


async def _lines(file: int) -> AsyncIterator[bytes]:
    """Yield the lines of a file as they arrive, read by a daemon thread, since a terminal may never end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_AHEAD)

    def read() -> None:
        data: bytes | OSError = b"."
        while data and not isinstance(data, OSError):
            try:
                data = os.read(file, READ_BYTES)
            except OSError as error:  # A directory, a terminal that has hung up, a broken disk.
                data = error
            put = chunks.put(data)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, CancelledError):  # The loop has ended.
                put.close()
                return

    threading.Thread(target=read, name="libra-stdin", daemon=True).start()
    partial = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
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
