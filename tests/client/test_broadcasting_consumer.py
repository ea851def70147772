"""Tests of broadcasting: each member gets every message, and resumes at the offsets in its own file."""

import asyncio
import multiprocessing
import random
from types import SimpleNamespace

import pytest

from libramq import Message, Producer, sync
from libramq.client import Admin, ConsumeFrom, Consumer, PushConsumer
from libramq.clock import SystemClock
from libramq.codes import RequestCode
from libramq.errors import ConfigError
from libramq.testing import Broker


def member(namesrv, directory, handler, **options):
    consumer = PushConsumer(
        group="g",
        namesrv=namesrv.address,
        broadcasting=True,
        local_offsets=directory,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        randomness=random.Random(1),
        persist_ms=50,
        **options,
    )
    consumer.subscribe("T", "*", handler)
    return consumer


class Inbox:
    def __init__(self, watch):
        self.bodies = []
        self._watch = watch

    def __call__(self, messages):
        self.bodies += [message.body for message in messages]
        self._watch.touch()


async def test_every_member_gets_every_message(namesrv, broker, watch, tmp_path):
    """Two members on one machine have different instance names."""
    for number in range(20):
        broker.put("T", number % 4, b"%d" % number)
    one, two = Inbox(watch), Inbox(watch)
    async with member(namesrv, tmp_path, one), member(namesrv, tmp_path, two, instance_name="two"):
        await watch.until(lambda: len(one.bodies) == len(two.bodies) == 20)
    assert sorted(one.bodies) == sorted(two.bodies) == sorted(b"%d" % n for n in range(20))
    assert broker.offsets == {}
    assert broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["127.0.0.1@DEFAULT", "127.0.0.1@two"]


async def test_a_restarted_member_resumes_where_it_stopped(namesrv, broker, watch, tmp_path):
    """Its file does not depend on its process id."""
    inbox = Inbox(watch)
    for turn in range(3):
        broker.put("T", 1, b"%d" % turn)
        consumer = member(namesrv, tmp_path, inbox)
        async with consumer:
            await watch.until(lambda turn=turn: len(inbox.bodies) == turn + 1)
        assert consumer.client_id == "127.0.0.1@DEFAULT"
    assert inbox.bodies == [b"0", b"1", b"2"]


async def test_a_restarted_member_misses_nothing_of_a_topic_that_was_made_again(watch, tmp_path):
    """Its own offset was beyond the new end, and it continued there."""
    async with (
        Broker() as one,
        Admin(namesrv=one.namesrv) as admin,
        Producer(namesrv=one.namesrv) as producer,
    ):
        for prefix, count in (("old", 5), ("new", 3)):
            await admin.create_topic("T", queues=1)
            bodies = [f"{prefix} {number}".encode() for number in range(count)]
            for body in bodies:
                await producer.send(Message("T", body))
            inbox = Inbox(watch)
            async with member(SimpleNamespace(address=one.namesrv), tmp_path, inbox):
                await watch.until(lambda inbox=inbox, count=count: len(inbox.bodies) == count)
            assert inbox.bodies == bodies
            await admin.delete_topic("T")


async def test_ordered_broadcasting_needs_no_locks(namesrv, broker, watch, tmp_path):
    """No other member reads its queues."""
    for number in range(10):
        broker.put("T", 0, b"%d" % number)
    inbox = Inbox(watch)
    async with member(namesrv, tmp_path, inbox, orderly=True):
        await watch.until(lambda: len(inbox.bodies) == 10)
    assert inbox.bodies == [b"%d" % n for n in range(10)]
    assert broker.count(RequestCode.LOCK_BATCH_MQ) == 0


async def test_a_damaged_file_is_reported_before_anything_is_read(namesrv, broker, watch, tmp_path):
    consumer = member(namesrv, tmp_path, Inbox(watch))
    path = tmp_path / consumer.client_id / "g" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ConfigError, match="repair or remove"):
        await consumer.start()


def test_an_instance_name_must_be_a_valid_file_name(namesrv, tmp_path):
    """It becomes the name of a directory."""
    with pytest.raises(ConfigError, match="cannot be the name"):
        member(namesrv, tmp_path, print, instance_name="../x")


class HastyClock(SystemClock):
    """A clock that jumps at each reading, so that a member gives up at once."""

    def __init__(self):
        self.ahead_ms = 0

    def monotonic_ms(self):
        self.ahead_ms += 3_000
        return super().monotonic_ms() + self.ahead_ms


async def test_a_second_member_with_the_same_file_is_refused(namesrv, broker, watch, tmp_path):
    """Each would continue at the other's offsets, and never receive the messages it had handled."""
    options = {"broadcasting": True, "local_offsets": tmp_path, "clock": HastyClock()}
    fetching = Consumer(group="g", namesrv=namesrv.address, **options)
    fetching.subscribe("T")
    blocking = sync.Consumer(group="g", namesrv=namesrv.address, **options)
    blocking.subscribe("T")
    async with member(namesrv, tmp_path, Inbox(watch)):
        with pytest.raises(ConfigError, match="instance_name of its own"):
            await member(namesrv, tmp_path, Inbox(watch), clock=HastyClock()).start()
        with pytest.raises(ConfigError, match="instance_name of its own"):
            await fetching.start()
        with pytest.raises(ConfigError, match="instance_name of its own"):
            await asyncio.to_thread(blocking.start)
    async with fetching:  # It is refused no longer.
        pass


async def test_a_member_that_starts_while_the_one_before_it_stops_waits_for_it(
    namesrv, broker, watch, tmp_path
):
    """As a service manager restarts a program; it begins where the one before it ended."""
    one, two = Inbox(watch), Inbox(watch)
    first, second = member(namesrv, tmp_path, one), member(namesrv, tmp_path, two)
    await first.start()
    starting = asyncio.create_task(second.start())
    for number in range(8):
        broker.put("T", number % 4, b"%d" % number)
    await watch.until(lambda: len(one.bodies) == 8)
    assert not starting.done()
    await first.stop()
    await starting
    broker.put("T", 0, b"8")
    await watch.until(lambda: two.bodies)
    await second.stop()
    assert two.bodies == [b"8"]


async def test_a_start_that_is_given_up_leaves_the_file_to_the_next_one(namesrv, watch, tmp_path):
    first, second = (member(namesrv, tmp_path, Inbox(watch)) for _ in range(2))
    async with first:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await second.start()
    for consumer in (first, second):
        async with consumer:
            pass


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_does_not_keep_its_parents_file(namesrv, watch, tmp_path):
    """A member forks a worker, ends, and is started again while the worker lives."""
    context = multiprocessing.get_context("fork")
    is_over = context.Event()
    first = member(namesrv, tmp_path, Inbox(watch))
    await first.start()
    worker = context.Process(target=is_over.wait, args=(60,))
    worker.start()
    try:
        await first.stop()
        async with member(namesrv, tmp_path, Inbox(watch), clock=HastyClock()):
            pass
    finally:
        is_over.set()
        await asyncio.to_thread(worker.join, 60)
    assert worker.exitcode == 0
