"""Tests of `Consumer` against a broker that can misbehave."""

import asyncio
import random

import pytest

from libramq.client import Consumer, Sql
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, LocalProtocolError, NoPermission, RouteNotFound
from libramq.message.queue import MessageQueue

T0, T1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def consumer(namesrv, **options):
    options = {"consume_from": "earliest"} | options
    return Consumer(group="g", namesrv=namesrv.address, randomness=random.Random(1), **options)


def subscribed(namesrv, expression="*", **options):
    made = consumer(namesrv, **options)
    made.subscribe("T", expression)
    return made


async def fetched(reader, count):
    """Return the bodies of this many messages by queue. One call may bring any part of them."""
    found = {}
    async with asyncio.timeout(60):
        while sum(map(len, found.values())) < count:
            for queue, messages in (await reader.getmany(timeout_ms=60_000)).items():
                found.setdefault(queue, []).extend(message.body for message in messages)
    return found


async def test_getmany_returns_every_message_once_by_queue(namesrv, broker):
    for number in range(40):
        broker.put("T", number % 4, b"%d" % number)
    async with subscribed(namesrv) as reader:
        found = await fetched(reader, 40)
        assert await reader.getmany(timeout_ms=0) == {}
    assert found == {
        MessageQueue("T", "a", queue): [b"%d" % number for number in range(queue, 40, 4)]
        for queue in range(4)
    }
    assert broker.offsets["g", "T", 2] == 10


async def test_getmany_returns_at_most_what_was_wanted(namesrv, broker):
    for number in range(10):
        broker.put("T", 0, b"%d" % number)
    async with subscribed(namesrv) as reader:
        first = await reader.getmany(timeout_ms=60_000, max_records=3)
        second = await reader.getmany(timeout_ms=60_000, max_records=100)
        assert [m.queue_offset for m in first[T0]] == [0, 1, 2]
        assert [m.queue_offset for m in second[T0]] == [3, 4, 5, 6, 7, 8, 9]


async def test_an_async_for_waits_for_messages_and_ends_when_the_consumer_is_stopped(namesrv, broker):
    """When another task stops the consumer, the message in hand is finished and committed first."""
    reader = subscribed(namesrv)
    bodies = []
    stopping = None
    await reader.start()
    broker.put("T", 1, b"first")
    async for message in reader:
        bodies.append(message.body)
        if len(bodies) == 1:
            broker.put("T", 1, b"second")
            broker.put("T", 1, b"third")
        else:
            stopping = asyncio.create_task(reader.stop(timeout_ms=60_000))
            await asyncio.sleep(0)
    await stopping
    assert bodies == [b"first", b"second"]
    assert broker.offsets["g", "T", 1] == 2
    with pytest.raises(LocalProtocolError, match="stopped"):
        await reader.getone()


async def test_what_is_in_hand_when_the_block_fails_is_read_again(namesrv, broker):
    for body in (b"good", b"bad"):
        broker.put("T", 0, body)

    async def read():
        async with subscribed(namesrv) as reader:
            async for message in reader:
                if message.body == b"bad":
                    raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await read()
    assert broker.offsets["g", "T", 0] == 1
    async with subscribed(namesrv) as reader:
        assert (await reader.getone()).body == b"bad"
    assert broker.offsets["g", "T", 0] == 2


async def test_only_the_program_commits_without_auto_commit(namesrv, broker):
    for number in range(4):
        broker.put("T", 0, b"%d" % number)
    async with subscribed(namesrv, auto_commit=False, auto_commit_interval_ms=10) as reader:
        await fetched(reader, 4)
        await reader.getmany(timeout_ms=50)
        assert ("g", "T", 0) not in broker.offsets
        await reader.commit({T0: 2})
        assert broker.offsets["g", "T", 0] == 2
        assert await reader.committed(T0) == 2
        await reader.commit()
        assert broker.offsets["g", "T", 0] == 4
        await reader.commit({T0: 1})
        with pytest.raises(LocalProtocolError, match="not assigned"):
            await reader.commit({MessageQueue("T", "a", 9): 1})
    assert broker.offsets["g", "T", 0] == 1


async def test_a_commit_that_the_broker_does_not_take_raises(namesrv, broker):
    broker.put("T", 0, b"x")
    async with subscribed(namesrv, auto_commit=False) as reader:
        await reader.getone()
        broker.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.NO_PERMISSION)
        with pytest.raises(NoPermission):
            await reader.commit()
        await reader.commit()
    assert broker.offsets["g", "T", 0] == 1


async def test_seeking_begins_elsewhere_at_once_and_knows_the_position(namesrv, broker):
    """It does so even while the broker holds a pull that found nothing."""
    for number in range(10):
        broker.put("T", 0, b"%d" % number)
    async with consumer(namesrv) as reader:
        await reader.assign([T0])
        assert (await fetched(reader, 10))[T0][-1] == b"9"
        assert await reader.position(T0) == 10
        await reader.seek(T0, 4)
        assert await reader.position(T0) == 4
        assert await reader.lag(T0) == 6
        assert (await reader.getone()).body == b"4"
        await reader.seek_to_beginning()
        assert (await reader.getone()).body == b"0"
        await reader.seek_to_end(T0)
        assert await reader.getmany(timeout_ms=20) == {}
        await reader.seek_to_time(7)  # The fake broker's times are offsets.
        assert (await reader.getone()).body == b"7"
        with pytest.raises(ConfigError, match="0 to 10"):
            await reader.seek(T0, 11)
        with pytest.raises(LocalProtocolError, match="not assigned"):
            await reader.seek(T1, 0)


async def test_a_list_of_queues_without_those_of_an_absent_broker_is_logged(namesrv, broker, caplog):
    async with consumer(namesrv) as reader:
        await reader.queues("T")
        assert "away" not in caplog.text
        namesrv.absent = ["b"]
        assert {queue.broker_name for queue in await reader.queues("T")} == {"a"}
    assert "brokers that had a topic are away" in caplog.text


async def test_assigned_queues_can_change_and_have_their_filter(namesrv, broker):
    """Each pull has the filter: the broker knows no subscription of a consumer that is not a member."""
    broker.put("T", 0, b"zero")
    broker.put("T", 1, b"one")
    async with consumer(namesrv) as reader:
        assert await reader.queues("T") == [MessageQueue("T", "a", number) for number in range(4)]
        with pytest.raises(RouteNotFound):
            await reader.queues("Missing")
        await reader.assign([T0])
        assert (await reader.getone()).body == b"zero"
        await reader.assign([T1], Sql("a > 3"))
        assert (await reader.getone()).body == b"one"
        assert await reader.assignment() == [T1]
        assert broker.members["g"] == {}
    pulls = {int(pull.ext["queueId"]): pull.ext for pull in broker.of(RequestCode.PULL_MESSAGE)}
    assert [pulls[0][name] for name in ("subscription", "expressionType", "sysFlag")] == ["*", "TAG", "6"]
    assert [pulls[1][name] for name in ("subscription", "expressionType", "sysFlag")] == [
        "a > 3",
        "SQL92",
        "6",
    ]
    assert broker.offsets["g", "T", 0] == 1


async def test_paused_queues_return_nothing(namesrv, broker):
    broker.put("T", 0, b"zero")
    broker.put("T", 1, b"one")
    async with subscribed(namesrv) as reader:
        await reader.pause([T0])
        assert await fetched(reader, 1) == {T1: [b"one"]}
        assert await reader.getmany(timeout_ms=20) == {}
        await reader.resume()
        assert await fetched(reader, 1) == {T0: [b"zero"]}


async def test_a_broadcasting_consumer_keeps_its_offsets(namesrv, broker, tmp_path):
    for _ in range(2):
        broker.put("T", 0, b"x")
        async with subscribed(namesrv, broadcasting=True, local_offsets=tmp_path) as reader:
            assert (await reader.getone()).body == b"x"
            await reader.commit()
            committed = await reader.committed(T0)
    assert committed == 2
    assert ("g", "T", 0) not in broker.offsets


async def test_the_listener_may_seek(namesrv, broker):
    """A program that stores positions itself sets them when it gets a queue."""
    for number in range(10):
        broker.put("T", 0, b"%d" % number)

    async def assigned(queues):
        if T0 in queues:
            await reader.seek(T0, 8)

    reader = subscribed(namesrv, on_assigned=assigned)
    async with reader:
        async with asyncio.timeout(60):
            while (await reader.getone()).body != b"9":
                pass
        assert await reader.position(T0) == 10


async def test_a_fetch_in_a_hook_is_refused(namesrv, broker):
    """It would wait for messages that wait for the hook."""
    broker.put("T", 0, b"x")
    refused = []

    async def assigned(queues):
        for fetch in (reader.getmany, reader.getone, reader.__anext__):
            with pytest.raises(LocalProtocolError, match="a hook cannot fetch"):
                await fetch()
            refused.append(fetch)

    reader = subscribed(namesrv, on_assigned=assigned)
    async with asyncio.timeout(60), reader:
        assert (await reader.getone()).body == b"x"
    assert refused


async def test_one_task_fetches_at_a_time(namesrv):
    async with subscribed(namesrv) as reader:
        waiting = asyncio.create_task(reader.getone())
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="one at a time"):
            await reader.getmany()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await reader.getmany(timeout_ms=0) == {}


async def test_a_cancelled_fetch_loses_no_message(namesrv, broker):
    """It may be cancelled at any point: a call that returns nothing has taken nothing."""
    for number in range(300):
        broker.put("T", 0, b"%d" % number)
    bodies = []
    async with subscribed(namesrv) as reader:
        async with asyncio.timeout(60):
            while len(bodies) < 300:
                fetch = asyncio.create_task(reader.getone())
                await asyncio.sleep(0)
                fetch.cancel()
                await asyncio.wait([fetch])
                if not fetch.cancelled():
                    bodies.append(fetch.result().body)
    assert bodies == [b"%d" % number for number in range(300)]


async def test_a_wait_ends_when_another_task_stops_the_consumer(namesrv):
    reader = subscribed(namesrv)
    await reader.start()
    waiting = asyncio.create_task(reader.getmany(timeout_ms=600_000))
    await asyncio.sleep(0)
    await reader.stop()
    with pytest.raises(LocalProtocolError, match="stopped"):
        await waiting


async def test_who_is_kept_out_hears_why(namesrv, broker, until):
    """The consumer continues when the cause is gone."""
    broker.put("T", 0, b"x")
    broker.refuse(RequestCode.HEART_BEAT, ResponseCode.NO_PERMISSION)
    async with subscribed(namesrv, heartbeat_ms=100) as reader:
        with pytest.raises(NoPermission):
            await reader.getone()
        while True:
            try:
                assert (await reader.getone()).body == b"x"
            except NoPermission:
                await until(lambda: broker.count(RequestCode.HEART_BEAT) >= 2)
            else:
                break


async def test_what_cannot_be_is_refused(namesrv):
    reader = subscribed(namesrv)
    with pytest.raises(LocalProtocolError, match="subscribes or assigns"):
        await reader.assign([T0])
    with pytest.raises(LocalProtocolError, match="does not run"):
        await reader.getmany()
    with pytest.raises(ConfigError, match="max_records"):
        await reader.getmany(max_records=0)
    for wrong in (-1, "1000", 0.5):
        with pytest.raises(ConfigError, match="timeout_ms"):
            await reader.getmany(timeout_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="threads"):
        consumer(namesrv, threads=3)
    with pytest.raises(ConfigError, match="auto_commit"):
        consumer(namesrv, auto_commit="yes")
    assigning = consumer(namesrv)
    await assigning.assign([T0])
    with pytest.raises(LocalProtocolError, match="subscribes or assigns"):
        assigning.subscribe("T")


async def test_two_members_share_the_queues(namesrv, broker, watch):
    """At a broker without coordination each member allocates for itself, and no message is lost."""
    seen = set()
    owned = {"first": set(), "second": set()}

    def member(name):
        def assigned(queues):
            owned[name].update(queues)
            watch.touch()

        def revoked(queues):
            owned[name].difference_update(queues)
            watch.touch()

        return subscribed(namesrv, auto_commit_interval_ms=20, on_assigned=assigned, on_revoked=revoked)

    async def read(reader):
        async for message in reader:
            seen.add(message.body)
            watch.touch()

    first, second = member("first"), member("second")
    async with first, asyncio.TaskGroup() as group:
        group.create_task(read(first))
        for number in range(50):
            broker.put("T", number % 4, b"%d" % number)
        async with second:
            group.create_task(read(second))
            await watch.until(lambda: [len(queues) for queues in owned.values()] == [2, 2])
            for number in range(50, 100):
                broker.put("T", number % 4, b"%d" % number)
            await watch.until(lambda: len(seen) == 100)
        await first.stop()


async def directly(reader):
    return await reader.getmany(timeout_ms=60_000)


async def in_a_task(reader):
    return await asyncio.create_task(reader.getmany(timeout_ms=60_000))


async def in_wait_for(reader):
    return await asyncio.wait_for(reader.getmany(timeout_ms=60_000), 60)


FETCHES = pytest.mark.parametrize("fetch", [directly, in_a_task, in_wait_for])


async def test_what_a_helper_task_has_fetched_is_not_done_when_another_task_stops(namesrv, broker):
    """The program is still at work on it."""
    broker.put("T", 0, b"x")
    reader = subscribed(namesrv)
    await reader.start()
    await in_a_task(reader)
    await asyncio.create_task(reader.stop())
    assert broker.offsets.get(("g", "T", 0), 0) == 0
    async with subscribed(namesrv) as reader:
        assert (await reader.getone()).body == b"x"


@FETCHES
async def test_a_commit_and_a_stop_leave_nothing_to_read_again(namesrv, broker, fetch):
    broker.put("T", 0, b"x")
    reader = subscribed(namesrv, auto_commit_interval_ms=60_000)
    await reader.start()
    await fetch(reader)
    await reader.commit()
    await reader.stop()
    assert broker.offsets["g", "T", 0] == 1


@FETCHES
async def test_the_end_of_the_block_says_that_all_is_done(namesrv, broker, fetch):
    broker.put("T", 0, b"x")
    async with subscribed(namesrv, auto_commit_interval_ms=60_000) as reader:
        await fetch(reader)
    assert broker.offsets["g", "T", 0] == 1


@FETCHES
async def test_asking_for_more_in_any_task_says_that_all_is_done(namesrv, broker, fetch):
    broker.put("T", 0, b"x")
    reader = subscribed(namesrv, auto_commit_interval_ms=60_000)
    await reader.start()
    await fetch(reader)
    await asyncio.create_task(reader.getmany(timeout_ms=0))
    await asyncio.create_task(reader.stop())
    assert broker.offsets["g", "T", 0] == 1


async def test_who_is_cancelled_at_once_has_asked_for_more_too(namesrv, broker):
    """Messages returned before are done and are not redelivered."""
    for number in range(4):
        broker.put("T", 0, b"%d" % number)
    async with subscribed(namesrv, auto_commit_interval_ms=60_000) as reader:
        await reader.getmany(timeout_ms=60_000, max_records=2)
        more = asyncio.create_task(reader.getmany(timeout_ms=60_000))
        await asyncio.sleep(0)
        more.cancel()
        await asyncio.wait([more])
        await reader.commit()
        assert broker.offsets["g", "T", 0] == 2
        assert (await reader.getone()).body == b"2"


@FETCHES
async def test_a_commit_by_name_says_that_what_comes_before_is_done(namesrv, broker, fetch):
    """The rest is still in hand: another task's stop does not count it."""
    for number in range(3):
        broker.put("T", 0, b"%d" % number)
    reader = subscribed(namesrv)
    await reader.start()
    (messages,) = (await fetch(reader)).values()
    assert len(messages) == 3
    await asyncio.create_task(reader.commit({T0: 2}))
    await asyncio.create_task(reader.stop(timeout_ms=100))
    assert broker.offsets["g", "T", 0] == 2


async def test_a_commit_by_name_ends_the_wait_for_what_is_in_hand(namesrv, broker):
    """A stop in another task has nothing to wait for."""
    broker.put("T", 0, b"x")
    reader = subscribed(namesrv, auto_commit=False)
    await reader.start()
    await reader.getmany(timeout_ms=60_000)
    await reader.commit({T0: 1})
    async with asyncio.timeout(30):
        await asyncio.create_task(reader.stop(timeout_ms=600_000))
    assert broker.offsets["g", "T", 0] == 1


async def test_a_commit_of_another_task_leaves_what_a_running_one_works_on(namesrv, broker):
    broker.put("T", 0, b"x")
    has_fetched, may_end = asyncio.Event(), asyncio.Event()
    async with subscribed(namesrv, auto_commit_interval_ms=60_000) as reader:

        async def work():
            await reader.getone()
            has_fetched.set()
            await may_end.wait()
            await reader.commit()

        working = asyncio.create_task(work())
        await has_fetched.wait()
        await reader.commit()
        assert ("g", "T", 0) not in broker.offsets
        may_end.set()
        await working
        assert broker.offsets["g", "T", 0] == 1


@pytest.mark.parametrize("commits_meanwhile", [False, True])
async def test_a_commit_of_another_task_leaves_no_mark_on_a_running_one(namesrv, broker, commits_meanwhile):
    """When that one has ended, what it has fetched is done with the next commit, as without the first."""
    broker.put("T", 0, b"x")
    has_fetched, may_end = asyncio.Event(), asyncio.Event()
    async with subscribed(namesrv, auto_commit_interval_ms=60_000) as reader:

        async def fetch():
            await reader.getone()
            has_fetched.set()
            await may_end.wait()

        fetching = asyncio.create_task(fetch())
        await has_fetched.wait()
        if commits_meanwhile:
            await reader.commit()
        may_end.set()
        await fetching
        await reader.commit()
        assert broker.offsets["g", "T", 0] == 1


async def test_a_message_comes_once_though_the_task_that_fetched_before_ends_late(namesrv, broker):
    for number in range(3):
        broker.put("T", 0, b"%d" % number)
    has_fetched, may_end = asyncio.Event(), asyncio.Event()
    async with subscribed(namesrv, auto_commit_interval_ms=60_000) as reader:

        async def fetch():
            await reader.getone()
            has_fetched.set()
            await may_end.wait()

        fetching = asyncio.create_task(fetch())
        await has_fetched.wait()
        await reader.commit()
        assert (await reader.getone()).body == b"1"
        may_end.set()
        await fetching
        assert (await reader.getone()).body == b"2"


async def test_a_stop_waits_no_longer_for_a_task_that_ends_without_another_call(namesrv, broker):
    """Its fetched messages are redelivered."""
    broker.put("T", 0, b"x")
    has_fetched, may_end = asyncio.Event(), asyncio.Event()

    async def fetch():
        await reader.getone()
        has_fetched.set()
        await may_end.wait()

    reader = subscribed(namesrv)
    await reader.start()
    fetching = asyncio.create_task(fetch())
    await has_fetched.wait()
    stopping = asyncio.create_task(reader.stop(timeout_ms=600_000))
    await asyncio.sleep(0)
    may_end.set()
    await fetching
    async with asyncio.timeout(60):
        await stopping
    assert broker.offsets.get(("g", "T", 0)) != 1
