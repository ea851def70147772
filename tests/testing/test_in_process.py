"""The broker that users' tests start: a message in, the same message out, nothing left behind."""

import asyncio
from pathlib import Path

import pytest

import libramq
import libramq.sync
from libramq import Message
from libramq.client import ConsumeFrom
from libramq.errors import LibraError, LocalProtocolError
from libramq.testing import Broker


async def test_a_message_goes_through():
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(messages: list[libramq.MessageExt]) -> None:
        for message in messages:
            got.put_nowait(message.body)

    async with Broker() as broker:
        async with libramq.Producer(group="orders", namesrv=broker.namesrv) as producer:
            await producer.send(Message("Orders", b"one"))
        consumer = libramq.PushConsumer(
            group="readers", namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        consumer.subscribe("Orders", "*", handle)
        async with consumer:
            assert await asyncio.wait_for(got.get(), 10) == b"one"


def test_in_blocking_code_two_at_once_do_not_disturb_each_other():
    with Broker() as first, Broker() as second:
        assert first.namesrv != second.namesrv
        for broker in (first, second):
            with libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer:
                assert producer.send(Message("Orders", b"one")).queue_offset == 0


def test_what_it_stored_in_a_directory_is_there_again(tmp_path: Path):
    for offset in range(2):
        with (
            Broker(tmp_path, default_topic_queue_nums=1) as broker,
            libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer,
        ):
            assert producer.send(Message("Orders", b"one")).queue_offset == offset


def test_options_are_the_brokers_own():
    with (
        Broker(auto_create_topic_enable=False) as broker,
        libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer,
        pytest.raises(LibraError, match="Orders"),
    ):
        producer.send(Message("Orders", b"one"))


def test_a_broker_that_does_not_run_has_no_address():
    with pytest.raises(LocalProtocolError, match="does not run"):
        _ = Broker().namesrv
