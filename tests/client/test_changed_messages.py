"""Programs that overwrite their received messages: offsets and acknowledgements stay right."""

import random

import pytest

from libramq import Message, Producer, Retry, SimpleConsumer
from libramq.client import ConsumeFrom, Consumer, PushConsumer
from libramq.message.queue import MessageQueue
from libramq.testing import Broker

QUEUE_0 = MessageQueue("T", "a", 0)


def ruin(messages):
    """Overwrite every attribute that is not read-only."""
    for message in messages:
        message.queue_offset = 7
        message.topic, message.broker_name, message.reconsume_times = "U", "z", 99
        message.body = None
        message.properties.clear()


def push(namesrv, handle, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20, "suspend_ms": 10} | options
    consumer = PushConsumer(group="g", namesrv=namesrv.address, **options)
    consumer.subscribe("T", "*", handle)
    return consumer


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_handler_retries_is_sent_back_and_the_rest_committed(namesrv, broker, watch, is_async):
    for number in range(3):
        broker.put("T", 0, b"%d" % number, properties=f"UNIQ_KEY\x01id {number}\x02")

    def handle(messages):
        failed = [each for each in messages if each.body == b"1"]
        ruin(messages)
        messages.clear()
        return Retry(messages=failed) if failed else None

    async def handle_on_loop(messages):
        return handle(messages)

    async with push(namesrv, handle_on_loop if is_async else handle, batch_size=2):
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 3)
    (sent,) = broker.sent_back
    assert (sent["offset"], sent["originTopic"], sent["originMsgId"]) == ("1", "T", "id 1")


async def test_attempts_in_order_are_counted_by_the_consumer(namesrv, broker, watch):
    for number in range(2):
        broker.put("T", 0, b"%d" % number)
    seen = []

    def handle(messages):
        seen.append((messages[0].queue_offset, messages[0].body, messages[0].reconsume_times))
        ruin(messages)
        return len(seen) > 2

    async with push(namesrv, handle, orderly=True):
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 2)
    assert seen == [(0, b"0", 0), (0, b"0", 1), (0, b"0", 2), (1, b"1", 0)]


@pytest.mark.parametrize("many", [False, True])
async def test_a_program_that_fetches_commits_what_it_has_done(namesrv, broker, watch, many):
    for number in range(3):
        broker.put("T", 0, b"%d" % number)
    reader = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", auto_commit=False,
        randomness=random.Random(1),
    )  # fmt: skip
    reader.subscribe("T")
    async with reader:
        taken = 0
        while taken < 2:
            if many:
                messages = [
                    each for found in (await reader.getmany(max_records=1)).values() for each in found
                ]
            else:
                messages = [await reader.getone()]
            ruin(messages)
            taken += len(messages)
        assert await reader.position(QUEUE_0) == 2
        await reader.commit()
    assert broker.offsets["g", "T", 0] == 2


@pytest.mark.parametrize("together", [False, True])
async def test_what_was_received_is_acknowledged(together):
    async with Broker() as one, SimpleConsumer(group="g", namesrv=one.namesrv) as consumer:
        async with Producer(group="p", namesrv=one.namesrv) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(5)])
        consumer.subscribe("T")
        messages = []
        while len(messages) < 5:
            messages += await consumer.receive(invisible_ms=1_000)
        for message in messages:
            message.queue_offset = 7
        for acknowledged in [messages] if together else messages:
            await consumer.ack(acknowledged)
        assert await consumer.receive(await_ms=2_000) == []
