"""Tests of the push consumer as a member of a coordinated group, against our own broker and name server."""

import asyncio
import random
import signal
import sys
import threading
from collections import Counter, defaultdict

import pytest

from libramq.admin.groups import group_rebalances
from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.cli.groups.history import timeline
from libramq.client import Admin, ConsumeFrom, Producer, PushConsumer, network_thread
from libramq.client.consuming.membership import membership
from libramq.clock import SystemClock
from libramq.errors import MemberReplaced, UnknownMember
from libramq.filesystem import LocalFileSystem
from libramq.groups.rebalance_history import Cause
from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.nameserver import NameServer
from libramq.rpc import broker_calls
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.brokers import heartbeat
from tests.interop.ports import free_broker_port
from tests.transport.loops import until, until_asked

QUEUES = 8


class Home:
    """A name server, a broker that can be restarted, and a producer."""

    def __init__(self, root, watch):
        self._root = root
        self._watch = watch
        self._port = free_broker_port()
        self.sent = 0

    async def __aenter__(self):
        self.namesrv = NameServer("127.0.0.1", 0)
        await self.namesrv.__aenter__()
        await self.start_broker()
        async with Admin(namesrv=self.namesrv.address) as admin:
            await admin.create_topic("T", queues=QUEUES)
        self.producer = Producer(group="p", namesrv=self.namesrv.address)
        await self.producer.start()
        self.queues = [MessageQueue("T", "broker-a", number) for number in range(QUEUES)]
        return self

    async def __aexit__(self, *error):
        await self.producer.stop()
        await self.broker.stop()
        await self.namesrv.__aexit__(*error)

    async def start_broker(self):
        config = BrokerConfig(
            store_path=str(self._root), listen_port=self._port, namesrv_addr=self.namesrv.address
        )
        self.broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
        await self.broker.start()

    @property
    def address(self):
        return self.broker.broker.config.address

    async def send(self, count):
        """Send this many messages to each queue, numbered in the order of their queue."""
        for _ in range(count):
            for queue in self.queues:
                await self.producer.send(Message("T", b"%d" % self.sent), queue=queue)
                self.sent += 1

    def committed(self, group="g"):
        return {
            queue.queue_id: self.broker.broker.offsets.first_to_read(group, "T", queue.queue_id)
            for queue in self.queues
        }


class Reader:
    """A member with its inbox and the calls of its listener."""

    def __init__(self, home, watch, seen, **options):
        options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "session_ms": 10_000} | options
        self.events = defaultdict(list)
        self.bodies = []
        self.order = defaultdict(list)
        self._seen = seen
        self._watch = watch
        self.block = None
        self.waiting = 0
        self.consumer = PushConsumer(
            group="g",
            namesrv=home.namesrv.address,
            randomness=random.Random(1),
            on_assigned=lambda queues: self._heard("assigned", queues),
            on_revoked=lambda queues: self._heard("revoked", queues),
            on_lost=lambda queues: self._heard("lost", queues),
            **options,
        )
        self.consumer.subscribe("T", "*", self._handle)
        self.queues = set()

    async def _handle(self, messages):
        if self.block is not None:
            self.waiting += 1
            self._watch.touch()
            await self.block.wait()
        for message in messages:
            self.bodies.append(message.body)
            self.order[message.queue_id].append(message.queue_offset)
            self._seen[message.body] += 1
        self._watch.touch()

    def _heard(self, what, queues):
        of_topic = {queue for queue in queues if queue.topic == "T"}
        self.events[what].append(of_topic)
        if what == "assigned":
            self.queues |= of_topic
        else:
            self.queues -= of_topic
        self._watch.touch()


@pytest.fixture
async def home(tmp_path, watch):
    async with Home(tmp_path, watch) as home:
        yield home


@pytest.fixture
async def group(home, watch):
    """Return a function that starts members. group.seen counts how often each message was handled."""

    class Group:
        def __init__(self):
            self.seen = Counter()
            self.readers = []

        async def join(self, **options):
            reader = Reader(home, watch, self.seen, **options)
            self.readers.append(reader)
            await reader.consumer.start()
            return reader

        async def shared(self, *readers):
            """Wait until these members have all queues, the same number each."""
            await watch.until(
                lambda: (
                    sum(len(each.queues) for each in readers) == QUEUES
                    and {len(each.queues) for each in readers} == {QUEUES // len(readers)}
                )
            )

        async def handled(self):
            await watch.until(lambda: len(self.seen) == home.sent)

    group = Group()
    yield group
    for reader in group.readers:
        await reader.consumer.stop(timeout_ms=1_000)


def repeated(seen):
    return {body: count for body, count in seen.items() if count > 1}


async def test_members_join_and_leave_and_every_message_is_handled_once(home, group):
    """Messages arrive meanwhile. Each queue moves at most once, to its final owner."""
    sending = asyncio.create_task(home.send(40))
    one = await group.join()
    await group.shared(one)
    two = await group.join()
    await group.shared(one, two)
    assert sum(len(each) for each in two.events["assigned"]) == QUEUES // 2
    assert sum(len(each) for each in one.events["revoked"]) == QUEUES // 2
    three, four = await group.join(), await group.join()
    await group.shared(one, two, three, four)
    await two.consumer.stop()
    await four.consumer.stop()
    await group.shared(one, three)
    await sending
    await group.handled()
    assert repeated(group.seen) == {}
    assert all(not reader.events["lost"] for reader in group.readers)
    await one.consumer.stop()
    await three.consumer.stop()
    assert home.committed() == dict.fromkeys(range(QUEUES), 40)


async def test_order_is_kept_without_locks(home, group):
    """A queue's messages are handled one after the other, also from one owner to the next."""
    sending = asyncio.create_task(home.send(30))
    one = await group.join(orderly=True)
    two = await group.join(orderly=True)
    await group.shared(one, two)
    await sending
    await group.handled()
    assert repeated(group.seen) == {}
    for number in range(QUEUES):
        orders = [reader.order[number] for reader in (one, two) if reader.order[number]]
        assert orders in (sorted(orders), sorted(orders, reverse=True))
        assert all(each == sorted(each) for each in orders)
        assert sorted(offset for each in orders for offset in each) == list(range(30))


async def test_a_restarted_static_member_keeps_its_queues(home, group):
    """No queue moves, and no message is handled twice."""
    one = await group.join(instance_id="one")
    two = await group.join(instance_id="two")
    await group.shared(one, two)
    before = set(two.queues)
    await two.consumer.stop()
    await home.send(5)
    again = await group.join(instance_id="two")
    await group.shared(one, again)
    assert again.queues == before
    assert len(one.events["assigned"]) + len(one.events["revoked"]) <= 2
    await group.handled()
    assert repeated(group.seen) == {}

    async def with_restart():
        """Return the last rebalance: the joins before, which have not settled, and the restart."""
        return (await asyncio.to_thread(group_rebalances, home.namesrv.address, "g", last=1))[0]

    async def is_recorded():  # When every queue is read again.
        return Cause("static_member_restarted", "two") in (await with_restart()).causes

    await until_asked(is_recorded)
    found = await with_restart()
    assert found.worst_pause_ms > 0
    assert "static_member_restarted two" in timeline(found)[0]


async def test_a_replaced_static_member_reports_it_and_returns_later(home, group, watch, monkeypatch):
    """Its hook and `wait_closed` get the error; it resumes when the other member is gone."""
    monkeypatch.setattr(membership, "NAME_AGAIN_MS", 100)
    errors = []
    one = await group.join(
        instance_id="one", session_ms=1_000, on_error=lambda error: (errors.append(error), watch.touch())
    )
    await group.shared(one)
    closed = asyncio.create_task(one.consumer.wait_closed())
    two = await group.join(instance_id="one", session_ms=1_000)
    await watch.until(lambda: errors)
    with pytest.raises(MemberReplaced, match="instance_id one"):
        await closed
    with pytest.raises(MemberReplaced):
        await one.consumer.wait_closed()
    await group.shared(two)
    assert one.queues == set()
    await two.consumer.stop()
    await group.shared(one)
    await home.send(2)
    await group.handled()
    assert [type(error) for error in errors] == [MemberReplaced]
    closed = asyncio.create_task(one.consumer.wait_closed())
    await one.consumer.stop()
    await closed


async def test_an_operator_removes_a_member_that_is_alive(home, group):
    """It joins again with the queues that it still holds, and every message is handled."""
    one, two = await group.join(), await group.join(instance_id="second")
    await group.shared(one, two)
    coordination = home.broker.broker.members.coordination
    before = coordination.group("g").epoch
    async with Admin(namesrv=home.namesrv.address) as admin:
        await admin.remove_member("g", "second", operator="olga")
        with pytest.raises(UnknownMember, match="no member 'third'; it has "):
            await admin.remove_member("g", "third")
    await until(lambda: coordination.group("g").epoch > before and len(coordination.group("g").members) == 2)
    await until(lambda: coordination.group("g").is_settled)
    await group.shared(one, two)
    await home.send(3)
    await group.handled()


async def test_a_broker_that_restarts_moves_nothing(home, group, watch):
    """Coordinator and fences continue where they were."""
    one = await group.join(session_ms=10_000)
    two = await group.join(session_ms=10_000)
    await group.shared(one, two)
    await home.send(3)
    await group.handled()
    before = set(one.queues), set(two.queues)
    heard = len(one.events["revoked"]), len(two.events["revoked"])
    await home.broker.stop()
    await home.start_broker()
    await home.send(3)
    await group.handled()
    assert (one.queues, two.queues) == before
    assert (len(one.events["revoked"]), len(two.events["revoked"])) == heard
    assert one.events["lost"] == two.events["lost"] == []


async def test_a_member_that_wakes_up_after_its_session_handles_and_commits_nothing(
    home, group, watch, monkeypatch
):
    """Others have read its queues meanwhile. Only messages already in its handlers are handled twice."""
    one = await group.join(session_ms=1_000)
    # As in another process: the first one's network thread keeps running.
    monkeypatch.setattr(network_thread, "_shared", network_thread.SharedThread())
    two = await group.join(session_ms=1_000, threads=1)
    await group.shared(one, two)
    two.block = asyncio.Event()
    await home.send(3)
    await watch.until(lambda: two.waiting and len(one.bodies) == 3 * QUEUES // 2)
    asleep = threading.Event()
    two.consumer._run._thread.call_soon(asleep.wait)
    await group.handled()
    two.block.set()
    await watch.until(lambda: two.bodies)
    asleep.set()
    await watch.until(lambda: two.events["lost"])
    await group.shared(one, two)
    assert len(two.bodies) == 1
    assert repeated(group.seen) == {two.bodies[0]: 2}
    assert home.committed() == dict.fromkeys(range(QUEUES), 3)


async def test_a_member_whose_handler_runs_too_long_gives_up_its_queues_to_others(home, group, watch):
    """Alone it keeps them; it is given its share when its handler is done."""
    one = await group.join(max_processing_ms=300)
    await group.shared(one)
    one.block = asyncio.Event()
    await home.send(1)
    await watch.until(lambda: one.waiting == QUEUES)
    two = await group.join()
    await watch.until(lambda: {q for queues in one.events["revoked"] for q in queues} == set(home.queues))
    one.block.set()
    await group.shared(one, two)
    assert not one.events["lost"]


async def test_members_allocate_while_a_stock_member_is_present(home, group, watch):
    """When it is gone, the coordinator allocates again. No message is lost or delivered twice."""
    one = await group.join(rebalance_ms=500)
    two = await group.join(rebalance_ms=500)
    await group.shared(one, two)
    await home.send(1)  # Once they are handled, the queues are open.
    await group.handled()
    stock = AsyncioRemotes(SystemClock().monotonic_ms)
    call = broker_calls.heartbeat(heartbeat("stock", "g"))
    call.result(await stock.call(home.address, call.command()), where="broker")
    # Both: where one alone has, it may take what the other holds under the coordinator, which then loses it.
    await watch.until(lambda: max(len(one.queues), len(two.queues)) < QUEUES // 2)
    await stock.aclose()
    await group.shared(one, two)
    await home.send(2)
    await group.handled()
    assert one.events["lost"] == two.events["lost"] == []


MEMBER = """
import sys, time
from libramq.client import ConsumeFrom
from libramq.sync import PushConsumer

def handle(messages):
    for message in messages:
        print(message.body.decode(), flush=True)

consumer = PushConsumer(
    group="g", namesrv=sys.argv[1], consume_from=ConsumeFrom.FIRST_OFFSET, session_ms=60_000
)
consumer.subscribe("T", "*", handle)
consumer.start()
sys.stdin.read()
"""


async def test_queues_of_a_killed_member_are_reassigned_before_its_session_ends(home, group, watch):
    """Its handled messages are not redelivered, except for at most the last tenth of a second."""
    one = await group.join(session_ms=60_000)
    await group.shared(one)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, home.namesrv.address,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await watch.until(lambda: len(one.queues) == QUEUES // 2)
        await home.send(2)
        theirs = [(await process.stdout.readline()).strip() for _ in range(QUEUES)]
        others = {q.queue_id for q in home.queues if q not in one.queues}
        async with asyncio.timeout(60):
            await until(lambda: all(home.committed()[number] == 2 for number in others))
    finally:
        process.kill()
        await process.wait()
    await group.shared(one)
    await home.send(1)
    await watch.until(lambda: len(one.bodies) == 3 * QUEUES - len(theirs))
    assert not set(one.bodies) & set(theirs)
    assert repeated(group.seen) == {}


FROZEN_MEMBER = """
import sys
from libramq.client import ConsumeFrom
from libramq.sync import PushConsumer

consumer = PushConsumer(
    group="g", namesrv=sys.argv[1], consume_from=ConsumeFrom.FIRST_OFFSET, session_ms=1_000,
    on_error=lambda error: print(type(error).__name__, flush=True),
)
consumer.subscribe("T", "*", lambda messages: print(messages[0].body.decode(), flush=True))
consumer.start()
sys.stdin.read()
"""


async def test_a_member_that_stood_still_reports_the_end_of_its_lease_once(home):
    """The answer waiting in its socket renews nothing, and does not end the problem."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FROZEN_MEMBER, home.namesrv.address,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await home.send(1)
        before = [(await process.stdout.readline()).strip() for _ in range(QUEUES)]
        process.send_signal(signal.SIGSTOP)
        coordination = home.broker.broker.members.coordination
        async with asyncio.timeout(60):
            await until(lambda: not coordination.group("g").members)
        process.send_signal(signal.SIGCONT)
        assert (await process.stdout.readline()).strip() == b"RequestTimeout"
        await home.send(1)
        after = [(await process.stdout.readline()).strip() for _ in range(QUEUES)]
    finally:
        process.kill()
        await process.wait()
    assert b"RequestTimeout" not in before + after
