"""Subscriptions before and inside `with`, for every consumer, and calls at a wrong time."""

import asyncio
import threading

import pytest

import libramq
import libramq.sync
from libramq import (
    ConfigError,
    Consumer,
    InvalidState,
    Message,
    NoSuchMethod,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from libramq.client import Admin
from libramq.client.consuming import group_consumer
from libramq.errors import LocalProtocolError, NameServerUnavailable
from libramq.message.queue import MessageQueue
from libramq.nameserver import NameServer
from libramq.testing import Broker
from tests.transport.loops import until, until_asked

SECONDS = 30


@pytest.fixture(scope="module")
def namesrv():
    with Broker() as broker:
        yield broker.namesrv


async def fill(namesrv, *topics):
    async with Producer(namesrv=namesrv) as producer:
        for topic in topics:
            await producer.send(Message(topic, topic.encode()))


@pytest.mark.parametrize("pop", [False, True], ids=["queues", "pop"])
async def test_handlers_may_be_set_while_a_push_consumer_runs(namesrv, pop):
    """Subscriptions made in one turn share a join, and a later one is added."""
    got, topics = [], [f"Late{number}{pop}" for number in range(3)]
    await fill(namesrv, *topics)
    consumer = PushConsumer(group=f"late-{pop}", namesrv=namesrv, consume_from="earliest", pop=pop)
    async with consumer:
        consumer.subscribe(topics[0], "*", got.extend)
        await consumer.subscribe(topics[1], "*", got.extend)
        await until(lambda: len(got) == 2)
        await consumer.subscribe(topics[2], "*", got.extend)
        await until(lambda: len(got) == 3)
        await fill(namesrv, *topics)
        await until(lambda: len(got) == 6)
    assert sorted(each.topic for each in got) == sorted(topics * 2)


@pytest.mark.parametrize("pop", [False, True], ids=["queues", "pop"])
async def test_a_handler_may_subscribe_but_not_wait_for_itself(namesrv, pop):
    """Awaited there, the consumer would stop after ten seconds without the handler, and deliver again."""
    first, second = f"First{pop}", f"Second{pop}"
    await fill(namesrv, first, second)
    got, refused = [], []
    consumer = PushConsumer(group=f"inside-{pop}", namesrv=namesrv, consume_from="earliest", pop=pop)

    async def handle(messages):
        try:
            await consumer.subscribe(second, "*", got.extend)
        except InvalidState as error:
            refused.append(str(error))
        got.extend(messages)

    async with consumer:
        consumer.subscribe(first, "*", handle)
        await until(lambda: len(got) == 2)
        assert (await consumer.statistics()).handled == 2
    assert sorted(each.topic for each in got) == [first, second]
    assert ["call it without await" in each for each in refused] == [True]


async def test_a_group_that_is_new_begins_when_the_subscription_is_awaited(namesrv):
    got = []
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("Begun", queues=1)
    async with PushConsumer(group="beginner", namesrv=namesrv) as consumer:
        await consumer.subscribe("Begun", "*", got.extend)
        await fill(namesrv, "Begun")
        await until(lambda: got)


async def test_an_iteration_goes_on_over_a_subscription_and_no_message_comes_twice(namesrv):
    await fill(namesrv, "Read1", "Read1", "Read2")
    got = []
    async with Consumer(group="reader", namesrv=namesrv, consume_from="earliest") as consumer:
        consumer.subscribe("Read1")
        async for message in consumer:
            got.append(message.topic)
            if len(got) == 2:
                consumer.subscribe("Read2")
            if len(got) == 3:
                break
        queues = await consumer.assignment()
        assert {queue.topic for queue in queues} == {"Read1", "Read2"}
        assert await consumer.getmany(timeout_ms=0) == {}
    assert got == ["Read1", "Read1", "Read2"]


async def test_a_task_that_has_fetched_may_wait_for_a_subscription(namesrv):
    """What it has in hand is done; the join waited ten seconds for it, and delivered it again."""
    await fill(namesrv, "Held1", "Held2")
    got = []
    async with Consumer(group="holder", namesrv=namesrv, consume_from="earliest") as consumer:
        await consumer.subscribe("Held1")
        async for message in consumer:
            got.append(message.topic)
            if len(got) == 2:
                break
            await consumer.subscribe("Held2")
        assert await consumer.getmany(timeout_ms=0) == {}
    assert got == ["Held1", "Held2"]


async def test_a_subscription_that_has_been_joined_ends_no_message(namesrv):
    """Nothing waits for what was fetched since; awaiting it marked these messages as done."""
    await fill(namesrv, "Ended1")

    async def fail() -> None:
        async with Consumer(group="ender", namesrv=namesrv, consume_from="earliest") as consumer:
            joined = consumer.subscribe("Ended1")
            assert len(await consumer.getmany()) == 1
            await joined
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with Consumer(group="ender", namesrv=namesrv, consume_from="earliest") as consumer:
        consumer.subscribe("Ended1")
        assert len(await consumer.getmany()) == 1


async def test_who_waits_for_the_end_waits_over_a_subscription(namesrv):
    async with PushConsumer(group="waiter", namesrv=namesrv) as consumer:
        await consumer.subscribe("Waited", "*", print)
        waiting = asyncio.create_task(consumer.wait_closed())
        await consumer.subscribe("Waited2", "*", print)
        assert {queue.topic for queue in await consumer.assignment()} <= {
            "Waited",
            "Waited2",
            "%RETRY%waiter",
        }
        assert not waiting.done()
        await consumer.stop()
        await waiting


async def test_a_join_that_fails_is_reported_wherever_the_program_waits():
    errors = []
    async with Broker() as broker:
        consumer = PushConsumer(group="g", namesrv=broker.namesrv, on_error=errors.append)
        await consumer.start()
    with pytest.raises(NameServerUnavailable):
        await consumer.subscribe("T", "*", print)
    with pytest.raises(NameServerUnavailable):
        await consumer.wait_closed()
    with pytest.raises(NameServerUnavailable):
        await consumer.pause()
    await consumer.stop()
    assert len(errors) == 1


@pytest.mark.parametrize("reaction", ["exit", "stop", "subscribe"])
async def test_a_hook_may_do_anything_when_a_join_fails(reaction, caplog):
    """The hook neither ends the loop nor waits for the join that waits for it."""
    called = []

    async def react(error):
        called.append(error)
        if reaction == "exit":
            raise SystemExit(1)
        if reaction == "stop":
            await asyncio.create_task(consumer.stop())
        if reaction == "subscribe":
            with pytest.raises(NameServerUnavailable):
                await consumer.subscribe("U", "*", print)
        called.append("to its end")

    async with Broker() as broker:
        consumer = PushConsumer(group="g", namesrv=broker.namesrv, on_error=react)
        await consumer.start()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(NameServerUnavailable):
            await consumer.subscribe("T", "*", print)
        await consumer.stop()
    assert len(called) == (1 if reaction == "exit" else 2)
    assert ("a listener failed" in caplog.text) == (reaction == "exit")


async def test_a_consumer_reads_on_if_no_name_server_answers_when_it_subscribes():
    """Its brokers need none; the next subscription joins with the one that failed."""
    got, errors = [], []
    async with Broker() as broker:
        await fill(broker.namesrv, "Known", "Later", "Last")
        options = {"namesrv": broker.namesrv, "consume_from": "earliest", "on_error": errors.append}
        async with (
            Producer(namesrv=broker.namesrv) as producer,
            PushConsumer(group="reading", **options) as consumer,
        ):
            await consumer.subscribe("Known", "*", got.extend)
            await until(lambda: len(got) == 1)
            await producer.send("Known", b"2")
            name_server, port = broker._name_server, int(broker.namesrv.rpartition(":")[2])
            await name_server.stop()
            with pytest.raises(NameServerUnavailable):
                await consumer.subscribe("Later", "*", got.extend)
            await producer.send("Known", b"3")
            await until(lambda: len(got) == 3)
            assert [type(each) for each in errors] == [NameServerUnavailable]
            broker._name_server = NameServer("127.0.0.1", port)
            await broker._name_server.start()
            async with Admin(namesrv=broker.namesrv) as admin:

                async def is_routed():
                    return "Last" in await admin.topics()

                await until_asked(is_routed)
            await consumer.subscribe("Last", "*", got.extend)
            await until(lambda: {each.topic for each in got} == {"Known", "Later", "Last"})


def test_blocking_consumers_subscribe_and_assign_before_and_inside(namesrv):
    with libramq.sync.Producer(namesrv=namesrv) as producer:
        for topic in ("Sync1", "Sync2"):
            producer.send(Message(topic, b"1"))
    got, done = [], threading.Event()

    def handle(messages):
        got.extend(messages)
        if len(got) == 2:
            done.set()

    options = {"namesrv": namesrv, "consume_from": "earliest"}
    with libramq.sync.PushConsumer(group="sync-push", **options) as push:
        push.subscribe("Sync1", "*", handle)
        push.subscribe("Sync2", "*", handle)
        assert done.wait(SECONDS)
    with libramq.sync.Consumer(group="sync-fetch", **options) as consumer:
        consumer.subscribe("Sync1")
        assert consumer.getone().topic == "Sync1"
        consumer.subscribe("Sync2")
        assert consumer.getone().topic == "Sync2"
        queues = consumer.queues("Sync1")
    consumer = libramq.sync.Consumer(group="sync-assign", **options)
    consumer.assign(queues)
    with consumer:
        assert consumer.getone().topic == "Sync1"
    with libramq.sync.SimpleConsumer(group="sync-simple", namesrv=namesrv) as simple:
        simple.subscribe("Sync1")
        assert simple.receive()


@pytest.mark.parametrize(
    "make", [libramq.sync.Consumer, libramq.sync.PushConsumer, libramq.sync.SimpleConsumer]
)
def test_a_blocking_consumer_without_topics_says_so(namesrv, make):
    waits = {"Consumer": "getone", "PushConsumer": "wait_closed", "SimpleConsumer": "receive"}
    with (
        make(group="idle", namesrv=namesrv) as consumer,
        pytest.raises(InvalidState, match="no subscription; call subscribe"),
    ):
        getattr(consumer, waits[make.__name__])()


async def test_a_consumer_that_is_never_given_topics_is_in_the_log(namesrv, monkeypatch, caplog):
    """It used to be refused at the start; a service that forgets to subscribe would wait in silence."""
    monkeypatch.setattr(group_consumer, "WITHOUT_TOPICS_S", 0.01)
    async with (
        PushConsumer(group="forgetful", namesrv=namesrv),
        Consumer(group="c", namesrv=namesrv) as reader,
    ):
        await reader.assign([])
        await until(lambda: caplog.messages)
    assert caplog.messages == ["the consumer has no subscription, and reads nothing group=forgetful"]


async def call(client, name, *arguments):
    found = getattr(client, name)(*arguments)
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize(
    ("client", "name", "arguments"),
    [
        (Producer, "send", [Message("T", b"1")]),
        (Producer, "send_nowait", [Message("T", b"1")]),
        (Producer, "flush", []),
        (Producer, "publish_queues", ["T"]),
        (Consumer, "getmany", []),
        (Consumer, "commit", []),
        (Consumer, "queues", ["T"]),
        (Consumer, "seek", [MessageQueue("T", "b", 0), 0]),
        (Consumer, "wait_closed", []),
        (PushConsumer, "pause", []),
        (PushConsumer, "wait_closed", []),
        (SimpleConsumer, "receive", []),
        (Admin, "topics", []),
    ],
)
async def test_a_call_before_the_start_and_after_the_end_is_one_kind_of_error(
    namesrv, client, name, arguments
):
    one = client(namesrv=namesrv, **({} if client in (Producer, Admin) else {"group": "g"}))
    with pytest.raises(InvalidState, match=r"use `async with` or await start\(\)"):
        await call(one, name, *arguments)
    async with one:
        with pytest.raises(InvalidState, match="runs already"):
            await one.start()
    with pytest.raises(InvalidState):
        await call(one, name, *arguments)
    assert issubclass(InvalidState, LocalProtocolError)


@pytest.mark.parametrize(
    ("client", "name", "said"),
    [
        (PushConsumer, "getmany", "a PushConsumer has no getmany(); Consumer has it"),
        (Producer, "receive", "a Producer has no receive(); SimpleConsumer has it"),
        (Consumer, "subcribe", "a Consumer has no subcribe (did you mean subscribe?)"),
        (libramq.sync.PushConsumer, "send", "a PushConsumer has no send(); Producer has it"),
        (PushConsumer, "close", "a PushConsumer has no close(); use stop()"),
        (libramq.sync.Consumer, "poll", "a Consumer has no poll(); use getmany()"),
        (SimpleConsumer, "recieve", "a SimpleConsumer has no recieve (did you mean receive?)"),
    ],
)
def test_a_method_that_a_client_does_not_have_is_named_with_who_has_it(client, name, said):
    one = client(group="g")
    with pytest.raises(NoSuchMethod) as caught:
        getattr(one, name)
    assert str(caught.value) == said
    assert not hasattr(one, name)
    assert isinstance(caught.value, ConfigError)


async def test_what_is_no_queue_is_refused_wherever_queues_are_expected(namesrv):
    """A queue is a tuple: pause(queue) had paused nothing, without an error."""
    queue = MessageQueue("Paused", "broker-a", 0)
    async with Consumer(group="pauser", namesrv=namesrv) as consumer:
        consumer.subscribe("Paused")
        for method in (consumer.pause, consumer.resume, Consumer(group="pauser", namesrv=namesrv).assign):
            for queues in (queue, "Paused", 3):
                with pytest.raises(ConfigError, match=r"takes several MessageQueues, .* \[queue\]"):
                    await method(queues)
            with pytest.raises(ConfigError, match="is a MessageQueue, not 'Paused'"):
                await method(["Paused"])
        for method in (consumer.committed, consumer.seek_to_beginning, consumer.seek_to_end):
            with pytest.raises(ConfigError, match="is a MessageQueue, not 'Paused'"):
                await method("Paused")


@pytest.mark.parametrize("timeout_ms", ["1", -1, 1.5, None])
async def test_a_stop_with_an_invalid_timeout_stops_nothing(namesrv, timeout_ms):
    for consumer in (Consumer(group="stopper", namesrv=namesrv), PushConsumer(group="s2", namesrv=namesrv)):
        async with consumer:
            with pytest.raises(ConfigError, match="timeout_ms is"):
                await consumer.stop(timeout_ms=timeout_ms)
            assert await consumer.assignment() == []
            await consumer.pause()  # It runs.
    for kind in (libramq.sync.Consumer, libramq.sync.PushConsumer):
        with kind(group="stopper", namesrv=namesrv) as blocking:
            with pytest.raises(ConfigError, match="timeout_ms is"):
                blocking.stop(timeout_ms=timeout_ms)
            blocking.pause()
