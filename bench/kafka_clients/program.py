"""One program of bench/clients: sends or receives messages with one client, and prints the time taken.

program.py (produce|consume) (ours|aiokafka|confluent) WAY ADDRESS TOPIC COUNT SIZE
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any

LINGER_MS = 5
TUNED_BYTES = 1024 * 1024
SENDERS = 64


class Watch:
    """Measures from `start` to `report`. before: messages received at the start, which do not count."""

    def start(self, before: int = 0) -> None:
        self._before = before
        self._cpu, self._began = time.process_time(), time.monotonic()

    def report(self, messages: int) -> None:
        seconds, cpu = time.monotonic() - self._began, time.process_time() - self._cpu
        print(json.dumps({"seconds": seconds, "cpu": cpu, "messages": messages - self._before}))


async def produce_ours(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from libramq import Message, Producer

    message, stored = Message(topic, body), 0

    def done(outcome: object) -> None:
        nonlocal stored
        stored += not isinstance(outcome, Exception)

    async def send_some(producer: Producer) -> None:
        nonlocal stored
        for _ in range(count // SENDERS):
            await producer.send(message)
            stored += 1

    async with Producer(group="bench", namesrv=address) as producer:
        await producer.send(message)
        watch.start()
        if way == "send":
            await asyncio.gather(*[send_some(producer) for _ in range(SENDERS)])
        else:
            for _ in range(count):
                if not producer.has_room:
                    await producer.wait_for_room()
                producer.send_nowait(message, done)
            await producer.flush()
        watch.report(stored)
    return stored


async def produce_aiokafka(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from aiokafka import AIOKafkaProducer

    tuned = {"max_batch_size": TUNED_BYTES} if way == "tuned" else {}
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=LINGER_MS, **tuned)
    await producer.start()
    try:
        await producer.send_and_wait(topic, body)
        watch.start()
        futures = [await producer.send(topic, body) for _ in range(count)]
        await producer.flush()
        stored = sum(future.exception() is None for future in futures)
        watch.report(stored)
    finally:
        await producer.stop()
    return stored


async def produce_confluent(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from confluent_kafka import Producer

    tuned = {"batch.size": TUNED_BYTES} if way == "tuned" else {}
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": LINGER_MS, **tuned})
    stored = 0

    def done(error: object, _: object) -> None:
        nonlocal stored
        stored += error is None

    producer.produce(topic, body)
    producer.flush()
    watch.start()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, body, on_delivery=done)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    watch.report(stored)
    return stored


async def iterate(consumer: AsyncIterable[Any], count: int, watch: Watch) -> int:
    """Take this many messages one by one; the watch starts with the first."""
    got = 0
    async for _ in consumer:
        if not got:
            watch.start(1)
        got += 1
        if got >= count:
            break
    return got


async def consume_ours(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from libramq.client import Consumer, PushConsumer, SimpleConsumer

    group, got = f"bench{uuid.uuid4().hex}", 0
    if way == "push":
        done = asyncio.Event()

        async def handle(messages: list[Any]) -> None:
            nonlocal got
            if not got:
                watch.start(len(messages))
            got += len(messages)
            if got >= count:
                done.set()

        push = PushConsumer(group=group, namesrv=address, batch_size=256, consume_from="earliest")
        push.subscribe(topic, "*", handle)
        async with push:
            await done.wait()
            watch.report(got)
    elif way == "getmany":
        consumer = Consumer(group=group, namesrv=address, consume_from="earliest")
        consumer.subscribe(topic)
        async with consumer:
            while got < count:
                taken = await consumer.getmany(timeout_ms=1_000)
                came = sum(map(len, taken.values()))
                if came and not got:
                    watch.start(came)
                got += came
            watch.report(got)
    elif way == "iterate":
        consumer = Consumer(group=group, namesrv=address, consume_from="earliest")
        consumer.subscribe(topic)
        async with consumer:
            got = await iterate(consumer, count, watch)
            watch.report(got)
    elif way in ("batches", "offset+body"):
        columns = None if way == "batches" else way.split("+")
        consumer = Consumer(group=group, namesrv=address, consume_from="earliest")
        consumer.subscribe(topic)
        async with consumer:
            async for batch in consumer.batches(columns):
                if not got:
                    watch.start(len(batch))
                got += len(batch)
                if got >= count:
                    break
            watch.report(got)
    else:
        many, _, tasks = way.removeprefix("simple").partition("x")
        async with SimpleConsumer(group=group, namesrv=address) as simple:
            simple.subscribe(topic)
            finished = asyncio.Event()

            async def receive_and_ack() -> None:
                nonlocal got
                while got < count:
                    messages = await simple.receive(int(many or 32), await_ms=1_000)
                    if messages and not got:
                        watch.start(len(messages))
                    await simple.ack(messages)
                    got += len(messages)
                finished.set()

            async with asyncio.TaskGroup() as group_of_tasks:
                for _ in range(int(tasks or 1)):
                    group_of_tasks.create_task(receive_and_ack())
                await finished.wait()
                watch.report(got)
    return got


async def consume_aiokafka(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=f"bench{uuid.uuid4().hex}", auto_offset_reset="earliest"
    )
    await consumer.start()
    got = 0
    try:
        if way == "iterate":
            got = await iterate(consumer, count, watch)
        while got < count:
            taken = await consumer.getmany(timeout_ms=1_000)
            came = sum(map(len, taken.values()))
            if came and not got:
                watch.start(came)
            got += came
        watch.report(got)
    finally:
        await consumer.stop()
    return got


async def consume_confluent(way: str, address: str, topic: str, count: int, body: bytes, watch: Watch) -> int:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": address, "group.id": f"bench{uuid.uuid4().hex}", "auto.offset.reset": "earliest",
    }  # fmt: skip
    consumer, got = Consumer(settings), 0
    consumer.subscribe([topic])
    while got < count:
        messages = consumer.consume(500, timeout=1)
        came = sum(message.error() is None for message in messages)
        if came and not got:
            watch.start(came)
        got += came
    watch.report(got)
    consumer.close()
    return got


Run = Callable[[str, str, str, int, bytes, Watch], Coroutine[Any, Any, int]]
PROGRAMS: dict[tuple[str, str], Run] = {
    ("produce", "ours"): produce_ours,
    ("produce", "aiokafka"): produce_aiokafka,
    ("produce", "confluent"): produce_confluent,
    ("consume", "ours"): consume_ours,
    ("consume", "aiokafka"): consume_aiokafka,
    ("consume", "confluent"): consume_confluent,
}


def main() -> None:
    import uvloop

    what, who, way, address, topic, count, size = sys.argv[1:]
    body = b"x" * int(size)
    uvloop.run(PROGRAMS[what, who](way, address, topic, int(count), body, Watch()))


main()
