"""An operator's reset under running consumers: programs, with a real broker in this process."""

import asyncio

import pytest

from libramq import Consumer, Message, Producer, PushConsumer, SimpleConsumer
from libramq.client import Admin
from libramq.testing import Broker

TOPIC = "T"
COUNT = 6
#: The deadline to follow the reset; a consumer that ignores it would wait for ever.
PATIENCE_S = 60
THE_END = -1


@pytest.fixture
async def one():
    async with Broker() as broker, Admin(namesrv=broker.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=2)
        yield broker


async def send(one, *texts):
    async with Producer(group="P", namesrv=one.namesrv) as producer:
        for text in texts:
            await producer.send(Message(TOPIC, text.encode()))


async def reset(one, timestamp_ms):
    async with Admin(namesrv=one.namesrv) as admin:
        await admin.reset_offsets("G", TOPIC, timestamp_ms=timestamp_ms, force=True)


class Program:
    """Counts the messages of a consumer."""

    def __init__(self, one):
        self._seen = asyncio.Queue()
        self.consumer = self.make(one)

    async def run(self):
        """Run until it is cancelled."""
        await asyncio.Event().wait()

    def note(self, messages):
        for message in messages:
            self._seen.put_nowait(message.body.decode())

    async def seen(self, count):
        async with asyncio.timeout(PATIENCE_S):
            return sorted([await self._seen.get() for _ in range(count)])


class Pushed(Program):
    pop = False

    def make(self, one):
        consumer = PushConsumer(group="G", namesrv=one.namesrv, pop=self.pop, consume_from="earliest")

        async def handle(messages):
            self.note(messages)

        consumer.subscribe(TOPIC, "*", handle)
        return consumer


class Popped(Pushed):
    pop = True


class Fetched(Program):
    def make(self, one):
        consumer = Consumer(group="G", namesrv=one.namesrv, consume_from="earliest")
        consumer.subscribe(TOPIC)
        return consumer

    async def run(self):
        async for message in self.consumer:
            self.note([message])


class Received(Program):
    """Acknowledges its messages; a receive is always waiting."""

    def make(self, one):
        consumer = SimpleConsumer(group="G", namesrv=one.namesrv)
        consumer.subscribe(TOPIC)
        return consumer

    async def run(self):
        while True:
            messages = await self.consumer.receive(4, invisible_ms=600_000, await_ms=15_000)
            await self.consumer.ack(messages)
            self.note(messages)


async def handled(program, count):
    """Run a program until it has seen this many messages; return them."""
    async with program.consumer:
        running = asyncio.create_task(program.run())
        found = await program.seen(count)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


@pytest.mark.parametrize("program", [Pushed, Popped, Fetched, Received])
async def test_a_running_consumer_follows_a_reset(one, program):
    """Consumers that pop were only notified, which they ignore, so they reread nothing."""
    first = [f"{number}" for number in range(COUNT)]
    await send(one, *first)
    program = program(one)
    async with program.consumer:
        running = asyncio.create_task(program.run())
        assert await program.seen(COUNT) == first
        await reset(one, 0)
        assert await program.seen(COUNT) == first
        await send(one, "last")
        assert await program.seen(1) == ["last"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("program", [Pushed, Popped, Fetched, Received])
async def test_a_group_whose_members_are_away_skips_what_an_operator_skips(one, program):
    await send(one, "first")
    assert await handled(program(one), 1) == ["first"]
    await send(one, "old")
    await reset(one, THE_END)
    await send(one, "new")
    assert await handled(program(one), 1) == ["new"]
