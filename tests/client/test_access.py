"""Tests of credentials and TLS against LibraMQ's own servers, which check no credentials and speak no TLS."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from libramq.client import Admin, Credentials, Producer, PushConsumer, Tls
from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError, NameServerUnavailable
from libramq.message import Message
from libramq.testing import Broker
from libramq.transport.access import Access

TLS = Tls(verify="none")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


async def test_signed_requests_are_served_like_any_other(broker: Broker) -> None:
    bob = Credentials("bob", "secret")
    async with Admin(namesrv=broker.namesrv, credentials=bob) as admin:
        await admin.create_topic("Signed", queues=2)
    async with Producer(namesrv=broker.namesrv, credentials=bob) as producer:
        await producer.send_batch([Message("Signed", b"a"), Message("Signed", b"b")])
    with closing(QueueReader([broker.namesrv], group="G", access=Access(bob))) as reader:
        assert sum(reader.max_offsets(reader.queues("Signed")).values()) == 2


async def test_each_client_reports_a_server_without_tls(broker: Broker) -> None:
    said = pytest.raises(NameServerUnavailable, match=r"no TLS handshake with .*; does it serve TLS")
    async with Producer(namesrv=broker.namesrv, tls=TLS) as producer:
        with said:
            await producer.send(Message("T", b"x"))
    async with Admin(namesrv=broker.namesrv, tls=TLS) as admin:
        with said:
            await admin.topics()
    consumer = PushConsumer(group="G", namesrv=broker.namesrv, tls=TLS)
    consumer.subscribe("T", "*", lambda _: None)
    with said:
        await consumer.start()
    with closing(QueueReader([broker.namesrv], group="G", access=Access(tls=TLS))) as reader, said:
        reader.topics()


async def test_an_invalid_file_is_reported_before_connecting() -> None:
    producer = Producer(namesrv="127.0.0.1:1", tls=Tls(ca_file="/no/ca.pem"))
    with pytest.raises(ConfigError, match=r"ca_file /no/ca\.pem cannot be used"):
        await producer.start()
