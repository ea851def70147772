"""Our simple consumer at both brokers, and at our broker when that is killed."""

import time
from pathlib import Path

import pytest

from libramq.message import Message, MessageExt
from libramq.sync import Producer, SimpleConsumer
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

LONG_MS = 600_000


def received(consumer: SimpleConsumer, count: int, invisible_ms: int = LONG_MS) -> list[MessageExt]:
    """Receive until this many messages have arrived: a broker needs some seconds for a redelivery."""
    messages: list[MessageExt] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} messages came"
        messages += consumer.receive(count - len(messages), invisible_ms=invisible_ms, await_ms=1_000)
    return messages


def test_messages_are_acknowledged_or_redelivered(cluster: Cluster) -> None:
    """Apache's broker returns 32 to one request, ours all of them."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("simple")
    cluster.create_topic(topic, 2)
    bodies = [b"%d" % number for number in range(300)]
    with (
        Producer(group=cluster.fresh_name("filling"), namesrv=cluster.namesrv) as producer,
        SimpleConsumer(group=group, namesrv=cluster.namesrv) as consumer,
    ):
        consumer.subscribe(topic)
        producer.send_batch([Message(topic, body) for body in bodies])
        messages = {message.body: message for message in received(consumer, 300)}
        assert sorted(messages) == sorted(bodies)
        consumer.ack(messages.pop(b"0"))
        given_back, prolonged = messages.pop(b"1"), messages.pop(b"2")
        consumer.change_invisible_time(prolonged, LONG_MS)
        consumer.nack(given_back, delay_ms=1_000)
        consumer.ack(messages.values())
        (again,) = received(consumer, 1)
        assert (again.body, again.reconsume_times) == (b"1", 1)
        consumer.ack([again])
        consumer.nack(prolonged, delay_ms=1_000)
        (again,) = received(consumer, 1)
        assert again.body == b"2"
        consumer.ack(again)
        producer.send(Message(topic, b"last"))
        assert [message.body for message in received(consumer, 1)] == [b"last"]


def test_messages_in_flight_survive_a_kill(tmp_path: Path) -> None:
    """Acknowledged messages are done; popped ones are redelivered after their invisible time."""
    servers = LibraServers(tmp_path, "broker-a", settings={"flushDiskType": "SYNC_FLUSH"})
    try:
        with (
            Producer(group="filling", namesrv=servers.namesrv) as producer,
            SimpleConsumer(group="simple", namesrv=servers.namesrv) as consumer,
        ):
            consumer.subscribe("Popped")
            producer.send(Message("Popped", b"done"))
            consumer.ack(received(consumer, 1))
            producer.send(Message("Popped", b"popped"))
            received(consumer, 1, invisible_ms=1)
            servers.kill("broker-a")
            servers.start("broker-a")
        with SimpleConsumer(group="simple", namesrv=servers.namesrv) as consumer:
            consumer.subscribe("Popped")
            (again,) = received(consumer, 1)
            assert again.body == b"popped"
            consumer.ack(again)
            assert consumer.receive(await_ms=0) == []
    finally:
        servers.stop()
