"""Where a new group of ours begins at both brokers: after its start, though queues are young."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from libramq.message import Message, MessageExt, MessageQueue
from libramq.sync import Producer, PushConsumer, SimpleConsumer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

QUEUES = 4


def send(cluster: Cluster, topic: str, what: str, queues: int = QUEUES) -> set[str]:
    """Send a message to each queue; return their bodies."""
    bodies = {
        f"{what} {number}": MessageQueue(topic, cluster.broker_name, number) for number in range(queues)
    }
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for body, queue in bodies.items():
            producer.send(Message(topic, body.encode()), queue=queue)
    return set(bodies)


class Got:
    """The bodies that a consumer got."""

    def __init__(self) -> None:
        self.bodies: set[str] = set()

    def note(self, messages: list[MessageExt]) -> None:
        self.bodies |= {message.body.decode() for message in messages}


@contextmanager
def pushing(cluster: Cluster, topic: str, got: Got, **options: bool) -> Iterator[None]:
    group = cluster.fresh_name("group")
    consumer = PushConsumer(group=group, namesrv=cluster.namesrv, route_refresh_ms=500, **options)
    consumer.subscribe(topic, "*", got.note)
    with consumer:
        yield


@contextmanager
def receiving(cluster: Cluster, topic: str, got: Got) -> Iterator[None]:
    consumer = SimpleConsumer(group=cluster.fresh_name("group"), namesrv=cluster.namesrv, from_end=True)
    consumer.subscribe(topic)
    is_over = threading.Event()

    def receive() -> None:
        while not is_over.is_set():
            got.note(consumer.receive(await_ms=200))

    with consumer:
        thread = threading.Thread(target=receive)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    "member",
    [
        pushing,
        lambda *arguments: pushing(*arguments, orderly=True),
        lambda *arguments: pushing(*arguments, pop=True),
        receiving,
    ],
    ids=["push", "in order", "pop", "receive"],
)
def test_a_new_group_gets_messages_sent_after_its_start(cluster: Cluster, member: Callable) -> None:
    """Apache's broker gave it all of a young queue. Queues that are added are read from their beginning."""
    topic, got = cluster.fresh_name("Begun"), Got()
    cluster.create_topic(topic, QUEUES)
    send(cluster, topic, "old")
    cluster.wait_stored(topic, QUEUES)  # Before, Apache's broker says that its queues end earlier.
    with member(cluster, topic, got):
        sent = send(cluster, topic, "new")
        cluster.create_topic(topic, 2 * QUEUES)
        sent |= send(cluster, topic, "added", 2 * QUEUES)
        cluster.wait_until(lambda: got.bodies >= sent, "not every message came", within_s=PATIENCE_S)
    assert got.bodies == sent
