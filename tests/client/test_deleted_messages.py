"""Members whose next messages the broker has deleted continue with the first one that is left."""

import asyncio

import libramq
from libramq import Message
from libramq.broker.broker import Broker as BrokerEngine
from libramq.client import ConsumeFrom
from libramq.offsets.fence import MODE_EPOCHS
from libramq.testing import Broker

TOPIC, COUNT, FIRST_LEFT = "T", 30, 20


def inside(broker: Broker) -> BrokerEngine:
    """Return the broker itself; it runs on this test's loop."""
    (server,) = broker._servers
    return server.broker


async def fill(broker: Broker) -> None:
    async with libramq.Producer(group="P", namesrv=broker.namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))


async def consume(broker: Broker, *, delete_at: int | None = None) -> list[int]:
    """Handle messages until the last one has arrived. At one of them, those before FIRST_LEFT are deleted."""
    got: list[int] = []
    done = asyncio.Event()

    async def handle(messages: list[libramq.MessageExt]) -> None:
        for message in messages:
            got.append(message.queue_offset)
            if message.queue_offset == delete_at:
                inside(broker).store.raise_min_offset(TOPIC, 0, FIRST_LEFT)
            if message.queue_offset == COUNT - 1:
                done.set()

    consumer = libramq.PushConsumer(
        group="G", namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, pull_batch_size=1
    )
    consumer.subscribe(TOPIC, "*", handle)
    async with consumer:
        await asyncio.wait_for(done.wait(), 30)
        assert inside(broker).fences.mode("G") == MODE_EPOCHS
    assert inside(broker).offsets.query("G", TOPIC, 0) == COUNT
    return sorted(got)


async def test_a_member_whose_committed_messages_are_deleted_continues():
    async with Broker(default_topic_queue_nums=1) as broker:
        await fill(broker)
        inside(broker).offsets.commit("G", TOPIC, 0, 5)
        assert inside(broker).store.raise_min_offset(TOPIC, 0, FIRST_LEFT) == FIRST_LEFT
        assert await consume(broker) == list(range(FIRST_LEFT, COUNT))


async def test_a_member_whose_next_messages_are_deleted_continues():
    """It may or may not handle deleted messages it had pulled, but misses none of the remaining ones."""
    async with Broker(default_topic_queue_nums=1) as broker:
        await fill(broker)
        got = await consume(broker, delete_at=3)
        assert got[:4] == [0, 1, 2, 3]
        assert [number for number in got if number >= FIRST_LEFT] == list(range(FIRST_LEFT, COUNT))
