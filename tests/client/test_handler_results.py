"""Handlers' results and what then happens to their messages: every kind of handler, with fake servers."""

import asyncio
import functools
import threading

import pytest

from libramq import Message, Reject, Retry, sync
from libramq.client import ConsumeFrom, Producer, PushConsumer
from libramq.codes import RequestCode
from libramq.errors import ConfigError
from libramq.testing import Broker
from tests.client.fake_cluster import SENDS

LEFT_TO_THE_BROKER, DEAD_LETTER = "0", "-1"


def consumer(namesrv, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20, "suspend_ms": 10} | options
    return PushConsumer(group="g", namesrv=namesrv.address, **options)


class Failing:
    """The body of a handler that waits, fails the first time, and then keeps what it handles."""

    def __init__(self, watch):
        self.calls = 0
        self.bodies = []
        self._watch = watch

    async def handle(self, messages):
        await asyncio.sleep(0)
        self.calls += 1
        self._watch.touch()
        if self.calls == 1:
            raise ZeroDivisionError("the first time")
        self.bodies += [message.body for message in messages]


def lambda_handler(failing):
    return lambda messages: failing.handle(messages)  # noqa: PLW0108 # As users write it.


def nested_handler(failing):
    async def handle(messages):
        return failing.handle(messages)  # `await` was forgotten.

    return handle


class AwaitableHandler:
    """A callable object that returns an awaitable that is not a coroutine."""

    def __init__(self, failing):
        self._failing = failing

    def __call__(self, messages):
        return Later(self._failing.handle, messages)


class Later:
    """An awaitable that does nothing until it is awaited."""

    def __init__(self, function, *arguments):
        self._call = functools.partial(function, *arguments)

    def __await__(self):
        return self._call().__await__()


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", [lambda_handler, nested_handler, AwaitableHandler])
async def test_an_awaitable_is_awaited_before_anything_is_committed(namesrv, broker, watch, kind, orderly):
    """When it fails, the message is redelivered instead of lost."""
    broker.put("T", 0, b"x")
    failing = Failing(watch)
    reader = consumer(namesrv, orderly=orderly)
    reader.subscribe("T", "*", kind(failing))
    async with reader:
        if orderly:
            await watch.until(lambda: failing.bodies == [b"x"])
        else:
            await watch.until(lambda: broker.sent_back)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
    assert failing.calls == (2 if orderly else 1)


def generator(messages):
    yield messages


async def async_generator(messages):
    yield messages


@pytest.mark.parametrize("kind", [generator, async_generator, functools.partial(generator)])
async def test_a_generator_is_refused_as_a_handler(namesrv, kind):
    """Its body would never run."""
    with pytest.raises(ConfigError, match=r"generator.*never run"):
        consumer(namesrv).subscribe("T", "*", kind)


class HostileResult:
    """A value whose `repr` and truth raise."""

    def __repr__(self):
        raise ZeroDivisionError("repr")

    def __bool__(self):
        raise ZeroDivisionError("bool")


FOREIGN = [
    "done", 1, 0, b"", {}, object(), HostileResult(), Retry, [None], ["x"], (Retry(), True), range(3),
]  # fmt: skip


@pytest.mark.parametrize("returned", [*FOREIGN, "generator"], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_unknown_result_is_reported_and_its_messages_redelivered(
    namesrv, broker, watch, caplog, returned, on_loop
):
    """A value that says nothing about the messages is a mistake, not a success."""
    broker.put("T", 0, b"x")

    def handle(messages):
        return generator(messages) if returned == "generator" else returned

    async def handle_async(messages):
        return handle(messages)

    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle_async if on_loop else handle)
    async with reader:
        await watch.until(lambda: broker.sent_back)
    assert "topic T returned" in caplog.text
    assert "Retry" in caplog.text


@pytest.mark.parametrize("returned", [None, True, [], Retry(messages=[])], ids=str)
async def test_a_result_that_names_no_message_means_done(namesrv, broker, watch, returned):
    """None and True still mean done, and so do results that name no message."""
    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", lambda messages: returned)
    async with reader:
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
    assert broker.sent_back == []


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (False, LEFT_TO_THE_BROKER),
        (Retry(), LEFT_TO_THE_BROKER),
        (Retry(after=60), "5"),
        (Retry(after=61), "6"),
        (Reject(), DEAD_LETTER),
    ],
    ids=str,
)
@pytest.mark.parametrize("on_loop", [False, True])
async def test_a_result_names_the_delay_of_a_redelivery(namesrv, broker, watch, result, level, on_loop):
    """The delay level of the send-back is rounded up; -1 sends straight to the dead letters."""
    broker.put("T", 0, b"x")

    async def handle_async(messages):
        return result

    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle_async if on_loop else lambda messages: result)
    async with reader:
        await watch.until(lambda: broker.sent_back)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
    assert [each["delayLevel"] for each in broker.sent_back] == [level]


async def test_a_batch_names_the_messages_that_are_not_done(namesrv, broker, watch):
    """The others are done; each named one goes where its result says."""
    for number in range(6):
        broker.put("T", 0, b"%d" % number)
    reader = consumer(namesrv, batch_size=6)
    reader.subscribe(
        "T", "*", lambda messages: [Retry(messages=messages[1:3], after=1), Reject(messages=messages[5:])]
    )
    async with reader:
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 6)
    assert [(each["offset"], each["delayLevel"]) for each in broker.sent_back] == [
        ("1", "1"), ("2", "1"), ("5", "-1"),
    ]  # fmt: skip


async def test_in_order_failed_messages_are_redelivered_before_later_ones(namesrv, broker, watch):
    """A rejected one goes to the dead letters, and the queue continues."""
    for number in range(5):
        broker.put("T", 0, b"%d" % number)
    batches = []

    def handle(messages):
        batches.append([message.body for message in messages])
        watch.touch()
        if len(batches) == 1:
            return [Retry(messages=messages[1:2], after=0.01), Reject(messages=messages[2:3])]
        return None

    reader = consumer(namesrv, batch_size=3, orderly=True)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 5)
    assert batches[0] == [b"0", b"1", b"2"]
    assert [body for batch in batches[1:] for body in batch] == [b"1", b"3", b"4"]
    assert [(each["offset"], each["delayLevel"]) for each in broker.sent_back] == [("2", "-1")]


async def test_a_rejected_message_is_sent_as_a_copy_where_the_send_back_is_refused(namesrv, broker, watch):
    """The broker puts the copy among the dead letters, because it has more attempts than are allowed."""
    broker.put("T", 0, b"bad")
    broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, 1)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", lambda messages: Reject())
    async with reader:
        await watch.until(lambda: broker.count(*SENDS))
    (copy,) = broker.of(*SENDS)
    assert (copy.ext["b"], copy.ext["j"], copy.ext["l"]) == ("%RETRY%g", "1", "0")


async def test_a_result_with_a_foreign_message_is_reported(namesrv, broker, watch, caplog):
    """Otherwise a message of another batch would pass as one of this batch."""
    for number in range(2):
        broker.put("T", number, b"%d" % number)
    seen = []

    def handle(messages):
        seen.extend(messages)
        watch.touch()
        return Retry(messages=[message for message in seen if message not in messages][:1])

    reader = consumer(namesrv, threads=1)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: len(broker.sent_back) == 1)
    assert "was not passed" in caplog.text


async def test_a_broadcasting_member_drops_failed_messages(namesrv, broker, watch, tmp_path):
    """No other member would receive them again. A warning is logged."""
    broker.put("T", 0, b"x")
    reader = consumer(namesrv, broadcasting=True, local_offsets=tmp_path)
    called = []
    reader.subscribe("T", "*", lambda messages: (called.append(messages), watch.touch()) and Retry())
    async with reader:
        await watch.until(lambda: called)
    assert broker.sent_back == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Retry(after=-1), "after"),
        (lambda: Retry(after=float("nan")), "after"),
        (lambda: Retry(after=7201), "2 hours"),
        (lambda: Retry(after="soon"), "after"),
        (lambda: Retry(after=True), "after"),
        (lambda: Retry(messages=["x"]), "messages"),
        (lambda: Reject(messages=5), "messages"),
    ],
)
def test_an_invalid_result_is_refused_where_it_is_made(make, text):
    """The error is raised in the handler, in one clear line."""
    with pytest.raises(ConfigError, match=text):
        make()


async def test_a_real_broker_makes_rejected_messages_dead_letters_and_delays_retried_ones(watch):
    """The delays are Apache's levels, and the dead letters are the group's own."""
    handled, dead = [], []

    def handle(messages):
        handled.extend((message.body, message.reconsume_times) for message in messages)
        watch.touch()
        if messages[0].body == b"bad":
            return Reject()
        return None if messages[0].reconsume_times else Retry(after=1)

    def bury(messages):
        dead.extend(messages)
        watch.touch()

    with Broker() as broker:
        async with Producer(group="p", namesrv=broker.namesrv) as producer:
            await producer.send_batch([Message("T", b"bad"), Message("T", b"late")])
        reader = PushConsumer(group="g", namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        reader.subscribe("T", "*", handle)
        buried = PushConsumer(group="x", namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        buried.subscribe("%DLQ%g", "*", bury)
        async with reader, buried:
            await watch.until(lambda: dead and (b"late", 1) in handled)
    assert [message.body for message in dead] == [b"bad"]
    assert sorted(handled) == [(b"bad", 0), (b"late", 0), (b"late", 1)]


def test_coroutines_of_a_blocking_program_are_awaited_too():
    """They run on the consumer's own loop."""
    handled = threading.Event()

    async def handle(messages):
        await asyncio.sleep(0)
        handled.set()

    with Broker() as broker:
        with sync.Producer(group="p", namesrv=broker.namesrv) as producer:
            producer.send(Message("T", b"x"))
        reader = sync.PushConsumer(group="g", namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        reader.subscribe("T", "*", lambda messages: handle(messages))  # noqa: PLW0108 # As users write it.
        with reader:
            assert handled.wait(60)
