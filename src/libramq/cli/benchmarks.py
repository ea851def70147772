"""The benchmarks of `libra bench`: sending and consuming, and the measurement of rate and latency."""

import asyncio
import contextlib
import json
import os
import random
import struct
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.progress import TextColumn

from libramq.admin.admin import Admin
from libramq.cli.output import print_table, progress_bars
from libramq.client import ConsumeFrom, Producer, PushConsumer, SendResult
from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError, LibraError
from libramq.message import Message
from libramq.message.message import MessageExt
from libramq.transport.access import environment_access
from libramq.transport.address import split_name_servers

GROUP: Final = "LIBRA_BENCH"
#: The send time in front of a message's body, by a clock of the sending process, which also reads it.
_STAMP: Final = struct.Struct(">q")
#: How often the progress bar is updated.
REFRESH_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The plan of a benchmark: the messages to send, and how to send them."""

    namesrv: str
    topic: str
    count: int
    size: int
    concurrency: int
    batched: bool
    warm_up: int = 0


Report = dict[str, Any]


class _Meter:
    """Counts finished operations and shows them with the average rate."""

    def __init__(self, what: str, total: int) -> None:
        self.done = 0
        self._progress = progress_bars(
            TextColumn("{task.fields[rate]}"), transient=True, disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task(what, total=total, rate="")
        self._began = time.perf_counter()

    async def __aenter__(self) -> "_Meter":
        self._progress.start()
        self._began = time.perf_counter()
        self._refreshing = asyncio.create_task(self._refresh())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._refreshing.cancel()
        self._progress.stop()

    @property
    def seconds(self) -> float:
        return max(time.perf_counter() - self._began, 1e-9)

    async def _refresh(self) -> None:
        while True:
            rate = f"{self.done / self.seconds:,.0f}/s"
            self._progress.update(self._task, completed=self.done, rate=rate)
            await asyncio.sleep(REFRESH_SECONDS)


def _body(size: int) -> bytes:
    """Return an incompressible body, the same in each run."""
    return random.Random(size).randbytes(size)


async def produce(load: Load) -> Report:
    """Send messages; return rate and latencies."""
    body = _body(load.size)
    async with Producer(group=GROUP, namesrv=load.namesrv) as producer:
        await producer.publish_queues(load.topic)  # Connect and look up before the clock starts.
        if load.warm_up:
            async with _Meter(f"warming up at {load.topic}", load.warm_up) as meter:
                await _send_waiting(producer, replace(load, count=load.warm_up), body, meter)
        async with _Meter(f"sending to {load.topic}", load.count) as meter:
            if load.batched:
                latencies_ms: list[float] = []
                await _send_batched(producer, load, body, meter)
            else:
                latencies_ms = await _send_waiting(producer, load, body, meter)
            seconds = meter.seconds
    return _report(
        "produce",
        load.topic,
        load.count,
        seconds,
        size=load.size,
        megabytesPerSecond=round(load.count * load.size / seconds / 1e6, 1),
        mode="batched" if load.batched else "waiting",
        concurrency=None if load.batched else load.concurrency,
        latencyMs=_percentiles(latencies_ms),
    )


async def _send_waiting(producer: Producer, load: Load, body: bytes, meter: _Meter) -> list[float]:
    message = Message(load.topic, body)
    latencies_ms: list[float] = []
    left = load.count

    async def sender() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await producer.send(message)
            latencies_ms.append((time.perf_counter() - began) * 1000)
            meter.done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, load.count)):
            group.create_task(sender())
    return latencies_ms


async def _send_batched(producer: Producer, load: Load, body: bytes, meter: _Meter) -> None:
    failures: list[LibraError] = []

    def done(outcome: SendResult | LibraError) -> None:
        if isinstance(outcome, LibraError):
            failures.append(outcome)
        else:
            meter.done += 1

    message = Message(load.topic, body)
    for _ in range(load.count):
        await producer.wait_for_room()
        producer.send_nowait(message, done)
        if failures:
            break
    await producer.flush()
    if failures:
        raise failures[0]


async def consume(
    namesrv: str, topic: str, *, group: str | None, count: int | None, batch_size: int
) -> Report:
    """Consume from the beginning; return the rate. group: None for a temporary one."""
    if group is None:
        async with _own_group(namesrv) as own:
            return await consume(namesrv, topic, group=own, count=count, batch_size=batch_size)
    held = await asyncio.to_thread(_messages_held, namesrv, topic)
    total = count or held
    if not total:
        raise ConfigError(f"topic {topic} holds no messages; fill it first: libra bench produce -t {topic}")
    finished = asyncio.Event()

    async def handle(messages: list[MessageExt]) -> None:
        meter.done += len(messages)
        if meter.done >= total:
            finished.set()

    consumer = PushConsumer(
        group=group,
        namesrv=namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        batch_size=batch_size,
    )
    consumer.subscribe(topic, "*", handle)
    async with _Meter(f"consuming {topic}", total) as meter, consumer:
        await finished.wait()
        done, seconds = meter.done, meter.seconds
    return _report("consume", topic, done, seconds, group=consumer.group, batchSize=batch_size)


@contextlib.asynccontextmanager
async def _own_group(namesrv: str) -> AsyncIterator[str]:
    """Yield a group's name for one run, and delete the group afterwards: it would only accumulate lag."""
    group = f"{GROUP}_{time.time_ns() // 1_000_000}"
    try:
        yield group
    finally:
        with contextlib.suppress(LibraError):
            async with Admin(namesrv=namesrv) as admin:
                await admin.delete_group(group, offsets=True)


async def latency(
    namesrv: str, topic: str, *, rate: int, seconds: float, warm_up_seconds: float, size: int
) -> Report:
    """Send at an even pace; return how long messages took to reach a handler in this process."""
    warm_up = round(rate * warm_up_seconds)
    total = warm_up + max(1, round(rate * seconds))
    arrived = asyncio.Event()
    first = asyncio.Event()
    latencies_ms: list[float] = []
    run = os.urandom(8)

    async def handle(messages: list[MessageExt]) -> None:
        now_ns = time.perf_counter_ns()
        for message in messages:
            if message.body[_STAMP.size : _STAMP.size + len(run)] == run:  # Otherwise it is of another run.
                first.set()
                (sent_ns,) = _STAMP.unpack_from(message.body)
                if sent_ns:
                    latencies_ms.append((now_ns - sent_ns) / 1e6)
                    meter.done += 1
        if meter.done >= total:
            arrived.set()

    rest = _body(max(0, size - _STAMP.size - len(run)))
    async with (
        _own_group(namesrv) as group,
        Producer(group=GROUP, namesrv=namesrv) as producer,
        _Meter(f"sending to {topic}", total) as meter,
    ):
        consumer = PushConsumer(
            group=group, namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, batch_size=32
        )
        consumer.subscribe(topic, "*", handle)
        await producer.send(Message(topic, _STAMP.pack(0) + run + rest))  # This may create the topic.
        async with consumer, asyncio.TaskGroup() as sends:
            await first.wait()
            began = time.perf_counter()
            for number in range(total):
                due = began + number / rate
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                stamp = _STAMP.pack(time.perf_counter_ns())
                sends.create_task(producer.send(Message(topic, stamp + run + rest)))
            await arrived.wait()
        measured_seconds = max(time.perf_counter() - began - warm_up / rate, 1e-9)
    measured = latencies_ms[warm_up:]
    return _report(
        "latency",
        topic,
        len(measured),
        measured_seconds,
        size=size,
        rate=rate,
        latencyMs=_percentiles(measured),
    )


def _messages_held(namesrv: str, topic: str) -> int:
    servers = split_name_servers(namesrv)
    with contextlib.closing(QueueReader(servers, group=GROUP, access=environment_access())) as reader:
        queues = reader.queues(topic)
        return sum(reader.max_offsets(queues).values()) - sum(reader.min_offsets(queues).values())


def _percentiles(latencies_ms: list[float]) -> dict[str, float] | None:
    if not latencies_ms:
        return None
    ordered = sorted(latencies_ms)
    last = len(ordered) - 1
    return {
        name: round(ordered[round(last * part)], 3)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    }


def _report(what: str, topic: str, messages: int, seconds: float, **more: Any) -> Report:
    return {
        "benchmark": what,
        "topic": topic,
        "messages": messages,
        "seconds": round(seconds, 3),
        "messagesPerSecond": round(messages / seconds),
        **{name: value for name, value in more.items() if value is not None},
    }


def report(found: Report, *, as_json: bool) -> None:
    """Print the results as a table or as JSON."""
    if as_json:
        print(json.dumps(found))
        return
    latencies = found.get("latencyMs") or {}
    flat = {name: value for name, value in found.items() if name != "latencyMs"}
    flat |= {f"{name} ms": value for name, value in latencies.items()}
    headings = {"messagesPerSecond": "messages/s", "megabytesPerSecond": "MB/s", "batchSize": "batch size"}
    cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in flat.values()]
    print_table([headings.get(name, name) for name in flat], [cells])
