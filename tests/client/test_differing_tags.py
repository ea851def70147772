"""Members of one group with different expressions: each gets the messages its own expression selects."""

from contextlib import AsyncExitStack

import pytest

from libramq import Message, Producer, PushConsumer, Sql
from libramq.client import Admin
from libramq.clock import SystemClock
from libramq.rpc import broker_calls
from libramq.testing import Broker
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.brokers import heartbeat
from tests.transport.loops import until

EXPRESSIONS = {
    "tags": ("A", "A || B"),
    "SQL92": (Sql("TAGS = 'A'"), Sql("TAGS IN ('A', 'B')")),
}


class Group:
    """Members of a group by name; the topic has one queue. got: the bodies that each has handled.

    owners: the members that were assigned the queue.
    """

    def __init__(self, namesrv, stack):
        self.namesrv = namesrv
        self._stack = stack
        self.got = {}
        self.owners = []

    async def join(self, name, expression):
        got = self.got[name] = []
        member = PushConsumer(
            group="g",
            namesrv=self.namesrv,
            instance_name=name,
            consume_from="earliest",
            on_assigned=lambda _: self.owners.append(name),
        )
        member.subscribe("T", expression, lambda messages: got.extend(m.body.decode() for m in messages))
        return await self._stack.enter_async_context(member)

    async def send(self, **bodies_by_tag):
        async with Producer(group="p", namesrv=self.namesrv) as producer:
            for tag, body in bodies_by_tag.items():
                await producer.send(Message("T", body.encode(), tags=tag))


@pytest.fixture(params=["coordinated", "allocating"])
async def group(request):
    """The group, in which a stock member that gets no queue has all allocate for themselves, or not."""
    async with Broker(enable_property_filter=True) as broker, AsyncExitStack() as stack:
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic("T", queues=1)
            route = await admin.topic_route("T")
        if request.param == "allocating":
            stock = AsyncioRemotes(SystemClock().monotonic_ms)
            stack.push_async_callback(stock.aclose)
            call = broker_calls.heartbeat(heartbeat("stock", "g"))
            address = route.broker_datas[0].broker_addrs[0]
            call.result(await stock.call(address, call.command()), where="broker")
        yield Group(broker.namesrv, stack)


@pytest.mark.parametrize("kind", EXPRESSIONS)
async def test_an_idle_member_takes_nothing_from_the_reader(group, kind):
    """The broker filtered by the group's newest heartbeat: the reader skipped every B and committed."""
    narrow, wide = EXPRESSIONS[kind]
    await group.join("a-reader", wide)
    await until(lambda: group.owners == ["a-reader"])
    await group.join("b-idle", narrow)
    await group.send(A="1", B="2")
    await group.send(B="3", A="4")
    await until(lambda: {"1", "4"} <= set(group.got["a-reader"]))
    assert (group.got["a-reader"], group.got["b-idle"]) == (["1", "2", "3", "4"], [])
