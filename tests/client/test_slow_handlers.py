"""Handlers that exceed max_processing_ms, at a real broker: their results, and other members' messages."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from libramq import Message, Producer, PushConsumer
from libramq.client import Admin
from libramq.errors import HandlerTooSlow
from libramq.message.queue import MessageQueue
from libramq.testing import Broker

LIMIT_MS = 200
#: A first redelivery comes after the third level.
DELAYS = "1s 1s 1s 1s 1s"


class Members:
    """The members of a group whose topic has one queue. calls: member, body and attempts, in order."""

    def __init__(self, namesrv, watch, stack):
        self.namesrv = namesrv
        self._watch = watch
        self._stack = stack
        self.calls = []
        self.errors = []
        self.hangs = {}

    async def send(self, body, broker_name="broker-a"):
        async with Producer(group="p", namesrv=self.namesrv) as producer:
            await producer.send(Message("T", body), queue=MessageQueue("T", broker_name, 0))

    async def join(self, name, *, hangs=False, result=None, **options):
        """Start a member. hangs: its handlers wait until `let_go`."""
        self.hangs[name] = threading.Event()
        if not hangs:
            self.hangs[name].set()

        def handle(messages):
            self.calls += [(name, each.body, each.reconsume_times) for each in messages]
            self._watch.touch()
            self.hangs[name].wait()
            return result

        def on_error(error):
            self.errors.append(error)
            self._watch.touch()

        options = {"consume_from": "earliest", "suspend_ms": 10, "max_processing_ms": LIMIT_MS} | options
        member = PushConsumer(
            group="g", namesrv=self.namesrv, instance_name=name, on_error=on_error, **options
        )
        member.subscribe("T", "*", handle)
        await self._stack.enter_async_context(member)
        self._stack.callback(self.let_go, name)
        return member

    def let_go(self, name):
        self.hangs[name].set()

    def was_reported(self):
        return any(isinstance(error, HandlerTooSlow) for error in self.errors)

    def of(self, name):
        return [call for call in self.calls if call[0] == name]


@pytest.fixture(params=[1])
async def members(request, watch):
    async with Broker(message_delay_level=DELAYS, brokers=request.param) as broker:
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic("T", queues=1)
        async with AsyncExitStack() as stack:
            yield Members(broker.namesrv, watch, stack)


async def test_a_success_counts_while_nobody_else_has_the_queue(members, until, caplog):
    """This holds however late it is. The log names the limit and its option."""
    await members.send(b"x")
    await members.join("one", hangs=True)
    await until(members.was_reported)
    assert f"max_processing_ms={LIMIT_MS}" in caplog.text
    assert "PushConsumer(max_processing_ms=…)" in caplog.text
    members.let_go("one")
    await members.send(b"y")
    await until(lambda: len(members.calls) == 2)
    await members.join("two")
    await members.send(b"z")
    await until(lambda: len(members.calls) == 3)
    assert [call[1:] for call in members.calls] == [(b"x", 0), (b"y", 0), (b"z", 0)]


async def test_another_member_gets_the_message_with_an_attempt_counted(members, until):
    """The queue's offset passes it, so what comes after it is not redelivered."""
    await members.send(b"x")
    await members.join("one", hangs=True)
    await until(members.was_reported)
    await members.send(b"y")
    await until(lambda: len(members.of("one")) == 2)
    await members.join("two")
    await until(lambda: len(members.of("two")) == 2)
    assert sorted(members.of("two")) == [("two", b"x", 1), ("two", b"y", 1)]
    members.let_go("one")
    await members.send(b"z")
    await until(lambda: len(members.calls) == 5)
    assert members.calls[-1][1:] == (b"z", 0)


@pytest.mark.parametrize("members", [2], indirect=True)
async def test_in_order_the_attempt_is_known_to_the_next_owner(members, until):
    """It goes on with the same message, at the coordinator's broker and at another one."""
    await members.send(b"a", "broker-b")
    await members.send(b"x")
    await members.join("one", hangs=True, orderly=True)
    await until(lambda: len(members.of("one")) == 2)
    await until(members.was_reported)
    await members.send(b"y")
    await members.join("two", orderly=True)
    await until(lambda: len(members.of("two")) == 3)
    assert set(members.of("two")) == {("two", b"a", 1), ("two", b"x", 1), ("two", b"y", 0)}


async def test_in_order_attempts_are_counted_over_members_that_leave(members, until):
    """A message that fails everywhere becomes a dead letter after the group's attempts."""
    await members.send(b"x")
    one = await members.join("one", orderly=True, result=False, max_reconsume_times=5, suspend_ms=200)
    await until(lambda: len(members.of("one")) == 3)
    await one.stop()
    failed = members.of("one")[-1][2] + 1
    await members.join("two", orderly=True, result=False, max_reconsume_times=5)
    await members.send(b"y")
    await until(lambda: any(call[1] == b"y" for call in members.of("two")))
    assert members.of("two")[: 6 - failed] == [("two", b"x", times) for times in range(failed, 6)]
    assert members.of("two")[6 - failed][1] == b"y"


@pytest.mark.parametrize("members", [2], indirect=True)
async def test_in_order_a_message_that_waits_for_a_thread_keeps_its_attempts(members, watch, until):
    """It has failed, and would be handled again; the only thread is busy with another queue as it moves."""
    blocks, let_go = threading.Event(), threading.Event()
    failures, revoked = [], []

    def handle(messages):
        if messages[0].body == b"blocks":
            blocks.set()
            watch.touch()
            let_go.wait()
            return True
        failures.append(messages[0].reconsume_times)
        watch.touch()
        return False

    def on_revoked(queues):
        revoked.extend(queue.broker_name for queue in queues)
        watch.touch()

    async with Producer(group="p", namesrv=members.namesrv) as producer:
        failing, blocking = (MessageQueue("T", f"broker-{name}", 0) for name in "ab")
        await producer.send(Message("T", b"fails"), queue=failing)
        options = {"consume_from": "earliest", "suspend_ms": 10, "orderly": True, "threads": 1}
        one = PushConsumer(group="g", namesrv=members.namesrv, on_revoked=on_revoked, **options)
        one.subscribe("T", "*", handle)
        async with one:
            await until(lambda: failures)
            await producer.send(Message("T", b"blocks"), queue=blocking)
            await until(blocks.is_set)
            for _ in range(30):  # Longer than suspend_ms.
                await producer.send(Message("T", b"later"), queue=blocking)
            stopping = asyncio.create_task(one.stop())
            await until(lambda: failing.broker_name in revoked)
            let_go.set()
            await stopping
    await members.join("two", orderly=True)
    await until(lambda: any(call[1] == b"fails" for call in members.calls))
    assert ("two", b"fails", len(failures)) in members.calls
    assert failures == list(range(len(failures)))


async def test_in_order_a_reset_counts_attempts_anew(members, until):
    """A former owner's count belongs to the time before the reset."""
    await members.send(b"x")
    one = await members.join("one", orderly=True, result=False)
    await until(lambda: len(members.calls) == 2)
    await one.stop()
    await members.join("two", orderly=True)
    await until(lambda: members.of("two"))
    async with Admin(namesrv=members.namesrv) as admin:
        await admin.reset_offsets("g", "T", 0)
    await until(lambda: len(members.of("two")) == 2)
    assert members.of("two")[0][2] >= 2
    assert members.of("two")[1] == ("two", b"x", 0)
