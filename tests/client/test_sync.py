"""Tests of the client for blocking code, without an event loop."""

import asyncio
import contextlib
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest

from libramq.client import ConsumeFrom, by_hash
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import (
    BufferFull,
    InvalidMessage,
    LibraError,
    LocalProtocolError,
    NameServerUnavailable,
    NoPermission,
)
from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.sync import Admin, Consumer, Producer, PushConsumer
from tests.client.fake_cluster import SENDS


def test_messages_are_sent_and_consumed(cluster):
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
        assert done.wait(60)
        assert len([queue for queue in consumer.assignment() if queue.topic == "New"]) == 2
    assert sorted(bodies) == [b"1", b"2", b"3", b"4", b"5"]


def test_many_messages_from_many_threads(cluster):
    """None is lost, and a full buffer makes senders wait instead of raising."""
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
            thread.join(60)
        producer.flush()
        assert len(results) == 2000
    assert sum(len(queue) for queue in broker.queues.values()) == 2000
    assert broker.count(*SENDS) < 500


def test_a_queued_message_stays_as_it_was_passed(cluster):
    """The producer's thread sends it later, and programs fill one buffer or dictionary again and again."""
    namesrv, broker = cluster
    properties, body, go_on = {"n": "1"}, bytearray(b"first"), threading.Event()

    def wait(queues, message):
        go_on.wait(60)
        return queues[0]

    with Producer(namesrv=namesrv.address) as producer:
        producer.publish_queues("T")
        producer.send_nowait(Message("T", b"its thread waits"), selector=wait)
        producer.send_nowait(Message("T", body, properties=properties))
        body[:], properties["n"] = b"the second", "2"
        go_on.set()
    records = b"".join(b"".join(records) for _, records in sorted(broker.queues.items()))
    assert [(each.body, each.properties.get("n")) for each in decode_records(records)] == [
        (b"its thread waits", None),
        (b"first", "1"),
    ]


def test_answers_are_processed_while_messages_keep_coming(cluster):
    """Each callback sends the next message, until the first one has been answered."""
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
        assert answered.wait(60)
        producer.flush()
    assert sent < 100_000


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_errors_reach_the_caller_or_the_callback(cluster, error):
    """A selector's error ends neither the producer's thread nor its pending sends."""
    namesrv, _ = cluster
    heard = []

    def broken(queues, message):
        raise error

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


def refusal(function):
    """Return the text of the LocalProtocolError that a call raises."""
    with pytest.raises(LocalProtocolError) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("hook", ["on_assigned", "on_revoked"])
def test_a_hook_may_call_the_consumer(cluster, hook):
    """It runs on a thread that may block."""
    namesrv, _ = cluster
    seen, assigned, done = [], threading.Event(), threading.Event()

    def call(queues):
        consumer.pause(queues)
        seen.append((consumer.assignment(), threading.current_thread().name))
        consumer.resume(queues)
        assigned.set()
        done.set()

    hooks = {"on_assigned": lambda queues: assigned.set()} | {hook: call}
    consumer = PushConsumer(group="g", namesrv=namesrv.address, **hooks)
    consumer.subscribe("T", "*", print)
    with consumer:
        assert assigned.wait(60)
    assert done.is_set()
    assert {name for _, name in seen} == {"libramq-hook"}


@pytest.mark.parametrize("hook", ["on_assigned", "on_revoked"])
def test_a_fetch_in_a_hook_is_refused(cluster, hook):
    """It had waited for the main thread's fetch, whose messages wait for the hook."""
    namesrv, broker = cluster
    broker.put("T", 0, b"x")
    broker.put("T", 0, b"y")
    refused = []

    def fetch(queues):
        refused.extend(refusal(each) for each in (consumer.getmany, consumer.getone, lambda: next(consumer)))
        if hook == "on_assigned" and MessageQueue("T", "a", 0) in queues:
            consumer.seek(MessageQueue("T", "a", 0), 1)
            consumer.commit()

    consumer = Consumer(group="g", namesrv=namesrv.address, consume_from="earliest", **{hook: fetch})
    consumer.subscribe("T")
    with consumer:
        assert consumer.getone().body == (b"y" if hook == "on_assigned" else b"x")
    assert refused
    assert all("a hook cannot fetch" in each for each in refused)


def test_a_hook_that_exits_or_stops_the_consumer_hangs_nobody(cluster):
    """Its failure is logged, and a stop ends the consumer."""
    namesrv, _ = cluster
    started, stopped = threading.Event(), threading.Event()

    def exit_and_stop(queues):
        started.wait(60)  # A stop before that would end the start.
        consumer.stop(timeout_ms=500)
        stopped.set()
        sys.exit(1)

    consumer = PushConsumer(group="g", namesrv=namesrv.address, on_assigned=exit_and_stop)
    consumer.subscribe("T", "*", print)
    consumer.start()
    started.set()
    assert stopped.wait(60)
    assert "does not run" in refusal(consumer.pause)


@pytest.mark.parametrize("kind", ["handler", "hook"])
def test_a_coroutine_on_the_consumers_own_thread_is_refused(cluster, kind):
    """It would wait for itself; the error names another way."""
    namesrv, _ = cluster
    texts, done = [], threading.Event()

    async def call(_):
        texts.extend(refusal(each) for each in (consumer.pause, consumer.assignment, consumer.stop))
        done.set()

    options = {"on_assigned": call} if kind == "hook" else {}
    consumer = PushConsumer(
        group="g", namesrv=namesrv.address, consume_from=ConsumeFrom.FIRST_OFFSET, **options
    )
    consumer.subscribe("T", "*", call if kind == "handler" else print)
    with Producer(namesrv=namesrv.address) as producer:
        producer.send(Message("T", b"x"))
    with consumer:
        assert done.wait(60)
    assert "plain function" in texts[0]
    assert "stop()" in texts[2]


def test_stop_in_a_handler_is_refused(cluster):
    """It is refused at once instead of after the timeout of a stop."""
    namesrv, _ = cluster
    texts, done = [], threading.Event()

    def handle(messages):
        texts.append(refusal(consumer.stop))
        done.set()

    consumer = PushConsumer(group="g", namesrv=namesrv.address, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("T", "*", handle)
    with Producer(namesrv=namesrv.address) as producer:
        producer.send(Message("T", b"x"))
    with consumer:
        assert done.wait(60)
    assert "would wait for the handler itself" in texts[0]


def test_a_callback_or_selector_that_would_wait_for_itself_is_refused(cluster):
    """It may call send_nowait, which raises BufferFull instead of waiting."""
    namesrv, _ = cluster
    texts, results, done = [], [], threading.Event()

    def again(result):
        results.append(result)
        done.set()

    def call(_):
        texts.extend(
            refusal(each)
            for each in (lambda: producer.send(Message("T", b"x")), producer.flush, producer.stop)
        )
        producer.send_nowait(Message("T", b"2"), again)

    with Producer(namesrv=namesrv.address) as producer:
        producer.send_nowait(Message("T", b"1"), call)
        assert done.wait(60)
        producer.send_nowait(
            Message("T", b"3"), selector=lambda queues, _: [refusal(producer.flush), queues[0]][1]
        )
        producer.flush()
    assert all("use send_nowait()" in text for text in texts)
    assert len(texts) == 3


def test_a_full_buffer_is_an_error_in_a_callback(cluster):
    """Waiting there would keep it full for ever."""
    namesrv, _ = cluster
    heard, done = [], threading.Event()

    def call(_):
        try:
            for _ in range(10_000):
                producer.send_nowait(Message("T", bytes(1000)))
        except BufferFull as error:
            heard.append(str(error))
        done.set()

    with Producer(namesrv=namesrv.address, buffer_bytes_max=5_000) as producer:
        producer.send_nowait(Message("T", b"1"), call)
        assert done.wait(60)
        producer.flush()
    assert "cannot wait for room" in heard[0]


def test_a_call_waiting_at_the_stop_raises_a_libra_error(cluster):
    """The event loop's CancelledError does not reach it."""
    namesrv, broker = cluster
    broker.silence(RequestCode.SEND_MESSAGE_V2, 10)
    errors, waiting = [], threading.Event()
    producer = Producer(namesrv=namesrv.address, send_timeout_ms=20_000)
    producer.start()
    producer.publish_queues("T")

    def send():
        waiting.set()
        try:
            producer.send(Message("T", b"x"))
        except LibraError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert waiting.wait(60)
    producer.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert errors


def test_concurrent_starts_make_one_client(cluster):
    """The other start is refused."""
    namesrv, _ = cluster
    consumer = PushConsumer(group="g", namesrv=namesrv.address)
    consumer.subscribe("T", "*", print)
    barrier, refused = threading.Barrier(4, timeout=60), []

    def start():
        barrier.wait()
        try:
            consumer.start()
        except LocalProtocolError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused == ["this consumer runs already"] * 3
    consumer.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("libramq-sync-consumer")]


def test_a_dropped_client_is_named_and_leaves_nothing_behind(cluster):
    """What it has queued is sent."""
    namesrv, broker = cluster
    producer = Producer(namesrv=namesrv.address)
    producer.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "libramq-sync-producer"]
    producer.send_nowait(Message("T", b"x"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        thread.join(60)
    assert [str(each.message) for each in caught] == [
        "a producer was dropped while it ran; stop() it, or use `with`"
    ]
    assert not thread.is_alive()
    assert broker.count(*SENDS) == 1


def test_where_threads_are_greenlets_a_client_is_refused(monkeypatch):
    """Its event loop would block them all; this stands in for gevent, with which it was tried."""
    gevent = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)
    producer = Producer()
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match=r"gevent has replaced .*thread=False"):
            producer.start()


def test_wait_closed_returns_at_a_stop(cluster):
    """It raises no error at a stop, and the error of a consumer that is kept out."""
    namesrv, broker = cluster
    consumer = PushConsumer(group="g", namesrv=namesrv.address)
    consumer.subscribe("T", "*", print)
    ended = threading.Event()

    def wait():
        consumer.wait_closed()
        ended.set()

    with consumer:
        thread = threading.Thread(target=wait)
        thread.start()
    thread.join(60)
    assert ended.is_set()
    broker.refuse(RequestCode.HEART_BEAT, ResponseCode.NO_PERMISSION)
    heard = threading.Event()
    consumer = PushConsumer(group="g", namesrv=namesrv.address, on_error=lambda error: heard.set())
    consumer.subscribe("T", "*", print)
    with consumer:
        with pytest.raises(NoPermission):
            consumer.wait_closed()
        assert heard.wait(60)


def test_a_coroutine_that_will_not_be_cancelled_hangs_nobody(cluster):
    """The consumer stops without it."""
    namesrv, _ = cluster
    began = threading.Event()

    async def handle(messages):
        began.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with Producer(namesrv=namesrv.address) as producer:
        producer.send(Message("T", b"x"))
    consumer = PushConsumer(group="g", namesrv=namesrv.address, consume_from="earliest")
    consumer.subscribe("T", "*", handle)
    consumer.start()
    assert began.wait(60)
    stopping = threading.Thread(target=lambda: consumer.stop(timeout_ms=50))
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()


def test_a_blocking_consumer_fetches_and_commits(cluster):
    """It fetches batches, single messages, and after a seek. Messages in hand at the end are committed."""
    namesrv, broker = cluster
    for number in range(6):
        broker.put("T", 0, b"%d" % number)
    consumer = Consumer(group="g", namesrv=namesrv.address, consume_from="earliest")
    with pytest.raises(LocalProtocolError, match="does not run"):
        consumer.getmany()
    with consumer:
        (queue, *_) = consumer.queues("T")
        consumer.assign([queue])
        taken = consumer.getmany(timeout_ms=60_000, max_records=2)
        assert [message.body for message in taken[queue]] == [b"0", b"1"]
        consumer.commit()
        assert consumer.committed(queue) == consumer.position(queue) == 2
        assert consumer.lag(queue) == 4
        consumer.seek(queue, 4)
        assert [next(consumer).body, consumer.getone().body] == [b"4", b"5"]
        assert consumer.getmany(timeout_ms=20) == {}
        consumer.pause()
        consumer.resume([queue])
        assert consumer.assignment() == [queue]
    assert broker.offsets["g", "T", 0] == 6


def test_a_blocking_loop_ends_when_another_thread_stops_the_consumer(cluster):
    """It ends after the message in hand, which is committed."""
    namesrv, broker = cluster
    consumer = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", auto_commit_interval_ms=60_000
    )
    consumer.subscribe("T")
    consumer.start()
    for body in (b"first", b"second"):
        broker.put("T", 0, body)
    bodies = []
    stopping = threading.Thread(target=consumer.stop)
    for message in consumer:
        bodies.append(message.body)
        if message.body == b"second":
            stopping.start()
    stopping.join()
    assert bodies == [b"first", b"second"]
    assert broker.offsets["g", "T", 0] == 2


def test_what_is_in_hand_when_a_blocking_block_fails_is_read_again(cluster):
    namesrv, broker = cluster
    for body in (b"good", b"bad"):
        broker.put("T", 0, body)

    def read():
        consumer = Consumer(group="g", namesrv=namesrv.address, consume_from="earliest")
        consumer.subscribe("T")
        with consumer:
            for message in consumer:
                if message.body == b"bad":
                    raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        read()
    assert broker.offsets["g", "T", 0] == 1


def fetch_on_a_thread(consumer):
    fetching = threading.Thread(target=consumer.getmany, kwargs={"timeout_ms": 60_000})
    fetching.start()
    fetching.join()


def fetching_consumer(namesrv):
    consumer = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", auto_commit_interval_ms=60_000
    )
    consumer.subscribe("T")
    return consumer


def test_what_a_thread_has_fetched_that_has_ended_is_not_done_when_the_consumer_stops(cluster):
    """The program is still at work on it."""
    namesrv, broker = cluster
    broker.put("T", 0, b"x")
    consumer = fetching_consumer(namesrv)
    consumer.start()
    fetch_on_a_thread(consumer)
    consumer.stop()
    assert broker.offsets.get(("g", "T", 0), 0) == 0
    with fetching_consumer(namesrv) as consumer:
        assert consumer.getone().body == b"x"


def test_what_a_thread_has_fetched_that_has_ended_is_done_when_the_program_says_so(cluster):
    """The program commits, all or by name, or ends the block."""
    namesrv, broker = cluster
    says = [
        lambda consumer: consumer.commit(),
        lambda consumer: consumer.commit({MessageQueue("T", "a", 0): 2}),
    ]
    for number, say in enumerate(says):
        broker.put("T", 0, b"x")
        consumer = fetching_consumer(namesrv)
        consumer.start()
        fetch_on_a_thread(consumer)
        say(consumer)
        consumer.stop()
        assert broker.offsets["g", "T", 0] == number + 1
    broker.put("T", 0, b"x")
    with fetching_consumer(namesrv) as consumer:
        fetch_on_a_thread(consumer)
    assert broker.offsets["g", "T", 0] == 3
