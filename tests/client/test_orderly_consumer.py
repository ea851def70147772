"""Tests of consumption in order through the shell: members come and go, handlers fail, locks are taken."""

import asyncio
import random
from collections import defaultdict

import pytest

from libramq.client import ConsumeFrom, PushConsumer
from libramq.codes import RequestCode
from libramq.message.queue import MessageQueue
from tests.client.fake_cluster import SENDS


class Record:
    """A handler that keeps the offsets of each queue in the order in which they were handled."""

    def __init__(self, watch, *, verdict=lambda message: None):
        self.offsets = defaultdict(list)
        self._watch = watch
        self._verdict = verdict

    @property
    def count(self):
        return sum(map(len, self.offsets.values()))

    def __call__(self, messages):
        for message in messages:
            self.offsets[message.queue_id].append(message.queue_offset)
        self._watch.touch()
        return self._verdict(messages[0])

    async def as_task(self, messages):
        await asyncio.sleep(0)
        return self(messages)


def member(namesrv, handler, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 50, "orderly": True} | options
    consumer = PushConsumer(group="g", namesrv=namesrv.address, randomness=random.Random(1), **options)
    consumer.subscribe("T", "*", handler)
    return consumer


class Member:
    """A member, and the queues that its listener knows to be assigned."""

    def __init__(self, namesrv, watch, handler, **options):
        self.owned = set()
        self._watch = watch
        self.consumer = member(
            namesrv, handler, on_assigned=self._assigned, on_revoked=self._revoked, **options
        )

    def _assigned(self, queues):
        self.owned |= {queue.queue_id for queue in queues if queue.topic == "T"}
        self._watch.touch()

    async def _revoked(self, queues):
        self.owned -= {queue.queue_id for queue in queues if queue.topic == "T"}
        self._watch.touch()


async def owned(consumer):
    return {queue.queue_id for queue in await consumer.assignment() if queue.topic == "T"}


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
@pytest.mark.parametrize("batch_size", [1, 7])
async def test_each_queue_is_handled_in_order(namesrv, broker, watch, kind, batch_size):
    """Messages arrive meanwhile, in several queues at once."""
    record = Record(watch)
    for number in range(200):
        broker.put("T", number % 4, b"%d" % number)
    handler = record if kind == "thread" else record.as_task
    async with member(namesrv, handler, batch_size=batch_size):
        await watch.until(lambda: record.count >= 200)
        for number in range(40):
            broker.put("T", number % 4, b"x")
        await watch.until(lambda: record.count == 240)
    assert record.offsets == {queue_id: list(range(60)) for queue_id in range(4)}
    assert {key: offset for key, offset in broker.offsets.items() if key[1] == "T"} == {
        ("g", "T", queue_id): 60 for queue_id in range(4)
    }
    assert broker.locks == {}


async def test_order_holds_while_members_join_and_leave(namesrv, broker, watch):
    """No message is handled twice or out of order by any member, and none waits for the next round."""
    record = Record(watch)
    done = False

    async def produce():
        number = 0
        while not done:
            broker.put("T", number % 4, b"%d" % number)
            number += 1
            await asyncio.sleep(0.001)
        return number

    producing = asyncio.create_task(produce())
    first, second, third = (Member(namesrv, watch, record) for _ in range(3))
    async with first.consumer:
        async with second.consumer:
            async with third.consumer:
                await watch.until(lambda: second.owned and third.owned)
            await watch.until(lambda: len(first.owned | second.owned) == 4)
        await watch.until(lambda: len(first.owned) == 4)
        done = True
        sent = await producing
        await watch.until(lambda: record.count >= sent)
    assert record.count == sent
    assert all(offsets == list(range(len(offsets))) for offsets in record.offsets.values())
    assert broker.locks == {}


async def test_a_failed_message_holds_its_queue_only(namesrv, broker, watch):
    """It is redelivered before those behind it, and other queues continue."""
    for number in range(4):
        broker.put("T", number % 2, b"%d" % number)
    record = Record(watch, verdict=lambda m: m.queue_id == 1 or m.reconsume_times > 1)
    async with member(namesrv, record, suspend_ms=10):
        await watch.until(lambda: record.count == 8)
    assert record.offsets == {0: [0, 0, 0, 1, 1, 1], 1: [0, 1]}
    assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 0


async def test_a_message_that_failed_too_often_is_sent_to_the_retry_topic(namesrv, broker, watch):
    """It has one attempt more than allowed, so the broker makes it a dead letter."""
    broker.topics["%RETRY%g"] = 1
    broker.put("T", 0, b"bad")
    broker.put("T", 0, b"good")
    record = Record(watch, verdict=lambda m: m.topic != "T" or m.body == b"good")
    async with member(namesrv, record, suspend_ms=10, max_reconsume_times=2):
        await watch.until(lambda: 1 in record.offsets[0])
        await watch.until(lambda: broker.count(*SENDS))
    (copy,) = broker.of(*SENDS)
    assert (copy.ext["b"], copy.ext["j"], copy.ext["l"], copy.body) == ("%RETRY%g", "3", "2", b"bad")
    # It came from the retry topic again: this broker does not bury it.
    assert record.offsets[0][:3] == [0, 0, 0]


async def test_a_lock_taken_by_another_member_loses_the_queue(namesrv, broker, watch):
    """The listener is called, and called again when the other member has unlocked the queue."""
    heard = []

    def hook(name):
        def called(queues):
            heard.append((name, tuple(queue.queue_id for queue in queues if queue.topic == "T")))
            watch.touch()

        return called

    consumer = member(namesrv, Record(watch), on_assigned=hook("assigned"), on_lost=hook("lost"))
    async with consumer:
        await watch.until(lambda: len([each for _, ids in heard for each in ids]) == 4)
        broker.locks["g", "T", 2] = "another"
        network = consumer._run._network

        consumer._run._thread.call_soon(lambda: network._event(network.core.locks.renew))
        await watch.until(lambda: ("lost", (2,)) in heard)
        assert await owned(consumer) == {0, 1, 3}
        del broker.locks["g", "T", 2]
        await watch.until(lambda: heard[-1] == ("assigned", (2,)))
        assert MessageQueue("T", "a", 2) in await consumer.assignment()
