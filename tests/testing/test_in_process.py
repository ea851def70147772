"""The broker for users' own tests: sent messages are received, and nothing is left behind."""

import asyncio
from pathlib import Path

import pytest

import libramq
import libramq.sync
from libramq import Message, MessageQueue
from libramq.client import ConsumeFrom
from libramq.errors import ConfigError, LibraError, LocalProtocolError
from libramq.testing import Broker


async def test_a_message_is_sent_and_consumed():
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


def test_two_brokers_in_blocking_code_are_independent():
    with Broker() as first, Broker() as second:
        assert first.namesrv != second.namesrv
        for broker in (first, second):
            with libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer:
                assert producer.send(Message("Orders", b"one")).queue_offset == 0


def test_messages_stored_in_a_directory_survive_a_restart(tmp_path: Path):
    for offset in range(2):
        with (
            Broker(tmp_path, default_topic_queue_nums=1) as broker,
            libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer,
        ):
            assert producer.send(Message("Orders", b"one")).queue_offset == offset


def test_options_are_those_of_broker_conf():
    with (
        Broker(auto_create_topic_enable=False) as broker,
        libramq.sync.Producer(group="orders", namesrv=broker.namesrv) as producer,
        pytest.raises(LibraError, match="Orders"),
    ):
        producer.send(Message("Orders", b"one"))


def test_a_port_that_would_not_be_served_is_refused():
    with pytest.raises(ConfigError, match="libra up"):
        Broker(kafka_listen_port=9092)


def test_a_stopped_broker_has_no_address():
    with pytest.raises(LocalProtocolError, match="does not run"):
        _ = Broker().namesrv


async def test_brokers_of_one_cluster_share_a_topic():
    """One consumer receives the messages that each broker stores."""
    arrived: set[tuple[str, bytes]] = set()
    has_all = asyncio.Event()

    async def handle(messages: list[libramq.MessageExt]) -> None:
        arrived.update((message.broker_name, message.body) for message in messages)
        if len(arrived) == len(names):
            has_all.set()

    async with Broker(brokers=3) as broker:
        async with libramq.client.Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic("Orders", cluster="DefaultCluster", queues=1)
            names = [data.broker_name for data in (await admin.topic_route("Orders")).broker_datas]
        assert sorted(names) == ["broker-a", "broker-b", "broker-c"]
        async with libramq.Producer(namesrv=broker.namesrv) as producer:
            for name in names:
                await producer.send(Message("Orders", name.encode()), queue=MessageQueue("Orders", name, 0))
        consumer = libramq.PushConsumer(group="readers", namesrv=broker.namesrv, consume_from="earliest")
        consumer.subscribe("Orders", "*", handle)
        async with consumer:
            await asyncio.wait_for(has_all.wait(), 60)

    assert arrived == {(name, name.encode()) for name in names}


def test_an_option_of_one_broker_cannot_be_that_of_three():
    with pytest.raises(ConfigError, match="listen_port is an option of one broker"):
        Broker(brokers=3, listen_port=10911)
