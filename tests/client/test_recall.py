"""Tests of our producer's timed messages, and of recalling them before their time."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from libramq import ConfigError, InvalidMessage, Message, NoPermission, Producer, PushConsumer, sync
from libramq.codes import RequestCode as R
from libramq.errors import FeatureNotSupported, RequestTimeout
from libramq.message import MessageQueue
from libramq.message.ids import HANDLE_BYTES_MAX, RecallHandle
from libramq.message.validation import validate
from libramq.remoting.command import VERSION_5_0
from libramq.testing import Broker
from libramq.transport.access import REQUEST_TIMEOUT_MS
from tests.client.fake_cluster import SENDS, FakeBroker, FakeNameServer

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


async def test_a_timer_message_is_sent_to_brokers_with_timers_only(start):
    """Apache's before 5.0 deliver it at once; their heartbeat answers contain the version."""
    old, new = await start(FakeBroker("a", T=1)), await start(FakeBroker("b", T=1))
    old.version = VERSION_5_0 - 5
    namesrv = await start(FakeNameServer(old, new))
    async with Producer(namesrv=namesrv.address) as producer:
        with pytest.raises(
            FeatureNotSupported, match=r"broker a at .* answers as RocketMQ 4\.9\.7, .* delay_ms"
        ):
            await producer.send(Message("T", b"x", delay_ms=5), queue=MessageQueue("T", "a", 0))
        for _ in range(4):
            sent = await producer.send(Message("T", b"x", deliver_at=datetime.now(UTC) + HOUR))
            assert sent.queue.broker_name == "b"
        await producer.send(Message("T", b"x", delay_level=1), queue=MessageQueue("T", "a", 0))
    assert old.count(*SENDS) == 1
    assert new.count(R.HEART_BEAT) == 1


async def test_a_broker_is_asked_for_timers_within_the_time_of_the_send(start):
    broker = await start(FakeBroker("a", T=1))
    namesrv = await start(FakeNameServer(broker))
    async with Producer(namesrv=namesrv.address) as producer:
        await producer.send(Message("T", b"x"))
        broker.silence(R.HEART_BEAT)
        begun = time.monotonic()
        with pytest.raises(RequestTimeout):
            await producer.send(Message("T", b"x", delay_ms=5), timeout_ms=100)
        assert time.monotonic() - begun < REQUEST_TIMEOUT_MS / 1000


async def test_a_broker_that_has_restarted_is_asked_for_timers_again(start):
    """It may have gone back to an older version."""
    broker = await start(FakeBroker("a", T=1))
    namesrv = await start(FakeNameServer(broker))
    async with Producer(namesrv=namesrv.address) as producer:
        await producer.send(Message("T", b"x", delay_ms=5))
        broker.cut(R.SEND_MESSAGE_V2)
        broker.version = VERSION_5_0 - 5
        with pytest.raises(FeatureNotSupported):
            await producer.send(Message("T", b"x", delay_ms=5))


def test_a_handle_that_the_broker_did_not_return_is_refused_with_the_reason():
    with (
        Broker() as broker,
        sync.Producer(namesrv=broker.namesrv) as producer,
        pytest.raises(ConfigError, match=r"recall_handle is empty: .* before 5\.3"),
    ):
        producer.recall("")
