"""Tests of the simple consumer with a real broker in this process."""

import asyncio

import pytest

import libramq.sync
from libramq import Message, MessageExt, Producer, SimpleConsumer, Sql
from libramq.client import Admin
from libramq.codes import RequestCode
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    LibraError,
    LocalProtocolError,
    RequestCodeNotSupported,
    RouteNotFound,
)
from libramq.message.queue import MessageQueue
from libramq.rpc import pop_calls
from libramq.testing import Broker
from tests.client.fake_broker import record
from tests.client.fake_cluster import FakeBroker, FakeNameServer
from tests.client.older_brokers import unserved
from tests.client.test_pop_consumer import Skewed

TOPIC = "Popped"
#: Longer than any test; an earlier redelivery means that a call made the message visible.
LONG_MS = 600_000


@pytest.fixture
async def one():
    async with Broker() as broker:
        yield broker


async def test_a_missing_topic_has_its_nearest_name_in_the_error(one):
    async with Admin(namesrv=one.namesrv) as admin:
        await admin.create_topic("Shipments", queues=1)
    async with SimpleConsumer(group="G", namesrv=one.namesrv) as consumer:
        consumer.subscribe("Shipmnets")
        with pytest.raises(RouteNotFound, match=r"Shipmnets \(did you mean Shipments\?\)"):
            await consumer.receive(await_ms=0)


async def fill(namesrv, *bodies, **fields):
    async with Producer(group="P", namesrv=namesrv) as producer:
        await producer.send_batch([Message(TOPIC, body, **fields) for body in bodies])


def simple(one, **options):
    consumer = SimpleConsumer(group="G", namesrv=one.namesrv, **options)
    consumer.subscribe(TOPIC)
    return consumer


async def received(consumer, count, **options) -> list[MessageExt]:
    """Receive until this many messages have arrived."""
    messages: list[MessageExt] = []
    while len(messages) < count:
        messages += await consumer.receive(count - len(messages), **({"invisible_ms": LONG_MS} | options))
    return messages


async def test_messages_are_received_once_until_they_are_acknowledged(one):
    """Two consumers of a group share a topic message by message. Another group also gets all messages."""
    await fill(one.namesrv, *[b"%d" % number for number in range(10)])
    async with simple(one) as first, simple(one) as second:
        messages = await received(first, 4) + await received(second, 6)
        assert sorted(message.body for message in messages) == [b"%d" % number for number in range(10)]
        await first.ack(messages[0])
        await first.ack(messages[1:])
        assert await second.receive(await_ms=0) == []


@pytest.mark.parametrize("by_ms", [1_500, -60_000])
async def test_a_clock_that_is_set_otherwise_than_the_brokers_matters_to_nothing(one, by_ms):
    await fill(one.namesrv, b"first")
    async with simple(one, clock=Skewed(by_ms)) as consumer:
        await consumer.ack(await received(consumer, 1))
        waiting = asyncio.create_task(received(consumer, 1))
        await fill(one.namesrv, b"second")
        (message,) = await waiting
        assert (message.body, message.reconsume_times) == (b"second", 0)
        await consumer.change_invisible_time(message, LONG_MS)
        await consumer.ack(message)


async def test_more_than_a_broker_gives_at_once_are_received_by_several_requests(one):
    """All are received once, and one call acknowledges them."""
    bodies = [b"%d" % number for number in range(300)]
    await fill(one.namesrv, *bodies)
    async with simple(one) as consumer:
        messages = await received(consumer, 300)
        assert sorted(message.body for message in messages) == sorted(bodies)
        await consumer.ack(messages)
        assert await consumer.receive(1024, await_ms=0) == []
        waiting = asyncio.create_task(consumer.receive(1024, await_ms=LONG_MS))
        await fill(one.namesrv, b"later")
        (later,) = await waiting
        assert later.body == b"later"


async def test_the_next_messages_are_popped_while_the_last_are_handled(one):
    """This consumer then holds them; at its stop, unreceived messages are returned without an attempt."""
    await fill(one.namesrv, *[b"%d" % number for number in range(8)])
    async with simple(one, prefetch=False) as other:
        async with simple(one) as consumer:
            for _ in range(2):
                await consumer.ack(await consumer.receive(2, invisible_ms=LONG_MS))
            theirs = await other.receive(32, invisible_ms=LONG_MS)
            assert len(theirs) == 2
            await consumer.ack(await consumer.receive(2, invisible_ms=LONG_MS))
            await other.nack(theirs[0])
            (again,) = await received(consumer, 1)
            assert again.body == theirs[0].body
            await other.ack(theirs[1])
        async with simple(one) as leaving:
            bodies = [b"last %d" % number for number in range(6)]
            await fill(one.namesrv, *bodies)
            for _ in range(2):
                messages = await received(leaving, 2)
                await leaving.ack(messages)
        returned = await received(other, 2)
        assert [message.reconsume_times for message in returned] == [0, 0]
        await other.ack([*returned, again])
        assert await other.receive(await_ms=0) == []


async def test_a_broker_that_takes_one_acknowledgement_a_request_gets_them_so(one, monkeypatch):
    """Apache's 5.0 brokers do. A message that is visible again does not affect the others."""
    unserved(monkeypatch, "batch_ack")
    tried = []

    def batch_ack(broker_name, acks, unknown=pop_calls.batch_ack):
        tried.append(broker_name)
        return unknown(broker_name, acks)

    monkeypatch.setattr(pop_calls, "batch_ack", batch_ack)
    await fill(one.namesrv, *[b"%d" % number for number in range(40)])
    async with simple(one) as consumer:
        messages = await received(consumer, 40)
        await consumer.nack(messages[0], delay_ms=0)
        (again,) = await received(consumer, 1)
        assert again.body == messages[0].body
        await consumer.ack([*messages[:20], again])
        await consumer.ack(messages[20:])
        assert await consumer.receive(await_ms=0) == []
    assert len(tried) == 1


async def test_a_broker_that_takes_no_acknowledgement_is_reported(one, monkeypatch):
    unserved(monkeypatch, "batch_ack")
    unserved(monkeypatch, "ack_message")
    await fill(one.namesrv, b"x", b"y")
    async with simple(one) as consumer:
        messages = await received(consumer, 2)
        with pytest.raises(RequestCodeNotSupported):
            await consumer.ack(messages)


async def test_what_is_popped_ahead_is_one_request(one, monkeypatch):
    """The program does not wait for it. Where it does, messages are decoded while the broker reads."""
    counts = []

    def popped(header, pop_message=pop_calls.pop_message):
        counts.append(header.lb_max_msg_nums)
        return pop_message(header)

    monkeypatch.setattr(pop_calls, "pop_message", popped)
    await fill(one.namesrv, *[b"%d" % number for number in range(900)])
    async with simple(one) as consumer:
        for _ in range(3):
            messages = await consumer.receive(300, invisible_ms=LONG_MS)
            assert len(messages) == 300
            await consumer.ack(messages)
    assert counts[:5] == [256, 44, 256, 44, 300]


async def test_a_receive_goes_on_where_only_messages_of_another_tag_were_popped_ahead(one):
    """Brokers compare hashes of tags, and these two have the same."""
    async with Producer(group="P", namesrv=one.namesrv) as producer:
        tags = ["Aa", "Aa", "Aa", "Aa", "BB", "BB", "Aa"]
        await producer.send_batch([Message(TOPIC, tag.encode(), tags=tag) for tag in tags])
    async with SimpleConsumer(group="G", namesrv=one.namesrv) as consumer:
        consumer.subscribe(TOPIC, "Aa")
        for count in (2, 2, 1):
            messages = await consumer.receive(2, invisible_ms=LONG_MS)
            assert [message.body for message in messages] == [b"Aa"] * count


async def test_one_call_acknowledges_messages_of_several_pops(one):
    """They include messages whose handle was read or changed before, and so differs from the others'."""
    await fill(one.namesrv, *[b"%d" % number for number in range(40)])
    async with simple(one) as consumer:
        messages = await received(consumer, 40)
        assert messages[0].properties["POP_CK"].split(" ")[-1] == str(messages[0].queue_offset)
        await consumer.change_invisible_time(messages[1], LONG_MS)
        await consumer.nack(messages.pop())
        await consumer.ack(messages)
        (again,) = await received(consumer, 1)
        assert again.reconsume_times == 1
        await consumer.ack([again])
        assert await consumer.receive(await_ms=0) == []


async def test_what_is_not_acknowledged_is_redelivered_after_its_time(one):
    """The redelivered message has its number of attempts and its own handle."""
    await fill(one.namesrv, b"lost")
    async with simple(one) as consumer:
        (lost,) = await received(consumer, 1, invisible_ms=1)
        (again,) = await received(consumer, 1)
        assert (again.body, again.reconsume_times) == (b"lost", 1)
        assert again.message_id == lost.message_id
        await consumer.ack([again])
        assert await consumer.receive(await_ms=0) == []


async def test_a_message_is_given_back(one):
    """It is visible at once, while others of its pop stay invisible. The old handle is no longer valid."""
    await fill(one.namesrv, b"a", b"b")
    async with simple(one) as consumer:
        messages = {each.body: each for each in await received(consumer, 2)}
        await consumer.nack(messages[b"a"])
        (again,) = await received(consumer, 1)
        assert again.body == b"a"
        await consumer.ack([again, messages[b"b"]])
        assert await consumer.receive(await_ms=0) == []


async def test_the_invisible_time_can_be_changed_again_and_again(one):
    """It is extended first, so that the message stays invisible. The message keeps its newest handle."""
    await fill(one.namesrv, b"a")
    async with simple(one) as consumer:
        (message,) = await received(consumer, 1)
        await consumer.change_invisible_time(message, 2 * LONG_MS)
        await consumer.change_invisible_time(message, LONG_MS)
        assert await consumer.receive(await_ms=0) == []
        await consumer.ack(message)


async def test_a_receive_waits_for_messages(one):
    """The broker holds it and answers when a message arrives, or with nothing when the time is up."""
    await fill(one.namesrv, b"first")
    async with simple(one) as consumer:
        await consumer.ack(await received(consumer, 1))
        assert await consumer.receive(await_ms=200) == []
        waiting = asyncio.create_task(consumer.receive(await_ms=60_000))
        await fill(one.namesrv, b"later")
        assert [message.body for message in await waiting] == [b"later"]


async def test_several_brokers_and_topics_are_queried_in_turn():
    """Any of them may have messages. An unsubscribed topic is no longer popped."""
    async with Broker(brokers=2) as two, Producer(group="P", namesrv=two.namesrv) as producer:
        for topic in ("One", "Two"):
            await producer.send(Message(topic, topic.encode()))
        async with SimpleConsumer(group="G", namesrv=two.namesrv) as consumer:
            consumer.subscribe("One")
            consumer.subscribe("Two")
            messages = await received(consumer, 2)
            assert {message.body for message in messages} == {b"One", b"Two"}
            await consumer.ack(messages)
            consumer.unsubscribe("Two")
            await producer.send(Message("Two", b"unheard"))
            assert await consumer.receive(await_ms=0) == []


@pytest.mark.parametrize("expression", ["x || y", Sql("TAGS IN ('x', 'y')")])
async def test_messages_are_selected(one, expression):
    """They are selected by tag or by properties; the consumer does not get the others."""
    async with Producer(group="P", namesrv=one.namesrv) as producer:
        for tag in "xzy":
            await producer.send(Message(TOPIC, tag.encode(), tags=tag))
    async with SimpleConsumer(group="G", namesrv=one.namesrv) as consumer:
        consumer.subscribe(TOPIC, expression)
        assert {message.body for message in await received(consumer, 2)} == {b"x", b"y"}


async def test_messages_survive_a_restart_of_the_broker(tmp_path):
    """Acknowledged messages are done; popped ones are redelivered after their time."""
    async with Broker(tmp_path) as broker, simple(broker) as consumer:
        await fill(broker.namesrv, b"done")
        await consumer.ack(await received(consumer, 1))
        await fill(broker.namesrv, b"popped")
        await received(consumer, 1, invisible_ms=1)
    async with Broker(tmp_path) as broker, simple(broker) as consumer:
        (again,) = await received(consumer, 1)
        assert again.body == b"popped"
        await consumer.ack(again)
        assert await consumer.receive(await_ms=0) == []


async def test_misuse_is_refused(one):
    """The errors say what to do instead."""
    async with SimpleConsumer(group="G", namesrv=one.namesrv) as consumer:
        with pytest.raises(LocalProtocolError, match="subscribe"):
            await consumer.receive()
        consumer.subscribe(TOPIC)
        with pytest.raises(ConfigError, match="max_messages"):
            await consumer.receive(1025)
        with pytest.raises(ConfigError, match="no subscription"):
            consumer.unsubscribe("Other")
        await fill(one.namesrv, b"x")
        (message,) = await received(consumer, 1)
        await consumer.ack(message)
        with pytest.raises(BrokerError):
            await consumer.nack(message)
        for offset in ("-1", "9" * 18):  # The bit of the last one would have been at 100 PB.
            handle, _, _ = message.properties["POP_CK"].rpartition(" ")
            message.properties["POP_CK"] = f"{handle} {offset}"
            with pytest.raises(ConfigError, match="POP_CK"):
                await consumer.ack([message])
    with pytest.raises(LocalProtocolError, match="does not run"):
        await consumer.receive()


def test_blocking_code_receives_and_acknowledges():
    """The methods have the same names."""
    with (
        Broker() as broker,
        libramq.sync.Producer(group="P", namesrv=broker.namesrv) as producer,
        libramq.sync.SimpleConsumer(group="G", namesrv=broker.namesrv) as consumer,
    ):
        producer.send(Message(TOPIC, b"x"))
        consumer.subscribe(TOPIC)
        (message,) = consumer.receive(await_ms=60_000)
        consumer.change_invisible_time(message, LONG_MS)
        consumer.nack(message)
        (again,) = consumer.receive(await_ms=60_000)
        consumer.ack([again])
        assert consumer.receive(await_ms=0) == []


async def test_a_receive_that_another_task_stops_says_so(namesrv, broker, until):
    """Nothing had come over its connection yet, which is no sign of TLS."""
    broker.silence(RequestCode.POP_MESSAGE)
    consumer = SimpleConsumer(group="G", namesrv=namesrv.address)
    consumer.subscribe("T")
    await consumer.start()
    receiving = asyncio.create_task(consumer.receive())
    await until(lambda: broker.count(RequestCode.POP_MESSAGE))
    await consumer.stop()
    with pytest.raises(LibraError, match=r"^this client was stopped$|does not run"):
        await receiving


async def test_the_route_is_asked_for_again_where_its_broker_was_silent(one, start):
    """For 30 s acknowledgements went to a master that was gone, though its slave acted for it."""
    await fill(one.namesrv, b"popped")
    async with simple(one) as consumer:
        (message,) = await received(consumer, 1)
    broker = await start(FakeBroker(message.broker_name, **{TOPIC: 1}))
    namesrv = await start(FakeNameServer(broker))
    broker.cut(RequestCode.ACK_MESSAGE, times=2)
    async with SimpleConsumer(group="G", namesrv=namesrv.address) as consumer:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await consumer.ack(message)
    assert namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 2


async def test_a_client_on_another_loop_than_its_own_is_refused(namesrv):
    """Its answers would arrive on the first one."""
    async with SimpleConsumer(group="G", namesrv=namesrv.address) as consumer:
        consumer.subscribe("T")
        async with Admin(namesrv=namesrv.address) as admin:
            for work in (consumer.receive, admin.topics, admin.stop, consumer.stop):
                with pytest.raises(LocalProtocolError, match="another event loop"):
                    await asyncio.to_thread(lambda work=work: asyncio.run(work()))


class PoppingBroker(FakeBroker):
    """A broker with one message, which it hands out at each pop, or when the test thaws it."""

    frozen = ()

    def pop_message(self, peer, request):
        if self.is_frozen:
            self.frozen += ((peer, request),)
            return
        body = record(MessageQueue(TOPIC, self.name, 0), 0, self.name.encode())
        self.answer(
            peer, request, popTime=5, invisibleTime=6, reviveQid=0, startOffsetInfo="0 0 0", body=body
        )

    def change_message_invisibletime(self, peer, request):
        self.answer(peer, request, popTime=7, invisibleTime=0, reviveQid=0)

    def thaw(self):
        self.is_frozen = False
        for waiting in self.frozen:
            self.pop_message(*waiting)


async def test_a_frozen_broker_is_passed_over_and_what_it_pops_at_last_is_given_back(start, watch):
    """A receive waited 10 s for it although others had messages, and its late answer was lost."""
    brokers = [await start(PoppingBroker(name, **{TOPIC: 1})) for name in ("frozen", "well")]
    frozen, well = brokers
    frozen.is_frozen, well.is_frozen = True, False
    namesrv = await start(FakeNameServer(*brokers))
    async with SimpleConsumer(group="G", namesrv=namesrv.address, prefetch=False) as consumer:
        consumer.subscribe(TOPIC)
        while not frozen.frozen or well.count(RequestCode.POP_MESSAGE) < 3:
            (message,) = await consumer.receive()
            assert message.body == b"well"
        assert len(frozen.frozen) == 1
        frozen.thaw()
        await watch.until(lambda: frozen.count(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        while message.body == b"well":
            (message,) = await consumer.receive()
