"""The client for blocking code: no event loop in sight."""

import asyncio
import threading

import pytest

from libramq.client import ConsumeFrom, by_hash
from libramq.errors import InvalidMessage, LocalProtocolError, NameServerUnavailable
from libramq.message import Message
from libramq.sync import Admin, Producer, PushConsumer
from tests.client.fake_cluster import SENDS, FakeBroker, FakeNameServer


@pytest.fixture
def cluster():
    """A broker and a name server on a thread of their own, as a blocking program would meet them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    broker = FakeBroker("a", T=4)
    namesrv = FakeNameServer(broker)
    run(broker.start())
    run(namesrv.start())
    yield namesrv, broker
    run(broker.close())
    run(namesrv.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_send_and_consume(cluster):
    """The whole way round."""
    namesrv, broker = cluster
    with Admin(namesrv=namesrv.address) as admin, Producer(namesrv=namesrv.address) as producer:
        assert admin.create_topic("New", queues=2) == [broker.address]
        assert producer.send(Message("New", b"1")).queue.topic == "New"
        assert producer.send(Message("New", b"2"), selector=by_hash("k")).queue.queue_id in (0, 1)
        assert len(producer.send_batch([Message("New", b"3"), Message("New", b"4")])) == 2
        producer.send_oneway(Message("New", b"5"))
        assert len(producer.publish_queues("New")) == 2
    bodies, done = [], threading.Event()

    def handle(messages):
        bodies.extend(message.body for message in messages)
        if len(bodies) == 5:
            done.set()

    consumer = PushConsumer(group="g", namesrv=namesrv.address, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("New", "*", handle)
    with consumer:
        assert done.wait(10)
        assert len([queue for queue in consumer.assignment() if queue.topic == "New"]) == 2
    assert sorted(bodies) == [b"1", b"2", b"3", b"4", b"5"]


def test_many_messages_from_many_threads(cluster):
    """None is lost, and the buffer is a brake instead of an error."""
    namesrv, broker = cluster
    results = []
    with Producer(namesrv=namesrv.address, buffer_bytes_max=20_000) as producer:

        def send():
            for _ in range(500):
                producer.send_nowait(Message("T", bytes(100)), results.append)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        producer.flush()
        assert len(results) == 2000
    assert sum(len(queue) for queue in broker.queues.values()) == 2000
    assert broker.count(*SENDS) < 500


def test_answers_are_heard_while_messages_keep_coming(cluster):
    """Each message hands over the next one, until the first has been answered."""
    namesrv, _ = cluster
    answered = threading.Event()
    sent = 0

    def one_more(queues, message):
        nonlocal sent
        sent += 1
        if not answered.is_set() and sent < 100_000:
            producer.send_nowait(Message("T", b"1"), selector=one_more)
        return queues[0]

    with Producer(namesrv=namesrv.address) as producer:
        producer.publish_queues("T")
        producer.send_nowait(Message("T", b"1"), lambda _: answered.set(), selector=one_more)
        assert answered.wait(20)
        producer.flush()
    assert sent < 100_000


def test_errors_come_where_they_belong(cluster):
    """To the caller, or to the callback."""
    namesrv, _ = cluster
    heard = []

    def broken(queues, message):
        raise ZeroDivisionError

    with Producer(namesrv=namesrv.address) as producer:
        producer.send(Message("T", b"x"))
        with pytest.raises(InvalidMessage):
            producer.send_nowait(Message("T", b""))
        producer.send_nowait(Message("T", b"x"), heard.append, selector=broken)
        producer.flush()
        with pytest.raises(LocalProtocolError, match="already"):
            producer.start()
    assert "selector failed" in str(heard[0])
    with pytest.raises(LocalProtocolError, match="does not run"):
        producer.send(Message("T", b"x"))
    with pytest.raises(LocalProtocolError, match="does not run"):
        producer.send_nowait(Message("T", b"x"))


def test_a_client_that_cannot_start_leaves_no_thread():
    """It can be started again."""
    before = threading.active_count()
    consumer = PushConsumer(group="g", namesrv="127.0.0.1:1")
    consumer.subscribe("T", "*", print)
    for _ in range(2):
        with pytest.raises(NameServerUnavailable):
            consumer.start()
    assert threading.active_count() <= before + 1  # The executor of asyncio.to_thread may be there.
