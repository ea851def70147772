"""Programs that are correct: the type checker must accept every line."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import libramq
from libramq import LibraError, Message, MessageExt, Producer, PushConsumer, Reject, Retry, sync
from libramq.client import ConsumeFrom, Credentials, Handler, HandlerResult


def nothing(messages: list[MessageExt]) -> None:
    for message in messages:
        print(message.body)


def every_result(messages: Sequence[MessageExt]) -> HandlerResult:
    if not messages:
        return True
    if messages[0].reconsume_times:
        return [Retry(messages=messages[:1], after=timedelta(minutes=1)), Reject(messages=messages[1:])]
    return Retry(after=2.5)


async def coroutine(messages: list[MessageExt]) -> Retry | None:
    await asyncio.sleep(0)
    return Retry(messages=messages) if messages else None


def on_error(error: LibraError) -> None:
    print(error)


async def asynchronous() -> None:
    consumer = PushConsumer(
        group="g", consume_from="earliest", session_ms=5_000, on_error=on_error, catch_up_rate=5
    )
    consumer.subscribe("T", "*", nothing)
    consumer.subscribe("U", "a || b", every_result)
    consumer.subscribe("V", "*", coroutine)
    consumer.subscribe("W", "*", lambda messages: coroutine(messages))  # noqa: PLW0108
    consumer.subscribe("X", "*", print)
    async with consumer, Producer(group="p", credentials=Credentials("a", "b")) as producer:
        result = await producer.send(Message("T", b"x", keys="k"))
        print(result.queue.queue_id)
        await consumer.wait_closed()


async def decoded() -> None:
    consumer = libramq.Consumer(group="g")
    async for message, value in consumer.decoded(int):
        print(message.keys, value + 1)
    for _, text in sync.Consumer(group="g").decoded(bytes.decode):
        print(text.upper())


def blocking(handlers: dict[str, Handler]) -> None:
    consumer = sync.PushConsumer(group="g", consume_from=ConsumeFrom.TIMESTAMP, threads=4, orderly=True)
    for topic, handler in handlers.items():
        consumer.subscribe(topic, "*", handler)
    try:
        with consumer, sync.Producer(linger_ms=0.5) as producer, sync.Admin(timeout_ms=100) as admin:
            admin.create_topic("T", queues=4)
            producer.send_nowait(Message("T", b"x"))
    except (libramq.TopicNotExist, libramq.RequestTimeout, libramq.BufferFull) as error:
        print(error)
