"""Tests of subscriptions by SQL92: coordinated, broadcasting, blocking, and at a broker that refuses."""

import asyncio
import threading

import pytest

import libramq.sync
from libramq import ConfigError, FilterRefused, Message, Producer, PushConsumer, Sql
from libramq.client import ConsumeFrom
from libramq.client.queue_reader import EVERYTHING, PullFilter
from libramq.testing import Broker

BEGIN = ConsumeFrom.FIRST_OFFSET


async def send(broker, *values):
    async with Producer(group="p", namesrv=broker.namesrv) as producer:
        for value in values:
            await producer.send(Message("T", str(value).encode(), properties={"a": str(value)}))


@pytest.mark.parametrize("options", [{}, {"broadcasting": True}], ids=["coordinated", "broadcasting"])
async def test_a_consumer_gets_what_its_expression_wants(options, tmp_path):
    got = asyncio.Queue()

    async def handle(messages):
        for message in messages:
            got.put_nowait(message.body)

    if options:
        options = options | {"local_offsets": tmp_path}
    async with Broker(default_topic_queue_nums=1) as broker:
        await send(broker, 1, 5, "x", 9)
        consumer = PushConsumer(group="g", namesrv=broker.namesrv, consume_from=BEGIN, **options)
        consumer.subscribe("T", Sql("a > 3"), handle)
        async with consumer:
            assert [await asyncio.wait_for(got.get(), 30) for _ in range(2)] == [b"5", b"9"]
            await send(broker, 2, 7)  # Its pull is held meanwhile, and looked at.
            assert await asyncio.wait_for(got.get(), 30) == b"7"


def test_a_failed_message_is_redelivered_to_a_blocking_consumer():
    """Its retry topic is read without the filter."""
    got, is_complete = [], threading.Event()

    def handle(messages):
        got.extend(message.body for message in messages)
        if len(got) == 1:
            raise ValueError("once")
        is_complete.set()

    with Broker(message_delay_level="1s 1s 1s 1s") as broker:
        with libramq.sync.Producer(group="p", namesrv=broker.namesrv) as producer:
            for value in (1, 5):
                producer.send(Message("T", b"%d" % value, properties={"a": str(value)}))
        consumer = libramq.sync.PushConsumer(group="g", namesrv=broker.namesrv, consume_from=BEGIN)
        consumer.subscribe("T", Sql("a > 3"), handle)
        with consumer:
            assert is_complete.wait(60)
    assert got == [b"5", b"5"]


async def test_a_broker_that_does_not_filter_is_reported_once():
    """Apache's does not by default, and the consumer would wait for messages for ever."""
    reported = asyncio.Queue()
    async with Broker(enable_property_filter=False) as broker:
        await send(broker, 5)
        consumer = PushConsumer(
            group="g", namesrv=broker.namesrv, consume_from=BEGIN, on_error=reported.put_nowait
        )
        consumer.subscribe("T", Sql("a > 3"), lambda messages: None)
        async with consumer:
            error = await asyncio.wait_for(reported.get(), 30)
    assert isinstance(error, FilterRefused)
    assert "filter message by SQL92" in str(error)
    assert "enablePropertyFilter=true" in str(error)


def test_a_fault_is_reported_where_it_is_written():
    with pytest.raises(ConfigError, match="column 7: unexpected 'AN'"):
        Sql("a > 3 AN b = 1")
    with pytest.raises(ConfigError, match="Sql\\('a > 3'\\), not 3"):
        PushConsumer(group="g", namesrv="127.0.0.1:9876").subscribe("T", 3, lambda messages: None)


def test_a_reader_takes_both_forms():
    assert PullFilter.of("a || b") == PullFilter("a || b", "TAG")
    assert PullFilter.of(Sql("a > 3")) == PullFilter("a > 3", "SQL92")
    assert PullFilter.of("*") == EVERYTHING
