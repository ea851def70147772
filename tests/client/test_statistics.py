"""`statistics()`: a client's counts since its start, and its messages in hand."""

import asyncio
import dataclasses
import os
import threading

import pytest

import libramq.sync
from libramq import Consumer, Message, MessageIllegal, Producer, PushConsumer, Reject, SimpleConsumer
from libramq.client import Admin, ConsumerStatistics, ProducerStatistics, SimpleConsumerStatistics
from libramq.testing import Broker
from tests.transport.loops import until_asked

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def namesrv():
    with Broker() as broker:
        yield broker.namesrv


async def fill(namesrv, topic, *bodies):
    async with Producer(namesrv=namesrv) as producer:
        await producer.send_batch([Message(topic, body) for body in bodies])


async def test_a_producer_counts_what_was_stored_and_what_was_not(namesrv):
    async with Producer(namesrv=namesrv, send_timeout_ms=60_000, body_bytes_max=8 * MIB) as producer:
        assert await producer.statistics() == ProducerStatistics()
        await producer.send(Message("Counted", b"1"))
        for number in range(10):
            producer.send_nowait(Message("Counted", b"%d" % number))
        waiting = await producer.statistics()
        assert waiting.sent == 1
        assert waiting.buffered_bytes > 10
        await producer.flush()
        with pytest.raises(MessageIllegal):  # The broker's limit is 4 MiB.
            await producer.send(Message("Counted", os.urandom(5 * MIB)))
        found = await producer.statistics()
        assert (found.sent, found.failed, found.in_flight, found.buffered_bytes) == (11, 1, 0, 0)
        assert 2 < found.requests <= 12
    assert (await producer.statistics()).sent == 11
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.sent = 0


@pytest.mark.parametrize("pop", [False, True], ids=["queues", "pop"])
async def test_a_push_consumer_counts_what_its_handlers_did(namesrv, pop):
    topic, may_end, running = f"Pushed{pop}", asyncio.Event(), []
    await fill(namesrv, topic, b"good", b"bad", b"dead", b"slow")

    async def handle(messages):
        body = messages[0].body
        if body == b"bad" and not messages[0].reconsume_times:
            raise ValueError(body)
        if body == b"dead":
            return Reject()
        if body == b"slow":
            running.append(body)
            await may_end.wait()
        return None

    consumer = PushConsumer(group=f"pushed-{pop}", namesrv=namesrv, consume_from="earliest", pop=pop)
    consumer.subscribe(topic, "*", handle)
    assert await consumer.statistics() == ConsumerStatistics()
    async with consumer:

        async def others_are_done():
            now = await consumer.statistics()
            done = (now.handled, now.retried, now.rejected, now.in_flight) == (1, 1, 1, 1)
            return running and done and not now.waiting  # Those sent back wait until the broker has them.

        await until_asked(others_are_done)
        now = await consumer.statistics()
        assert now.handler_calls == 3
        if pop:
            assert (now.queues, now.lag) == (0, None)
        else:
            assert now.queues >= 4
            assert now.lag == 1  # The slow one.
        may_end.set()

        async def slow_is_done():
            now = await consumer.statistics()
            return now.handled == 2 and not now.in_flight

        await until_asked(slow_is_done)
    after = await consumer.statistics()
    assert (after.queues, after.in_flight, after.lag) == (0, 0, None)
    assert after.handled >= 2


async def test_an_unknown_lag_is_none_and_not_zero(namesrv):
    """An answer of the broker tells the end of a queue; before it nothing is known."""
    consumer = Consumer(group="unknown", namesrv=namesrv)
    async with consumer:
        now = await consumer.statistics()
    assert (now.lag, now.queues, now.queues_without_lag) == (None, 0, 0)


async def test_a_consumer_counts_what_the_program_has_taken(namesrv):
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("Fetched", queues=1)  # Of an idle queue no pull shows the end soon.
    await fill(namesrv, "Fetched", *(b"%d" % number for number in range(10)))
    async with Consumer(group="fetched", namesrv=namesrv, consume_from="earliest") as consumer:
        await consumer.assign(await consumer.queues("Fetched"))
        for _ in range(3):
            await consumer.getone()
        now = await consumer.statistics()
        assert (now.in_flight, now.handled, now.waiting, now.handler_ms) == (1, 2, 7, 0)
        assert now.lag == 8
        await consumer.getmany()
        await consumer.commit()

        async def all_are_done():
            now = await consumer.statistics()
            return (now.in_flight, now.handled, now.lag, now.queues_without_lag) == (0, 10, 0, 0)

        await until_asked(all_are_done)


async def test_a_simple_consumer_counts_what_it_has_received(namesrv):
    await fill(namesrv, "Received", b"1", b"2", b"3")
    async with SimpleConsumer(group="simple", namesrv=namesrv) as consumer:
        consumer.subscribe("Received")
        got = []
        while len(got) < 3:
            got += await consumer.receive(3 - len(got), invisible_ms=600_000)
        await consumer.ack(got[0])
        await consumer.nack(got[1], delay_ms=600_000)
        found = await consumer.statistics()
    assert found == SimpleConsumerStatistics(received=3, acknowledged=1, returned=1)
    assert found.in_flight == 1


async def test_messages_acknowledged_twice_leave_none_in_flight(namesrv):
    await fill(namesrv, "Twice", b"1")
    async with SimpleConsumer(group="twice", namesrv=namesrv) as consumer:
        consumer.subscribe("Twice")
        got = await consumer.receive(1, invisible_ms=600_000)
        await consumer.ack(got)
        await consumer.ack(got)
        assert (await consumer.statistics()).in_flight == 0


def test_blocking_clients_have_them_before_their_start_and_after_their_end(namesrv):
    done = threading.Event()
    producer = libramq.sync.Producer(namesrv=namesrv)
    assert producer.statistics() == ProducerStatistics()
    with producer:
        producer.send(Message("BlockingCounts", b"1"))
        assert producer.statistics().sent == 1
    assert producer.statistics().sent == 1
    consumer = libramq.sync.PushConsumer(group="blocking", namesrv=namesrv, consume_from="earliest")
    consumer.subscribe("BlockingCounts", "*", lambda messages: done.set())
    with consumer:
        assert done.wait(30)
    assert consumer.statistics().handled == 1
    assert consumer.statistics().handler_calls == 1
    with libramq.sync.SimpleConsumer(group="bs", namesrv=namesrv) as simple:
        assert simple.statistics() == SimpleConsumerStatistics()


async def test_blocking_clients_have_them_before_their_start_where_a_loop_runs():
    """As in a notebook."""
    for make in (libramq.sync.Consumer, libramq.sync.PushConsumer):
        consumer = make(group="notebook", namesrv="127.0.0.1:1")
        assert consumer.statistics() == ConsumerStatistics()
        assert consumer.assignment() == []
    simple = libramq.sync.SimpleConsumer(group="notebook", namesrv="127.0.0.1:1")
    assert simple.statistics() == SimpleConsumerStatistics()
    assert libramq.sync.Producer(namesrv="127.0.0.1:1").statistics() == ProducerStatistics()
