"""An operator's requests to a running consumer, through a real broker."""

import logging
import threading

import pytest

from libramq.client import Admin, Producer, PushConsumer
from libramq.errors import BrokerError
from libramq.message import Message
from libramq.testing import Broker


@pytest.fixture
async def broker():
    async with Broker() as broker:
        yield broker


async def test_a_consumers_running_info(broker, watch):
    seen: list[str] = []

    def handle(messages):
        seen.extend(message.body.decode() for message in messages)
        watch.touch()

    async with Admin(namesrv=broker.namesrv) as admin:
        await admin.create_topic("T", queues=2)
        async with Producer(group="P", namesrv=broker.namesrv) as producer:
            for number in range(4):
                await producer.send(Message("T", str(number).encode()))
        consumer = PushConsumer(group="G", namesrv=broker.namesrv, consume_from="earliest")
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await watch.until(lambda: len(seen) == 4)
            info = await admin.running_info("G", consumer.client_id, threads=True)
            assert {queue.queue_id for queue in info.mq_table if queue.topic == "T"} == {0, 1}
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert {each.topic for each in info.subscription_set} == {"T", "%RETRY%G"}
            assert "libramq-network" in (info.jstack or "")
            assert (await admin.running_info("G", consumer.client_id)).jstack is None
            with pytest.raises(BrokerError, match="not online"):
                await admin.running_info("G", "nobody")


async def test_a_message_is_processed_again(broker, watch, caplog):
    """Its result is the answer to the operator. Neither offsets nor redeliveries change."""
    caplog.set_level(
        logging.CRITICAL
    )  # pytest-xdist ends where half a character is in what a test has logged.
    calls: list[bytes] = []
    verdicts = {b"good": None, b"later": False}
    lock = threading.Lock()

    def handle(messages):
        (message,) = messages
        with lock:
            calls.append(message.body)
            is_first = calls.count(message.body) == 1
        watch.touch()
        if is_first:
            return None
        if message.body == b"bad":
            raise ValueError("no customer 'J\ud83d'")  # Half an emoji, which cannot be sent.
        return verdicts[message.body]

    async with (
        Admin(namesrv=broker.namesrv) as admin,
        Producer(group="P", namesrv=broker.namesrv) as producer,
    ):
        await admin.create_topic("T", queues=1)
        ids = {}
        for body in (b"good", b"later", b"bad"):
            ids[body] = (await producer.send(Message("T", body))).offset_message_id
        consumer = PushConsumer(group="G", namesrv=broker.namesrv, consume_from="earliest")
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await watch.until(lambda: len(calls) == 3)
            results = {
                body: await admin.consume_directly("G", consumer.client_id, message_id)
                for body, message_id in ids.items()
            }
        assert {body: result.consume_result for body, result in results.items()} == {
            b"good": "CR_SUCCESS",
            b"later": "CR_LATER",
            b"bad": "CR_THROW_EXCEPTION",
        }
        assert results[b"bad"].remark == "ValueError: no customer 'J?'"
        assert len(calls) == 6
        assert {offset.consumer_offset for offset in (await admin.consume_stats("G", "T")).values()} == {3}
