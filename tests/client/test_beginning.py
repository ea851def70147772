"""Tests of a new group's beginning, with real brokers: no message sent after `start` is missed."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from libramq import Consumer, Message, Producer, PushConsumer, SimpleConsumer
from libramq.broker.processor.groups import group_membership
from libramq.client import Admin, beginning
from libramq.codes import ResponseCode
from libramq.message.queue import MessageQueue
from libramq.rpc import group_calls
from libramq.testing import Broker
from tests.client.fake_cluster import FakeBroker, FakeNameServer
from tests.client.older_brokers import UNSERVED

TOPIC = "Begun"
OLD = [b"old %d" % number for number in range(8)]
NEW = [b"new %d" % number for number in range(8)]


@pytest.fixture
async def one():
    async with Broker() as broker:
        yield broker


class Got:
    """The bodies that a consumer got, and a way to wait for them."""

    def __init__(self):
        self.bodies = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def note(self, messages):
        self.bodies += [message.body for message in messages]
        self._loop.call_soon_threadsafe(self._changed.set)

    async def wait(self, bodies):
        async with asyncio.timeout(60):
            while not set(bodies) <= set(self.bodies):
                self._changed.clear()
                await self._changed.wait()


async def send(namesrv, bodies, topic=TOPIC):
    """Send messages, to one queue after the other."""
    async with Producer(group="P", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


@asynccontextmanager
async def pushing(one, got, **options):
    consumer = PushConsumer(group="G", namesrv=one.namesrv, **options)
    consumer.subscribe(TOPIC, "*", got.note)
    async with consumer:
        yield


@asynccontextmanager
async def fetching(one, got, **options):
    consumer = Consumer(group="G", namesrv=one.namesrv, **options)
    consumer.subscribe(TOPIC)

    async def fetch():
        while True:
            for messages in (await consumer.getmany()).values():
                got.note(messages)

    async with consumer:
        task = asyncio.create_task(fetch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def receiving(one, got):
    consumer = SimpleConsumer(group="G", namesrv=one.namesrv, from_end=True)
    consumer.subscribe(TOPIC)

    async def receive():
        while True:
            got.note(await consumer.receive())

    async with consumer:
        task = asyncio.create_task(receive())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def broadcasting(one, got, tmp_path):
    async with pushing(one, got, broadcasting=True, local_offsets=tmp_path):
        yield


MEMBERS = {
    "push": pushing,
    "in order": lambda one, got: pushing(one, got, orderly=True),
    "pop": lambda one, got: pushing(one, got, pop=True),
    "fetch": fetching,
    "receive": receiving,
}


@pytest.mark.parametrize("knows", [True, False], ids=["ours", "as Apache's"])
@pytest.mark.parametrize("member", MEMBERS)
async def test_a_new_group_gets_what_is_sent_after_the_start_and_nothing_before(
    one, member, knows, monkeypatch
):
    """It got all messages of the young queues, as a group of Apache's clients does."""
    if not knows:
        call = group_calls.begin_topic
        monkeypatch.setattr(beginning, "begin_topic", lambda *a, **b: replace(call(*a, **b), code=UNSERVED))
    await send(one.namesrv, OLD)
    got = Got()
    async with MEMBERS[member](one, got):
        await send(one.namesrv, NEW)
        await got.wait(NEW)
    assert sorted(got.bodies) == NEW


async def test_a_member_that_broadcasts_gets_what_is_sent_after_the_start(one, tmp_path):
    """Its offsets are in its file when `start` returns."""
    await send(one.namesrv, OLD)
    got = Got()
    async with broadcasting(one, got, tmp_path):
        await send(one.namesrv, NEW)
        await got.wait(NEW)
    assert sorted(got.bodies) == NEW


def test_a_member_that_broadcasts_and_has_all_offsets_writes_no_file():
    """Each start wrote all of them again."""
    queue, begun = MessageQueue(TOPIC, "a", 0), []
    steps = beginning.GroupBeginning("G", None, None).begin_locally(
        [TOPIC],
        [beginning.QueuesAtBroker(TOPIC, "a", "127.0.0.1:1", (queue,))],
        70_000,
        read={queue: 3}.get,
        write=lambda offsets: pytest.fail(f"wrote {offsets}"),
    )
    beginning.take_steps(steps, None, begun.append)
    assert begun == [beginning.Begun({TOPIC: 10_000})]


async def test_a_group_that_has_begun_continues_there(one):
    """A first member's start counts for later members even if it received nothing."""
    await send(one.namesrv, OLD)
    async with pushing(one, Got()):
        pass
    await send(one.namesrv, NEW)
    got = Got()
    async with pushing(one, got), pushing(one, got):
        await got.wait(NEW)
    assert sorted(got.bodies) == NEW


async def test_nothing_is_missed_of_topics_and_queues_that_are_made_after_the_start(one):
    """A topic that came later, and queues that were added, are read from their first message, under load."""
    got = Got()
    sent = []

    async def load(producer):
        while True:
            body = b"%d" % len(sent)
            await producer.send(Message(TOPIC, body))
            sent.append(body)

    async with pushing(one, got), Producer(group="P", namesrv=one.namesrv) as producer:
        await send(one.namesrv, [b"first"])
        task = asyncio.create_task(load(producer))
        async with Admin(namesrv=one.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=16)
        while len(sent) < 200:
            await asyncio.sleep(0)
            assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        await send(one.namesrv, NEW)  # By a producer that knows all queues.
        await got.wait([b"first", *sent, *NEW])


async def test_a_broker_that_was_away_is_read_from_when_the_group_began(one, tmp_path, monkeypatch):
    """Its earlier messages are old; messages it receives before a member reaches it are not missed."""
    for module in (group_membership, beginning):
        monkeypatch.setattr(module, "LEEWAY_MS", 0)
    away = Broker(tmp_path, namesrv_addr=one.namesrv, broker_name="away")
    async with away, Admin(namesrv=one.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4)
        await send(one.namesrv, OLD)
    got = Got()
    async with pushing(one, got), away:
        async with Producer(group="P", namesrv=one.namesrv) as producer:
            for queue_id in range(4):
                body = b"to it %d" % queue_id
                await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, "away", queue_id))
        await got.wait([b"to it %d" % queue_id for queue_id in range(4)])
    assert len(got.bodies) == 4


@pytest.mark.parametrize("member", ["push", "pop"])
async def test_a_broker_knows_when_a_group_began_after_a_restart(tmp_path, monkeypatch, member):
    """A group's members were gone and its first broker had restarted when another one came back."""
    for module in (group_membership, beginning):
        monkeypatch.setattr(module, "LEEWAY_MS", 0)

    def away(one):
        return Broker(tmp_path / "away", namesrv_addr=one.namesrv, broker_name="away")

    async with Broker(tmp_path / "one") as one:
        async with away(one), Admin(namesrv=one.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
            await send(one.namesrv, OLD)
        async with MEMBERS[member](one, Got()):
            pass
    got = Got()
    async with Broker(tmp_path / "one") as one, away(one):
        await send(one.namesrv, NEW)
        async with MEMBERS[member](one, got):
            await got.wait(NEW)
    assert sorted(got.bodies) == NEW


class GuardedBroker(FakeBroker):
    """A broker like Apache's whose access control permits members neither searches nor the ends of queues."""

    def query_consumer_offset(self, peer, request):
        if request.ext["setZeroIfNotFound"] == "true":
            self.answer(peer, request, offset=0)
        else:
            super().query_consumer_offset(peer, request)

    def get_max_offset(self, peer, request):
        self.answer(peer, request, ResponseCode.NO_PERMISSION)

    search_offset_by_timestamp = get_max_offset


async def test_a_member_that_may_not_ask_for_ends_reads_young_queues_as_apaches_do(start):
    """Its requests were refused for ever, and it read nothing."""
    broker = await start(GuardedBroker("a", **{TOPIC: 1}))
    namesrv = await start(FakeNameServer(broker))
    broker.put(TOPIC, 0, b"old")
    got = Got()
    consumer = PushConsumer(group="G", namesrv=namesrv.address)
    consumer.subscribe(TOPIC, "*", got.note)
    async with consumer:
        await got.wait([b"old"])


class SleepyBroker(FakeBroker):
    """A broker like Apache's that leaves the first request for a queue's end without an answer."""

    slept = False

    def get_max_offset(self, peer, request):
        if self.slept:
            super().get_max_offset(peer, request)
        self.slept = True


async def test_apaches_broker_is_asked_again_that_does_not_answer_in_time(start):
    """After a pause of its JVM, a new group that pops got the old messages of a queue."""
    broker = await start(SleepyBroker("a", **{TOPIC: 4}))
    namesrv = await start(FakeNameServer(broker))
    for queue_id in range(4):
        broker.put(TOPIC, queue_id, b"old")
    consumer = PushConsumer(group="G", namesrv=namesrv.address, pop=True)
    consumer.subscribe(TOPIC, "*", lambda messages: None)
    async with consumer:
        begun = {key[2]: offset for key, offset in broker.offsets.items() if key[1] == TOPIC}
    assert begun == dict.fromkeys(range(4), 1)


class ForgetfulBroker(FakeBroker):
    """A broker like Apache's: of a topic's first commits that arrive together it keeps the last one."""

    def __init__(self, *names, **topics):
        super().__init__(*names, **topics)
        self._topics = set()

    def update_consumer_offset(self, peer, request):
        topic = request.ext["topic"]
        if topic in self._topics:
            super().update_consumer_offset(peer, request)
        else:
            self.offsets.clear()
            super().update_consumer_offset(peer, request)
            asyncio.get_running_loop().call_soon(self._topics.add, topic)


async def test_the_first_commits_of_a_topic_reach_apaches_broker_one_after_the_other(start):
    """It lost some of the commits that arrived together, and a new group got old messages of these queues."""
    broker = await start(ForgetfulBroker("a", **{TOPIC: 8}))
    namesrv = await start(FakeNameServer(broker))
    for queue_id in range(8):
        broker.put(TOPIC, queue_id, b"old")
    consumer = PushConsumer(group="G", namesrv=namesrv.address)
    consumer.subscribe(TOPIC, "*", lambda messages: None)
    async with consumer:
        begun = {key[2]: offset for key, offset in broker.offsets.items() if key[1] == TOPIC}
    assert begun == dict.fromkeys(range(8), 1)
