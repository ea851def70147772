"""RocketMQ's message traces of our clients, read from a real broker."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import libramq.sync
from libramq import (
    ConfigError,
    InvalidMessage,
    LibraError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    Reject,
    Retry,
)
from libramq.integrations import message_traces
from libramq.integrations.message_traces import traced, traced_handler
from libramq.message.names import TRACE_TOPIC
from libramq.message.trace import Pub, SubAfter, SubBefore, TraceRecord, decode_trace
from libramq.message.validation import validate
from libramq.testing import Broker

from ..client.consuming.examples import message

WAIT_S = 60


async def records_of(namesrv: str, count: int) -> list[TraceRecord]:
    """Return the records of the trace topic once there are so many."""
    found: list[TraceRecord] = []
    complete = asyncio.Event()

    async def collect(messages: list[MessageExt]) -> None:
        for each in messages:
            trace = decode_trace(each.body)
            assert not trace.unreadable
            found.extend(trace.records)
        if len(found) >= count:
            complete.set()

    reader = PushConsumer(group="trace_reader", namesrv=namesrv, consume_from="earliest")
    reader.subscribe(TRACE_TOPIC, "*", collect)
    async with reader:
        await asyncio.wait_for(complete.wait(), WAIT_S)
    return found


async def test_sends_are_recorded():
    """One record a message: those of a batch, and of send_nowait with a callback, are found by their ids."""
    answered = asyncio.Event()
    async with Broker() as broker:
        async with traced(Producer(group="cooks", namesrv=broker.namesrv)) as producer:
            first = await producer.send(Message("Orders", b"tea", tags="hot", keys=["1", "2"]))
            batch = await producer.send_batch([Message("Orders", b"a"), Message("Orders", b"bc")])
            producer.send_nowait(Message("Orders", b"later", delay_level=1), lambda _: answered.set())
            producer.send_nowait(Message("Orders", b"not recorded"))
            await answered.wait()
        records = await records_of(broker.namesrv, 4)
    assert all(isinstance(each, Pub) and each.is_success and each.group == "cooks" for each in records)
    sent = {each.unique_id: each for each in records if isinstance(each, Pub)}
    assert len(records) == len(sent) == 4
    one = sent[first.message_id]
    assert (one.topic, one.tags, one.keys, one.body_size) == ("Orders", "hot", "1 2", 3)
    assert (one.offset_id, one.region, one.message_type) == (first.offset_message_id, "DefaultRegion", 0)
    assert one.store_host is not None
    assert one.store_host.startswith("127.0.0.1:")
    assert one.at_ms > 0
    assert one.cost_ms >= 0
    assert [sent[each.message_id].body_size for each in batch] == [1, 2]
    assert sorted(each.message_type for each in sent.values()) == [0, 0, 0, message_traces.DELAY_MESSAGE]


async def test_a_send_that_fails_is_recorded_and_its_error_raised():
    async with Broker() as broker:
        async with traced(Producer(namesrv=broker.namesrv)) as producer:
            with pytest.raises(LibraError):
                await producer.send(Message("Orders", b"tea", properties={"a": "x" * 40_000}))
        (record,) = await records_of(broker.namesrv, 1)
    assert isinstance(record, Pub)
    assert (record.is_success, record.unique_id, record.topic) == (False, None, "Orders")


def as_coroutine(returned: Callable[[], Any]) -> Any:
    async def handle(messages: list[MessageExt]) -> Any:
        await asyncio.sleep(0)
        return returned()

    return handle


def as_function(returned: Callable[[], Any]) -> Any:
    def handle(messages: list[MessageExt]) -> Any:
        return returned()

    return handle


def as_object(returned: Callable[[], Any]) -> Any:
    class Handler:
        async def __call__(self, messages: list[MessageExt]) -> Any:
            return returned()

    return Handler()


def as_function_of_an_awaitable(returned: Callable[[], Any]) -> Any:
    handle = as_coroutine(returned)
    return functools.partial(lambda inner, messages: inner(messages), handle)


def fails() -> None:
    raise ValueError("burnt")


RETURNED: list[tuple[Callable[[], Any], list[int]]] = [
    (lambda: None, [0, 0]),
    (lambda: False, [4, 4]),
    (lambda: Retry(messages=[message(1)]), [0, 4]),
    (lambda: Reject(messages=[message(0)]), [4, 0]),
    (lambda: "what?", [2, 2]),
    (fails, [2, 2]),
]


@pytest.mark.parametrize("form", [as_coroutine, as_object, as_function, as_function_of_an_awaitable])
@pytest.mark.parametrize(("returned", "codes"), RETURNED)
async def test_a_handlers_call_is_recorded_message_by_message(form: Any, returned: Any, codes: list[int]):
    """Before it and after it, under one id; what it returns or raises is passed on."""
    with Kept() as kept:
        handler = traced_handler(form(returned), group="kitchen", producer=kept)
        messages = [message(0), message(1)]
        before, after = await outcome(returned), await outcome(lambda: handler(messages))
    assert type(before) is type(after)
    assert before == after or isinstance(after, ValueError)
    begun, ended = kept.records[:2], kept.records[2:]
    assert all(isinstance(each, SubBefore) for each in begun)
    assert all(isinstance(each, SubAfter) for each in ended)
    assert [each.unique_id for each in kept.records] == ["id-0", "id-1"] * 2
    assert len({each.request_id for each in kept.records}) == 1
    assert [(each.context_code, each.is_success) for each in ended] == [(code, code == 0) for code in codes]
    assert {each.group for each in kept.records} == {"kitchen"}


async def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns in the end, or raises."""
    try:
        returned = call()
        return await returned if asyncio.iscoroutine(returned) else returned
    except ValueError as error:
        return error


class Kept:
    """A blocking producer that keeps what is sent."""

    def __init__(self, error: LibraError | None = None) -> None:
        self.records: list[Any] = []
        self.error = error

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""

    def send(self, *_: object) -> None:
        """Not asyncio's."""

    def send_nowait(self, sent: Message, callback: Any) -> None:
        assert sent.topic == TRACE_TOPIC
        if self.error is not None:
            raise self.error
        self.records += decode_trace(sent.body).records


def test_a_plain_handler_with_asyncios_producer_is_refused():
    with pytest.raises(ConfigError, match=r"libramq\.sync\.Producer"):
        traced_handler(as_function(lambda: None), group="kitchen", producer=Producer())
    traced_handler(as_object(lambda: None), group="kitchen", producer=Producer())  # Its call is a coroutine.


async def test_records_that_cannot_be_sent_disturb_nobody():
    """As when the producer's buffer is full, or it was not started."""
    kept = Kept(LibraError("full"))
    handler = traced_handler(as_coroutine(lambda: None), group="kitchen", producer=kept)
    assert await handler([message(0)]) is None
    assert kept.records == []


class Refusing(Kept):
    """A blocking producer that checks messages, as ours do, and stores none."""

    group, client_id = "cooks", "10.0.0.1@1"

    def serialized(self, message: Message, value: object = None) -> Message:
        return message

    def send(self, sent: Message, **_: object) -> None:  # type: ignore[override]
        validate(sent)


@pytest.mark.parametrize(
    "refused",
    [
        Message("Orders", None),  # type: ignore[arg-type]
        Message("Orders", b"tea", keys=5),  # type: ignore[arg-type]
        Message("Orders", b"tea", tags="\ud800"),
        Message("Orders", b"tea", keys=["\ud800"]),
        Message("Orders", b"tea", delay_ms="soon"),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_cannot_be_recorded_raises_what_it_raises_without_traces(refused: Message):
    producer = Refusing()
    with pytest.raises(InvalidMessage):
        traced(producer).send(refused)
    with pytest.raises(InvalidMessage):
        traced(producer).send(Message("Orders", b""))
    assert len(producer.records) <= 2


async def test_consuming_the_traces_themselves_is_not_recorded():
    with Kept() as kept:
        handler = traced_handler(as_coroutine(lambda: None), group="g", producer=kept)
        await handler([message(0, topic=TRACE_TOPIC)])
    assert kept.records == []


async def test_a_large_call_becomes_several_messages_of_bounded_size():
    sent: list[Message] = []
    kept = Kept()
    kept.send_nowait = lambda each, _: sent.append(each)  # type: ignore[method-assign]
    handler = traced_handler(as_coroutine(lambda: None), group="g", producer=kept)
    await handler([message(number) for number in range(message_traces.RECORDED_MAX + 1)])
    assert [len(decode_trace(each.body).records) for each in sent] == [100, 1, 100, 1]


def test_blocking_programs_are_traced_alike():
    """The consumer's handler runs on a thread."""
    ended = threading.Event()

    def handle(messages: list[MessageExt]) -> None:
        ended.set()

    with Broker() as broker:
        with traced(libramq.sync.Producer(group="cooks", namesrv=broker.namesrv)) as producer:
            result = producer.send(Message("Orders", b"tea"))
            consumer = libramq.sync.PushConsumer(
                group="kitchen", namesrv=broker.namesrv, consume_from="earliest"
            )
            consumer.subscribe("Orders", "*", traced_handler(handle, group="kitchen", producer=producer))
            with consumer:
                assert ended.wait(WAIT_S)
        records = asyncio.run(records_of(broker.namesrv, 3))
    assert [type(each) for each in sorted(records, key=lambda each: type(each).__name__)] == [
        Pub, SubAfter, SubBefore,
    ]  # fmt: skip
    assert {each.unique_id for each in records} == {result.message_id}
