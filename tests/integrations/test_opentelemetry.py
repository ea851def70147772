"""Traces that follow a message from its producer to its handlers, through a real broker."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import libramq.sync
from libramq import ConfigError, InvalidMessage, Message, MessageExt, Producer, PushConsumer
from libramq.integrations import message_traces
from libramq.integrations.opentelemetry import MESSAGE_ID, traced, traced_handler
from libramq.testing import Broker

from ..client.consuming.examples import message


class Traces:
    """A program's traces, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name that have ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def the(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        (span,) = self.spans(name)
        return span


def context(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of a span."""
    own = span.get_span_context()
    assert own is not None
    return own.trace_id, own.span_id


def as_coroutine(seen: list[Any], ended: Callable[[], None]) -> Any:
    async def handle(messages: list[MessageExt]) -> None:
        seen.append((trace.get_current_span(), baggage.get_baggage("shop")))
        await asyncio.sleep(0)
        ended()

    return handle


def as_function(seen: list[Any], ended: Callable[[], None]) -> Any:
    def handle(messages: list[MessageExt]) -> None:
        seen.append((trace.get_current_span(), baggage.get_baggage("shop")))
        ended()

    return handle


def as_function_of_an_awaitable(seen: list[Any], ended: Callable[[], None]) -> Any:
    handle = as_coroutine(seen, ended)
    return functools.partial(_call, handle)


def _call(handle: Any, messages: list[MessageExt]) -> Any:
    return handle(messages)


@pytest.mark.parametrize("form", [as_coroutine, as_function, as_function_of_an_awaitable])
async def test_a_messages_send_is_the_parent_of_its_handler(form: Any):
    """The application's own spans, and its baggage, belong to the same trace, whoever handles the message."""
    traces, seen, ended = Traces(), [], threading.Event()
    async with Broker() as broker:
        producer = traced(Producer(namesrv=broker.namesrv), tracer_provider=traces.provider)
        consumer = PushConsumer(group="kitchen", namesrv=broker.namesrv, consume_from="earliest")
        handler = traced_handler(form(seen, ended.set), group="kitchen", tracer_provider=traces.provider)
        consumer.subscribe("Orders", "*", handler)
        async with producer:
            token = attach(baggage.set_baggage("shop", "north"))
            result = await producer.send(Message("Orders", b"tea", tags="hot", keys=["1", "2"]))
            detach(token)
        async with consumer:
            assert await asyncio.to_thread(ended.wait, 60)

    sent, processed = traces.the("send Orders"), traces.the("process Orders")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == context(sent)
    ((span, shop),) = seen
    own = span.get_span_context()
    assert (own.trace_id, own.span_id, shop) == (*context(processed), "north")
    at_both = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "Orders",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.id": result.message_id,
        "messaging.rocketmq.message.tag": "hot",
        "messaging.rocketmq.message.keys": ("1", "2"),
    }
    assert sent.attributes == at_both | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert processed.attributes == at_both | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "kitchen",
    }


async def test_a_batch_is_linked_to_all_its_sends():
    traces, ended = Traces(), asyncio.Event()
    got: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> None:
        got.extend(messages)
        if len(got) == 3:
            ended.set()

    async with Broker(default_topic_queue_nums=1) as broker:
        async with traced(Producer(namesrv=broker.namesrv), tracer_provider=traces.provider) as producer:
            await producer.send(Message("Orders", b"one"))
            await producer.send_batch([Message("Orders", b"two"), Message("Orders", b"three")])
        consumer = PushConsumer(
            group="kitchen", namesrv=broker.namesrv, consume_from="earliest", batch_size=16
        )
        consumer.subscribe("Orders", "*", traced_handler(handle, tracer_provider=traces.provider))
        async with consumer:
            await asyncio.wait_for(ended.wait(), 60)

    links = [
        (link.context.trace_id, link.context.span_id)
        for span in traces.spans("process Orders")
        for link in span.links
    ]
    one, batch = traces.spans("send Orders")
    assert sorted(links) == sorted([context(one), context(batch), context(batch)])
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2


def test_the_blocking_producer_is_traced_alike():
    traces = Traces()
    with Broker() as broker:
        producer = traced(libramq.sync.Producer(namesrv=broker.namesrv), tracer_provider=traces.provider)
        with producer:
            producer.send(Message("Orders", b"one"))
            producer.send_nowait(Message("Orders", b"two"))
            producer.send_oneway(Message("Orders", b"three"))
            producer.flush()

    assert [span.name for kind in ("send", "create") for span in traces.spans(f"{kind} Orders")] == [
        "send Orders", "send Orders", "create Orders",
    ]  # fmt: skip


async def test_errors_end_up_in_their_spans_and_with_the_caller():
    traces = Traces()

    async def fail(messages: list[MessageExt]) -> None:
        raise ValueError("no tea")

    async with (
        Broker() as broker,
        traced(Producer(namesrv=broker.namesrv), tracer_provider=traces.provider) as producer,
    ):
        with pytest.raises(InvalidMessage):
            await producer.send(Message("Orders", b""))
        with pytest.raises(InvalidMessage):
            await producer.send(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no tea"):
        await traced_handler(fail, tracer_provider=traces.provider)([message(0, topic="Orders")])

    for name in ("send Orders", "send", "process Orders"):
        span = traces.the(name)
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]


async def test_a_handler_that_takes_no_messages_fails_in_its_span():
    traces = Traces()

    async def careless() -> None:
        """As a newcomer writes it: the call itself raises."""

    with pytest.raises(TypeError):
        await traced_handler(careless, tracer_provider=traces.provider)([message(0)])  # type: ignore[arg-type]
    (span,) = traces.spans("process T")
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("is_recorded_first", [False, True])
async def test_a_producer_is_traced_and_recorded_whichever_comes_first(is_recorded_first: bool):
    traces = Traces()
    wrap = functools.partial(traced, tracer_provider=traces.provider)
    async with Broker() as broker:
        plain = Producer(namesrv=broker.namesrv)
        both = wrap(message_traces.traced(plain)) if is_recorded_first else message_traces.traced(wrap(plain))
        with pytest.raises(ConfigError, match="a plain handler runs on a thread"):
            message_traces.traced_handler(print, group="kitchen", producer=both)
        async with both as producer:
            result = await producer.send(Message("Orders", b"tea"))
            (stored,) = await producer.send_batch([Message("Orders", b"cup")])
    first, _ = traces.spans("send Orders")
    assert stored.queue_offset >= 0
    assert first.attributes is not None
    assert first.attributes[MESSAGE_ID] == result.message_id


def test_a_message_that_is_not_traced_begins_a_trace():
    traces, seen = Traces(), []

    traced_handler(as_function(seen, lambda: None), tracer_provider=traces.provider)(
        [message(0, topic="Orders")]
    )

    span = traces.the("process Orders")
    assert (span.parent, list(span.links)) == (None, [])
