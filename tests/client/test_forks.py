"""Tests of clients that were made before their process forked, as by `gunicorn --preload`."""

import asyncio
import multiprocessing
import os
import select
import signal
import threading
import warnings

import pytest

from libramq import client, sync
from libramq.client.idempotence import ClaimResult, SqliteStore
from libramq.codes import RequestCode
from libramq.errors import LibraError, LocalProtocolError
from libramq.message import Message
from libramq.testing import Broker

CHILDREN = 2


def start_in_child(function):
    """Run a function in a forked child and return the text it returns."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The parent has threads on purpose.
        child = os.fork()
    if not child:
        try:
            os.write(writing, function().encode())
        finally:
            os._exit(0)
    os.close(writing)
    readable = select.poll()  # `select` takes no descriptor above 1,023.
    readable.register(reading, select.POLLIN)
    if not readable.poll(10_000):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answers:
        return answers.read()


def identities(of_started):
    """Return what a function returns in each of some children, in which it starts a client."""
    return [start_in_child(lambda: " ".join(of_started())) for _ in range(CHILDREN)]


def test_producers_have_an_id_and_unique_ids_of_their_own_in_each_child(cluster):
    """Its id is where replies go, and handlers recognise repeated messages by their unique ids."""
    namesrv, _ = cluster
    producer = sync.Producer(namesrv=namesrv.address)
    before = producer.client_id

    def run():
        with producer:
            one = producer.send(Message("T", b"1")).message_id
            (other,) = producer.send_batch([Message("T", b"2")])
            return [producer.client_id, one, other.message_id]

    seen = [name for child in identities(run) for name in child.split()]
    assert len({before, *seen}) == 1 + 3 * CHILDREN


def test_asyncio_clients_have_an_id_of_their_own_in_each_child(cluster):
    namesrv, _ = cluster
    at = {"namesrv": namesrv.address}
    push = client.PushConsumer(group="push", **at)
    push.subscribe("T", "*", print)
    fetching = client.Consumer(group="fetching", **at)
    fetching.subscribe("T")

    def run():
        async def start():
            async with client.Producer(**at) as producer, push, fetching:
                sent = await producer.send(Message("T", b"x"))
                return [push.client_id, fetching.client_id, producer.client_id, sent.message_id]

        return asyncio.run(start())

    seen = [name for child in identities(run) for name in child.split()]
    assert len(set(seen)) == 4 * CHILDREN


def test_brokers_see_each_childs_consumer_under_its_own_id(cluster):
    """A member of a group that is made at module level."""
    namesrv, broker = cluster
    assigned = threading.Event()
    consumer = sync.PushConsumer(
        group="g", namesrv=namesrv.address, on_assigned=lambda queues: assigned.set()
    )
    consumer.subscribe("T", "*", print)

    def run():
        with consumer:
            assigned.wait(60)
            return []

    identities(run)
    ids = {request.ext["clientID"] for request in broker.of(RequestCode.UNREGISTER_CLIENT)}
    assert len(ids) == CHILDREN


async def test_a_child_may_leave_the_blocks_of_its_parent(namesrv):
    """`sys.exit` leaves them, which raised an error of the parent's clients."""
    consumer = client.PushConsumer(group="g", namesrv=namesrv.address)
    consumer.subscribe("T", "*", print)
    with Broker() as broker:
        async with consumer:
            assert start_in_child(lambda: str(asyncio.run(consumer.stop()))) == "None"
            assert start_in_child(lambda: str(broker.__exit__(None, None, None))) == "None"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ending", [SystemExit, None], ids=["exits", "returns"])
def test_a_handlers_child_ends_with_it_and_handles_nothing_else(ending):
    """The child continued as the consumer for ever, with messages that its parent also handled."""
    reading, writing = os.pipe()
    children, ended = [], threading.Event()

    def handle(messages):
        if children:
            os.write(writing, b"p")
            return
        child = os.fork()
        if child:
            children.append(child)
            return
        children.append(os.getpid())
        os.write(writing, b"c")
        if ending is not None:
            raise ending

    def wait(child):
        os.waitpid(child, 0)
        ended.set()

    with Broker() as broker, sync.Producer(namesrv=broker.namesrv) as producer:
        producer.send_batch([Message("T", b"%d" % number) for number in range(5)])
        consumer = sync.PushConsumer(group="g", namesrv=broker.namesrv, consume_from="earliest", threads=1)
        consumer.subscribe("T", "*", handle)
        with consumer, os.fdopen(reading, "rb", buffering=0) as handled:
            seen = b"".join(handled.read(1) for _ in range(5))
            (child,) = children
            threading.Thread(target=wait, args=(child,), daemon=True).start()
            is_over = ended.wait(10)
            if not is_over:
                os.kill(child, signal.SIGKILL)
    os.close(writing)
    assert (sorted(seen), is_over) == (sorted(b"cpppp"), True)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_of_handled_messages_that_was_made_before_a_fork_works_in_the_child(tmp_path):
    """SQLite's locks are not inherited: the parent removed the file into which its child wrote."""
    path = tmp_path / "handled.db"
    store = SqliteStore(path)
    context = multiprocessing.get_context("fork")
    is_closed = context.Event()

    def handle():
        is_closed.wait(60)
        store.done(["k"], "child")

    child = context.Process(target=handle)
    child.start()
    store.close()
    is_closed.set()
    child.join(60)

    assert child.exitcode == 0
    again = SqliteStore(path)
    assert again.claim(["k"], "another") == [ClaimResult.DONE]
    again.close()


def refusal(function):
    """Return the text of the LocalProtocolError that a call raises."""
    with pytest.raises(LocalProtocolError) as caught:
        function()
    return str(caught.value)


def test_every_call_is_refused_in_a_forked_child(cluster):
    """The child has no threads, so each call would wait for ever. The parent's clients continue."""
    namesrv, _ = cluster
    consumer = sync.PushConsumer(group="g", namesrv=namesrv.address)
    consumer.subscribe("T", "*", print)
    with (
        sync.Producer(namesrv=namesrv.address) as producer,
        consumer,
        sync.Admin(namesrv=namesrv.address) as admin,
    ):
        calls = [
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.send_nowait(Message("T", b"x")),
            producer.flush,
            producer.start,
            consumer.pause,
            consumer.assignment,
            admin.topics,
        ]

        def in_child():
            texts = {refusal(call) for call in calls}
            for client in (producer, consumer, admin):
                client.stop()  # What `with` does on the way out of the child: nothing.
            return "\n".join(texts)

        text = start_in_child(in_child)
        assert "before the process forked" in text
        assert "\n" not in text
        assert producer.send(Message("T", b"parent")).queue.topic == "T"
        assert len(consumer.assignment()) > 0


def test_a_new_client_works_in_a_forked_child(cluster):
    """It has its own threads and connections."""
    namesrv, _ = cluster
    with sync.Producer(namesrv=namesrv.address) as producer:
        producer.send(Message("T", b"parent"))

        def in_child():
            with sync.Producer(namesrv=namesrv.address) as own:
                return own.send(Message("T", b"child")).queue.topic

        assert start_in_child(in_child) == "T"
        producer.send(Message("T", b"parent"))


def test_what_asyncio_clients_have_open_stays_their_parents(cluster):
    """The parent would get the answers to the child's requests, and the child the parent's pulls."""
    namesrv, broker = cluster
    at = {"namesrv": namesrv.address}
    admin, producer, popping = (
        client.Admin(**at),
        client.Producer(**at),
        client.SimpleConsumer(group="p", **at),
    )
    fetching = client.Consumer(group="g", consume_from="earliest", **at)
    fetching.subscribe("T")
    clients = (admin, producer, popping, fetching)
    for _ in range(2):
        broker.put("T", 0, b"x")

    async def start():
        for each in clients:
            await each.start()
        await admin.topics()
        await producer.send(Message("T", b"x"))
        producer.send_nowait(Message("T", b"opens a batch"))
        await fetching.getone()

    def in_child():
        calls = [
            admin.topics,
            lambda: producer.send(Message("T", b"x")),
            lambda: popping.receive(await_ms=0),
            fetching.getone,
            fetching.commit,
        ]
        texts = []
        for call in calls:
            with pytest.raises(LibraError) as caught:
                asyncio.run(asyncio.wait_for(call(), 5))
            texts.append(str(caught.value))
        with pytest.raises(LocalProtocolError, match="does not run"):
            producer.send_nowait(Message("T", b"x"))
        for each in (admin, popping):
            asyncio.run(each.stop())
        return "\n".join(texts)

    async def use_and_stop():
        await admin.topics()
        await producer.send(Message("T", b"x"))
        assert (await fetching.getone()).body == b"x"
        for each in clients:
            await each.stop()

    with asyncio.Runner() as runner:
        runner.run(start())
        text = start_in_child(in_child)
        assert text.count("before the process forked") == 4
        assert text.count("does not run") == 1
        runner.run(use_and_stop())
