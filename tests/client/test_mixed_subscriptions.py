"""Members of one group with different topics: a retry reaches a member that subscribes to its topic."""

from contextlib import AsyncExitStack

import pytest

from libramq import Message, Producer, PushConsumer, Retry
from libramq.client import Admin
from libramq.testing import Broker
from tests.transport import loops

DELAYS = "1s 1s 1s 1s 1s"


class Members:
    """Members by the topics that they subscribe to. calls: topic, body and attempts, in order."""

    def __init__(self, namesrv, watch, stack):
        self.namesrv = namesrv
        self._watch = watch
        self._stack = stack
        self.calls = []
        self.results = {}

    async def send(self, topic, *bodies):
        async with Producer(group="p", namesrv=self.namesrv) as producer:
            for body in bodies:
                await producer.send(Message(topic, body))

    async def join(self, name, *topics, group="g", **options):
        """Start a member; its handlers fail the first time, or return what `results` has for a body."""
        member = PushConsumer(
            group=group, namesrv=self.namesrv, instance_name=name, consume_from="earliest", **options
        )
        for topic in topics:
            member.subscribe(topic, "*", self._handle)
        await self._stack.enter_async_context(member)
        return member

    def _handle(self, messages):
        (message,) = messages
        self.calls.append((message.topic, message.body, message.reconsume_times))
        self._watch.touch()
        return self.results.get(message.body, message.reconsume_times > 0)

    def done(self, topic):
        return {body: attempts for each, body, attempts in self.calls if each == topic and attempts}


@pytest.fixture
async def members(watch):
    async with Broker(message_delay_level=DELAYS) as broker:
        async with Admin(namesrv=broker.namesrv) as admin:
            for topic in ("T", "U"):
                await admin.create_topic(topic, queues=2)
        async with AsyncExitStack() as stack:
            yield Members(broker.namesrv, watch, stack)


async def test_each_members_retries_reach_it(members, until):
    """Any member may read the retry queue. Passing on costs no attempt: the group allows one redelivery."""
    await members.join("one", "T", max_reconsume_times=1)
    await members.join("two", "U", max_reconsume_times=1)
    await members.send("T", b"1", b"2", b"3", b"4")
    await members.send("U", b"5", b"6", b"7", b"8")
    await until(lambda: len(members.done("T")) + len(members.done("U")) == 8)
    assert len(members.calls) == 16
    assert {attempts for _, _, attempts in members.calls} == {0, 1}


async def test_a_passed_on_retry_counts_as_its_handler_decides(members, until):
    """The delay is the handler's; an attempt is counted for each of its failures, and no other."""
    members.results = {b"again": Retry(after=1)}
    await members.join("one", "T", max_reconsume_times=2)
    await members.join("two", "U", max_reconsume_times=2)
    await members.join("dead", "%DLQ%g", group="undertaker")
    await members.send("U", b"again")
    await members.send("T", b"again")
    await until(lambda: sum(topic == "%DLQ%g" for topic, _, _ in members.calls) == 2)
    for topic in ("T", "U"):
        assert [each for each in members.calls if each[0] == topic] == [
            (topic, b"again", attempts) for attempts in range(3)
        ]


async def test_a_retry_waits_for_a_member_that_subscribes_to_its_topic(members, until, caplog):
    """As in a rolling deployment: the only reader of the topic leaves, another comes later."""
    one = await members.join("one", "T", "U", max_reconsume_times=1)
    await members.send("U", b"x")
    await until(lambda: members.calls)
    await members.join("two", "T", max_reconsume_times=1)
    await one.stop()
    await loops.until(lambda: "no member of its group subscribes to its topic" in caplog.text)
    await members.join("three", "U", max_reconsume_times=1)
    await until(lambda: len(members.calls) == 2)
    assert members.calls == [("U", b"x", 0), ("U", b"x", 1)]
