"""FastStream's applications on a real broker, and in memory.

FastStream's own tests for brokers ran outside of the repository; docs/faststream.md says which pass.
"""

import asyncio
import subprocess
import sys

import pytest
from faststream import AckPolicy, Context, FastStream, TestApp
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream.exceptions import NackMessage, RejectMessage, SetupError, SubscriberNotFound
from pydantic import BaseModel

from libramq import Sql
from libramq.errors import ConfigError, InvalidMessage, InvalidName
from libramq.integrations.faststream import (
    RocketMQBroker,
    RocketMQPublisher,
    RocketMQResponse,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
)
from libramq.testing import Broker

PATIENCE_S = 60


class Order(BaseModel):
    """What is sent."""

    number: int


@pytest.fixture
async def one():
    async with Broker() as broker:
        yield broker


class Calls:
    """The calls of handlers, and a way to wait for them."""

    def __init__(self):
        self.all = []
        self._changed = asyncio.Event()

    def __call__(self, *call):
        self.all.append(call)
        self._changed.set()

    async def wait(self, count):
        async with asyncio.timeout(PATIENCE_S):
            while len(self.all) < count:
                self._changed.clear()
                await self._changed.wait()


async def test_a_handlers_result_is_published(one):
    """Bodies are validated, headers and the correlation id travel, and an empty result is one, too."""
    calls = Calls()
    broker = RocketMQBroker(one.namesrv)

    @broker.subscriber("Orders", consume_from="earliest")
    @broker.publisher("Invoices", headers={"currency": "EUR"})
    async def invoice(order: Order):
        return Order(number=order.number + 1) if order.number else None

    @broker.subscriber("Invoices", consume_from="earliest")
    async def file(body: Order | bytes, currency: str = Context("message.headers.currency")):
        calls(body, currency)

    async with broker:
        await broker.start()
        await broker.publish(Order(number=6), "Orders")
        await calls.wait(1)
        await broker.publish(Order(number=0), "Orders")
        await calls.wait(2)
    assert calls.all == [(Order(number=7), "EUR"), (b"", "EUR")]


async def test_a_failed_message_comes_again_and_a_rejected_one_is_a_dead_letter(one):
    calls, dead = Calls(), Calls()
    broker = RocketMQBroker(one.namesrv)

    @broker.subscriber("Orders", group="kitchen", consume_from="earliest", pop=True)
    async def handle(body: str, attempts: int = Context("message.raw_message.message.reconsume_times")):
        calls(body, attempts)
        if body == "bad":
            raise RejectMessage
        if not attempts:
            raise NackMessage(delay=0.1)

    @broker.subscriber("%DLQ%kitchen", group="reader", consume_from="earliest")
    async def bury(body: str):
        dead(body)

    async with broker:
        await broker.start()
        await broker.publish("good", "Orders")
        await broker.publish("bad", "Orders")
        await calls.wait(3)
        await dead.wait(1)
    assert sorted(calls.all) == [("bad", 0), ("good", 0), ("good", 1)]
    assert dead.all == [("bad",)]


@pytest.mark.parametrize(
    ("policy", "attempts"), [(AckPolicy.ACK_FIRST, 1), (AckPolicy.ACK, 1), (AckPolicy.NACK_ON_ERROR, 2)]
)
async def test_the_policy_decides_about_a_handler_that_raises(one, policy, attempts):
    """What is not acknowledged comes again."""
    calls = Calls()
    broker = RocketMQBroker(one.namesrv, ack_policy=policy)

    @broker.subscriber("Orders", consume_from="earliest", orderly=True, suspend_ms=10)
    async def handle(body: str):
        calls(body)
        if len(calls.all) == 1:
            raise ValueError

    async with broker:
        await broker.start()
        await broker.publish("first", "Orders", order_key="k")
        await calls.wait(1)
        await broker.publish("last", "Orders", order_key="k")
        await calls.wait(attempts + 1)
    assert calls.all == [("first",)] * attempts + [("last",)]


async def test_a_request_is_answered_with_the_result(one):
    """By RocketMQ's request and reply; another one is answered on a topic."""
    calls = Calls()
    broker = RocketMQBroker(one.namesrv)

    @broker.subscriber("Sums", consume_from="earliest")
    async def double(number: int):
        return RocketMQResponse(number * 2, headers={"unit": "EUR"}, tags="Double", keys="sum-21")

    @broker.subscriber("Answers", consume_from="earliest")
    async def answered(number: int):
        calls(number)

    async with broker:
        await broker.start()
        assert await broker.ping()
        reply = await broker.request(21, "Sums", timeout=PATIENCE_S)
        assert (await reply.decode(), reply.headers["unit"]) == (42, "EUR")
        message = reply.raw_message.message
        assert (message.tags, message.keys) == ("Double", ("sum-21",))
        with pytest.raises(TimeoutError):
            await broker.request(21, "Unread", timeout=0.1)
        await broker.publish(4, "Sums", reply_to="Answers")
        await calls.wait(1)
    assert calls.all == [(8,)]
    assert not await broker.ping(timeout=0.1)


async def test_routers_filters_and_batches(one):
    calls = Calls()
    router = RocketMQRouter(prefix="shop-")

    @router.subscriber("Orders", consume_from="earliest", expression="paid")
    async def paid(body: str):
        calls("paid", body)

    @router.subscriber("Orders", group="sums", consume_from="earliest", expression=Sql("TAGS = 'open'"))
    async def unpaid(body: str):
        calls("open", body)

    async def forward(body: str):
        return body + "!"

    async def last(body: str):
        calls("last", body)

    route = RocketMQRoute(forward, "In", publishers=[RocketMQPublisher("shop-Out")], consume_from="earliest")
    broker = RocketMQBroker(one.namesrv, routers=[router, RocketMQRouter(handlers=[route])])
    broker.subscriber("shop-Out", consume_from="earliest")(last)
    async with broker:
        await broker.start()
        await broker.publish("a", "shop-Orders", tags="paid")
        await broker.publish("b", "shop-Orders", tags="open")
        await broker.publish_batch("c", "d", topic="In")
        await calls.wait(4)
    assert sorted(calls.all) == [("last", "c!"), ("last", "d!"), ("open", "b"), ("paid", "a")]


async def test_a_subscriber_without_handlers_is_read(one):
    broker = RocketMQBroker(one.namesrv)
    subscriber = broker.subscriber("Orders", consume_from="earliest")
    async with broker:
        await broker.publish("a", "Orders")
        await broker.publish("b", "Orders")
        await broker.start()
        first = await subscriber.get_one(timeout=PATIENCE_S)
        assert first is not None
        found = {await first.decode()}
        async for message in subscriber:
            found.add(await message.decode())
            break
        began_s = asyncio.get_running_loop().time()
    assert found == {"a", "b"}
    assert asyncio.get_running_loop().time() - began_s < 10, "the stop waits for no reader"


async def test_reading_ends_with_the_broker(one):
    broker = RocketMQBroker(one.namesrv)
    subscriber = broker.subscriber("Orders", consume_from="earliest")
    calls = Calls()

    async def read():
        async for message in subscriber:
            calls(await message.decode())

    async with broker:
        await broker.publish("a", "Orders")
        await broker.start()
        reading = asyncio.create_task(read())
        await calls.wait(1)
    async with asyncio.timeout(PATIENCE_S):
        await reading
    assert calls.all == [("a",)]


async def test_what_was_read_is_done_at_the_stop_and_nobody_is_waited_for(one):
    """The broker stops subscribers in tasks of their own: the consumer waited for the reader's next call."""
    for body in "ab":
        broker = RocketMQBroker(one.namesrv, graceful_timeout=PATIENCE_S)
        subscriber = broker.subscriber("Orders", consume_from="earliest")
        async with asyncio.timeout(PATIENCE_S / 2):
            async with broker:
                await broker.publish(body, "Orders", order_key="k")
                await broker.start()
                message = await subscriber.get_one(timeout=PATIENCE_S / 2)
                assert message is not None
                assert await message.decode() == body


async def test_a_reader_that_is_cancelled_loses_no_message(one):
    """Whatever turn of the loop it is cancelled in: the next read counted what it had fetched as done."""
    broker = RocketMQBroker(one.namesrv)
    subscriber = broker.subscriber("Orders", consume_from="earliest")
    async with broker:
        for number in range(12):
            await broker.publish(str(number), "Orders", order_key="k")
        await broker.start()
        found = [await subscriber.get_one(timeout=PATIENCE_S)]
        for turns in range(8):
            reading = asyncio.create_task(subscriber.get_one(timeout=PATIENCE_S))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            found += await asyncio.gather(reading, return_exceptions=True)
        found = [each for each in found if not isinstance(each, asyncio.CancelledError)]
        while len(found) < 12:
            found.append(await subscriber.get_one(timeout=PATIENCE_S))
        assert [await each.decode() for each in found] == [str(number) for number in range(12)]


async def test_a_stop_refuses_no_messages(one):
    """Those that came while it waited for a slow handler went to the retry topic."""
    calls, slow = Calls(), asyncio.Event()

    def application():
        broker = RocketMQBroker(one.namesrv)

        @broker.subscriber("Orders", consume_from="earliest", max_workers=2)
        async def handle(body: str, times: int = Context("message.raw_message.message.reconsume_times")):
            calls(body, times)
            if body == "slow":
                await slow.wait()

        return broker

    async with application() as first:
        await first.start()
        await first.publish("slow", "Orders")
        await calls.wait(1)
        stopping = asyncio.create_task(next(iter(first.subscribers)).stop())
        for number in range(20):
            await first.publish(f"n{number}", "Orders")
        slow.set()
        await stopping
    async with application() as second:
        await second.start()
        await calls.wait(21)
    assert {times for _, times in calls.all} == {0}


async def test_a_handler_may_stop_the_broker(one):
    """It waited for the handler itself, for graceful_timeout and longer; another task does it."""
    broker, calls = RocketMQBroker(one.namesrv, graceful_timeout=2 * PATIENCE_S), Calls()

    @broker.subscriber("Orders", consume_from="earliest")
    async def handle(body: str):
        await broker.stop()
        calls(body)

    await broker.start()
    await broker.publish("last", "Orders")
    async with asyncio.timeout(PATIENCE_S):
        await calls.wait(1)
        while await broker.ping(timeout=1):  # noqa: ASYNC110 # No event tells of the end.
            await asyncio.sleep(0.01)


async def test_an_application_runs_in_memory():
    """No server is there; handlers, publishers and requests are called at once."""
    broker = RocketMQBroker("127.0.0.1:9")
    published = broker.publisher("Invoices")

    @broker.subscriber("Orders")
    @published
    async def invoice(order: Order) -> Order:
        return Order(number=order.number + 1)

    async with TestRocketMQBroker(broker) as tested, TestApp(FastStream(broker)):
        await tested.publish(Order(number=1), "Orders")
        invoice.mock.assert_called_once_with({"number": 1})
        published.mock.assert_called_once_with({"number": 2})
        reply = await tested.request(Order(number=2), "Orders")
        assert await reply.decode() == {"number": 3}
        with pytest.raises(SubscriberNotFound):
            await tested.request(1, "Nowhere")


async def test_in_memory_messages_are_selected_and_checked_as_by_servers():
    """A test that passes where a broker would refuse, or not deliver, is none."""
    broker = RocketMQBroker("127.0.0.1:9")

    @broker.subscriber("Orders", expression="paid || refunded")
    async def tagged(body: str) -> None: ...

    @broker.subscriber("Orders", group="sql", expression=Sql("price > 3"))
    async def priced(body: str) -> None: ...

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("a", "Orders", tags="open")
        await tested.publish("b", "Orders", tags="paid")
        await tested.publish("c", "Orders", headers={"price": 4})
        tagged.mock.assert_called_once_with("b")
        priced.mock.assert_called_once_with("c")
        with pytest.raises(InvalidName):
            await tested.publish("x", "no/topic")
        with pytest.raises(InvalidMessage, match="reserved"):
            await tested.publish("x", "Orders", headers={"KEYS": "k"})
        with pytest.raises(InvalidMessage, match="at least one"):
            await tested.publish_batch(topic="Orders")


def test_what_is_not_rocketmqs_is_refused():
    broker = RocketMQBroker("127.0.0.1:9")
    other = BrokerRouter(config=BrokerConfig(), handlers=(), routers=())
    with pytest.raises(SetupError, match="not BrokerRouter"):
        broker.include_router(other)
    with pytest.raises(ConfigError, match="did you mean consume_from"):
        broker.subscriber("Orders", consume_form="earliest")
    with pytest.raises(ConfigError, match="max_workers"):
        broker.subscriber("Orders", threads=2)
    with pytest.raises(ConfigError, match="one message"):
        broker.subscriber("Orders", batch=True)


def test_without_faststream_the_extra_is_named():
    """Its own modules and another version's missing names are no help."""
    program = "import sys; sys.modules['faststream'] = None; import libramq.integrations.faststream"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].endswith("needs faststream: pip install 'libramq[faststream]'")


async def test_subscribers_of_one_group_get_the_retries_of_their_own_topics():
    """They are members of one group with different topics, and one of them reads its retry queue."""
    async with Broker(message_delay_level="1s 1s 1s 1s 1s") as one:
        broker = RocketMQBroker(one.namesrv, ack_policy=AckPolicy.NACK_ON_ERROR)
        calls = Calls()

        def handler_of(topic):
            async def handle(body: str):
                calls(topic, body)
                if calls.all.count((topic, body)) == 1:
                    raise ZeroDivisionError

            return handle

        for topic in ("T", "U"):
            subscribe = broker.subscriber(topic, group="both", consume_from="earliest", max_reconsume_times=1)
            subscribe(handler_of(topic))
        async with TestApp(FastStream(broker)):
            for topic in ("T", "U"):
                await broker.publish("x", topic)
            await calls.wait(4)
    assert sorted(calls.all) == [("T", "x"), ("T", "x"), ("U", "x"), ("U", "x")]
