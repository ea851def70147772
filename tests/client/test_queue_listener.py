"""Tests of the hooks for queues, and of pausing, through the shell."""

import asyncio
import contextlib
import random

import pytest

from libramq.client import ConsumeFrom, Consumer, PushConsumer
from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling import queue_listener
from libramq.client.consuming.handling.queue_listener import QueueListener
from libramq.codes import RequestCode
from libramq.errors import LocalProtocolError
from libramq.message.queue import MessageQueue


def member(namesrv, handler=lambda messages: None, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20} | options
    consumer = PushConsumer(group="g", namesrv=namesrv.address, randomness=random.Random(1), **options)
    consumer.subscribe("T", "*", handler)
    return consumer


def of_topic(queues):
    return [queue.queue_id for queue in queues if queue.topic == "T"]


async def test_hooks_may_be_coroutines_and_are_called_in_order(namesrv, broker, watch):
    """The next one begins when the last one has ended."""
    heard = []

    async def assigned(queues):
        heard.append(("assigned", of_topic(queues)))
        await asyncio.sleep(0)
        heard.append("end")
        watch.touch()

    async def revoked(queues):
        heard.append(("revoked", of_topic(queues)))

    async with member(namesrv, on_assigned=assigned, on_revoked=revoked):
        await watch.until(lambda: "end" in heard)
    told = [each for each in heard if each == "end" or each[1]]
    assert told[:2] == [("assigned", [0, 1, 2, 3]), "end"]
    assert told[-1] == ("revoked", [0, 1, 2, 3])


async def test_a_revoked_queue_waits_for_its_hook(namesrv, broker, watch):
    """In orderly consumption, the other member gets the lock only after the hook has ended."""
    gate, revoking = asyncio.Event(), []

    async def revoked(queues):
        revoking.extend(of_topic(queues))
        watch.touch()
        await gate.wait()

    gained = []
    first = member(namesrv, orderly=True, on_revoked=revoked)
    second = member(namesrv, orderly=True, on_assigned=lambda queues: gained.extend(of_topic(queues)))
    async with first:
        await watch.until(lambda: len(broker.locks) == 5)
        async with second:
            await watch.until(lambda: len(revoking) == 2)
            asked = broker.count(RequestCode.LOCK_BATCH_MQ)
            await watch.until(lambda: broker.count(RequestCode.LOCK_BATCH_MQ) > asked + 1)
            assert not set(gained) & set(revoking)
            gate.set()
            await watch.until(lambda: broker.count(RequestCode.UNLOCK_BATCH_MQ))
            await watch.until(lambda: set(gained) == set(revoking))


async def test_a_hook_that_never_ends_does_not_keep_the_consumer(namesrv, broker, watch):
    """The stop waits for it as long as a stop may take, and a little longer."""
    ended = []

    async def revoked(queues):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    consumer = member(namesrv, on_revoked=revoked)
    await consumer.start()
    await watch.until(lambda: broker.held)
    async with asyncio.timeout(60):
        await consumer.stop(timeout_ms=100)
    assert ended == [True]


async def test_a_hook_that_fails_changes_nothing(namesrv, broker, watch):
    """The failure is logged."""
    broker.put("T", 0, b"x")
    handled = []

    def handle(messages):
        handled.extend(messages)
        watch.touch()

    def fail(queues):
        raise ZeroDivisionError

    async with member(namesrv, handle, on_assigned=fail, on_revoked=fail):
        await watch.until(lambda: handled)
    assert broker.offsets["g", "T", 0] == 1


async def test_paused_queues_deliver_nothing_and_stay_assigned(namesrv, broker, watch):
    """They deliver again when they are resumed."""
    handled = []

    def handle(messages):
        handled.extend(message.body for message in messages)
        watch.touch()

    consumer = member(namesrv, handle, heartbeat_ms=100)
    with pytest.raises(LocalProtocolError, match="does not run"):
        await consumer.pause()
    async with consumer:
        broker.put("T", 0, b"before")
        await watch.until(lambda: handled == [b"before"])
        await consumer.pause([MessageQueue("T", "a", 0)])
        broker.put("T", 0, b"paused")
        broker.put("T", 1, b"other")
        await watch.until(lambda: b"other" in handled)
        before = broker.count(RequestCode.HEART_BEAT)
        await watch.until(lambda: broker.count(RequestCode.HEART_BEAT) > before + 1)
        assert handled == [b"before", b"other"]
        assert MessageQueue("T", "a", 0) in await consumer.assignment()
        await consumer.resume()
        await watch.until(lambda: b"paused" in handled)


async def test_a_hook_may_stop_the_consumer(namesrv, broker):
    """Its on_revoked is called meanwhile, and neither waits for the other."""
    revoked = []

    async def stop(queues):
        await reader.stop(timeout_ms=600_000)

    reader = member(namesrv, on_assigned=stop, on_revoked=lambda queues: revoked.extend(of_topic(queues)))
    await reader.start()
    async with asyncio.timeout(60):
        await reader.wait_closed()
    assert revoked == [0, 1, 2, 3]
    await reader.start()  # Nothing remains of the last run.
    await reader.wait_closed()


async def test_a_hook_of_a_stop_may_stop_the_consumer_too(namesrv, broker):
    """Otherwise it would wait for itself until the timeout."""
    assigned = asyncio.Event()

    async def stop(queues):
        await reader.stop(timeout_ms=600_000)

    reader = member(namesrv, on_assigned=lambda queues: assigned.set(), on_revoked=stop)
    await reader.start()
    await assigned.wait()
    async with asyncio.timeout(60):
        await reader.stop(timeout_ms=600_000)


async def test_a_hook_that_will_not_be_cancelled_hangs_nobody(namesrv, broker, watch, monkeypatch):
    """The consumer ends without it."""
    monkeypatch.setattr(queue_listener, "CANCEL_SECONDS", 0.05)
    began, gate = asyncio.Event(), asyncio.Event()

    async def stay(queues):
        began.set()
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    reader = member(namesrv, on_assigned=stay)
    await reader.start()
    await began.wait()
    async with asyncio.timeout(60):
        await reader.stop()
    gate.set()


async def test_a_cancelled_hook_cancels_no_other():
    """A program that cancels all tasks of the loop cancels one hook."""
    tasks, revoked, was_heard = [], [], asyncio.Event()

    async def hang(queues):
        tasks.append(asyncio.current_task())
        listener.notify(fx.Revoked((MessageQueue("T", "a", 0),)))
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        await asyncio.Event().wait()

    listener = QueueListener(
        {fx.Assigned: hang, fx.Revoked: revoked.append},
        loop=asyncio.get_running_loop(),
        hook_done=lambda queues: was_heard.set(),
    )
    listener.notify(fx.Assigned((MessageQueue("T", "a", 0),)))
    async with asyncio.timeout(60):
        await was_heard.wait()
        await asyncio.wait(tasks)
    assert [of_topic(queues) for queues in revoked] == [[0]]
    await listener.close()


@pytest.mark.parametrize("orderly", [False, True])
async def test_messages_of_a_queue_wait_until_on_assigned_has_returned(
    namesrv, broker, watch, orderly, monkeypatch, caplog
):
    """As with Kafka's, a hook may seek or load what its handlers need. One that takes long is named."""
    monkeypatch.setattr(queue_listener, "SLOW_SECONDS", 0.01)
    broker.put("T", 0, b"1")
    events = []

    async def prepare(queues):
        await watch.until(lambda: broker.count(RequestCode.QUERY_CONSUMER_OFFSET) >= 4)
        while "prepare" not in caplog.text:  # noqa: ASYNC110 # No event tells of a log line.
            await asyncio.sleep(0.01)
        assert not broker.count(RequestCode.PULL_MESSAGE)
        events.append("ready")

    def handle(messages):
        events.append(messages[0].body)
        watch.touch()

    async with member(namesrv, handle, orderly=orderly, on_assigned=prepare):
        await watch.until(lambda: len(events) > 1)
    assert events == ["ready", b"1"]


async def test_a_seek_in_on_assigned_comes_before_the_first_message(namesrv, broker):
    for body in (b"1", b"2", b"3"):
        broker.put("T", 0, body)

    async def assigned(queues):
        for queue in queues:
            await consumer.assignment()
            await consumer.seek(queue, 2 if queue == MessageQueue("T", "a", 0) else 0)

    consumer = Consumer(group="g", namesrv=namesrv.address, consume_from="earliest", on_assigned=assigned)
    consumer.subscribe("T")
    async with asyncio.timeout(60), consumer:
        assert (await consumer.getone()).body == b"3"
