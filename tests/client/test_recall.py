"""Tests of our producer's timed messages, and of recalling them before their time."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from libramq import ConfigError, InvalidMessage, Message, NoPermission, Producer, PushConsumer, sync
from libramq.message.recall_handle import HANDLE_BYTES_MAX, RecallHandle
from libramq.message.validation import validate
from libramq.testing import Broker

HOUR = timedelta(hours=1)


async def test_a_delayed_message_comes_and_a_recalled_one_does_not():
    got: list[bytes] = []
    last = asyncio.Event()

    async def handle(messages):
        got.extend(message.body for message in messages)
        if got[-1] == b"later":
            last.set()

    async with Broker(recall_message_enable=True) as broker, Producer(namesrv=broker.namesrv) as producer:
        recalled = await producer.send(Message("T", b"recalled", deliver_at=datetime.now(UTC) + HOUR))
        await producer.recall(recalled.recall_handle)
        await producer.send(Message("T", b"later", delay_ms=3_000))
        now = await producer.send(Message("T", b"now"))
        assert now.recall_handle == ""
        consumer = PushConsumer(group="G", namesrv=broker.namesrv, consume_from="earliest")
        consumer.subscribe("T", "*", handle)
        async with consumer:
            await asyncio.wait_for(last.wait(), 60)
    assert got == [b"now", b"later"]


def test_what_cannot_be_recalled_is_refused_with_the_reason():
    with Broker() as broker, sync.Producer(namesrv=broker.namesrv) as producer:
        waiting = producer.send(Message("T", b"x", deliver_at=datetime.now(UTC) + HOUR))
        with pytest.raises(NoPermission, match="recallMessageEnable"):
            producer.recall(waiting.recall_handle)
        long = RecallHandle("T", "broker-a", str(2 * 10**12), "x" * HANDLE_BYTES_MAX).encode()
        for handle in ("", "nonsense", waiting.message_id, None, long):
            with pytest.raises(ConfigError, match="recall_handle"):
                producer.recall(handle)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": "5"}, "delay_ms"),
        ({"delay_ms": 1.5}, "delay_ms"),
        ({"delay_ms": True}, "delay_ms"),
        ({"deliver_at": datetime(2030, 1, 1)}, "time zone"),
        ({"deliver_at": 1_700_000_000}, "datetime"),
        ({"delay_ms": 5, "delay_level": 1}, "one of"),
        ({"deliver_at": datetime.now(UTC) + HOUR, "delay_ms": 5}, "one of"),
        ({"delay_ms": 5, "properties": {"TIMER_DELAY_SEC": "1"}}, "one of"),
    ],
)
def test_a_delay_is_one_clear_value(wrong, words):
    with pytest.raises(InvalidMessage, match=words):
        validate(Message("T", b"x", **wrong))


async def test_delayed_messages_go_by_themselves():
    async with Broker() as broker, Producer(namesrv=broker.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="batch"):
            await producer.send_batch([Message("T", b"x", delay_ms=1_000)])
