"""OpenTelemetry: spans of sends and handlers, linked by properties of the message.

producer = traced(Producer())
consumer.subscribe("Orders", "*", traced_handler(handle, group="kitchen"))

The context travels in the message's properties (`traceparent`, `tracestate`), where instrumented RocketMQ
clients of other languages look for it. Needs `opentelemetry-api`, and the program's SDK and exporter.

Upstream: OpenTelemetry's semantic conventions for messaging and for RocketMQ.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from libramq import __version__
from libramq.client.consuming.handling.handlers import Handler
from libramq.client.producing.send_result import SendResult
from libramq.errors import needs_extra
from libramq.integrations.wrappers import Sending, WrappedProducer, wrapped_handler
from libramq.message.message import Message, MessageExt

with needs_extra("libramq.integrations.opentelemetry", "opentelemetry"):
    from opentelemetry import propagate, trace
    from opentelemetry.context import attach, detach, get_current
    from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

P = TypeVar("P", bound=AbstractAsyncContextManager[Any] | AbstractContextManager[Any])

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
GROUP: Final = "messaging.consumer.group.name"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"


def traced(producer: P, *, tracer_provider: TracerProvider | None = None) -> P:
    """Return a producer, asyncio's or the blocking one, whose sends are spans and whose messages carry them.

    `send`, `send_oneway` and `send_batch` are spans `send TOPIC`, which last until the response.
    `send_nowait` is a span `create TOPIC`, which ends when the message is queued. All other methods are the
    producer's own.
    tracer_provider: by default the program's.
    """
    return cast(P, _TracedProducer(producer, _tracer(tracer_provider)))


def traced_handler(
    handler: Handler, *, group: str | None = None, tracer_provider: TracerProvider | None = None
) -> Handler:
    """Return a handler that runs in a span `process TOPIC`, linked to the spans that sent its messages.

    For a single message, its send is also the parent. group: the consumer group, for the span's attributes.
    """
    return wrapped_handler(handler, partial(_Processing, _tracer(tracer_provider), group))


class _Processing:
    """The span of a handler call."""

    def __init__(self, tracer: Tracer, group: str | None, messages: Sequence[MessageExt]) -> None:
        contexts = [propagate.extract(message.properties) for message in messages]
        self._context = contexts[0] if len(contexts) == 1 else get_current()
        attributes = _attributes("process", "process", messages) | ({GROUP: group} if group else {})
        if len(messages) == 1:
            attributes |= {MESSAGE_ID: messages[0].message_id, PARTITION: str(messages[0].queue_id)}
        sent = (trace.get_current_span(context).get_span_context() for context in contexts)
        links = [Link(each) for each in sent if each.is_valid]
        name = f"process {messages[0].topic}"
        self._span = tracer.start_span(name, self._context, SpanKind.CONSUMER, attributes, links)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the span and its message's context current; an exception becomes the span's status."""
        token = attach(self._context)
        try:
            with trace.use_span(self._span):
                yield
        finally:
            detach(token)

    def failed(self) -> None:
        self._span.end()

    def returned(self, result: object) -> None:
        self._span.end()


class _TracedProducer(WrappedProducer):
    """A producer with spans around its sends."""

    def __init__(self, producer: Any, tracer: Tracer) -> None:
        super().__init__(producer)
        self._tracer = tracer

    @contextmanager
    def sending(self, sent: Message | list[Message]) -> Iterator[Sending]:
        with _sending(self._tracer, "send", sent) as (span, carried):
            yield carried, partial(_note, span)

    def send_oneway(self, message: Message | str, value: object = None, **options: Any) -> Any:
        return self.followed(self.producer.send_oneway, self.producer.serialized(message, value), options)

    def send_nowait(self, message: Message, *arguments: Any, **options: Any) -> None:
        with _sending(self._tracer, "create", message) as (_, carried):
            self.producer.send_nowait(carried, *arguments, **options)

    def transaction(self, message: Message, **options: Any) -> Any:
        return self.producer.transaction(_carrying(message), **options)


@contextmanager
def _sending(
    tracer: Tracer, operation: str, sent: Message | list[Message]
) -> Iterator[tuple[Span, Message | list[Message]]]:
    """Begin the span of a send; yield the span and the messages that carry it."""
    messages = sent if isinstance(sent, list) else [sent]
    topic = getattr(messages[0], "topic", "") if messages else ""  # The producer reports invalid messages.
    name = f"{operation} {topic}".rstrip()
    attributes = _attributes(operation, operation, messages)
    with tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        yield span, [_carrying(each) for each in sent] if isinstance(sent, list) else _carrying(sent)


def _carrying(message: Message) -> Message:
    """Return a message that carries the current context."""
    if not isinstance(message, Message) or not isinstance(message.properties, dict):
        return message
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return replace(message, properties=message.properties | carrier) if carrier else message


def _attributes(
    operation: str, operation_type: str, messages: Sequence[Message] | Sequence[MessageExt]
) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        SYSTEM: "rocketmq",
        OPERATION: operation,
        OPERATION_TYPE: operation_type,
    }
    if messages:
        attributes[DESTINATION] = str(getattr(messages[0], "topic", ""))
    if len(messages) != 1:
        attributes[MESSAGE_COUNT] = len(messages)
        return attributes
    if tags := getattr(messages[0], "tags", None):
        attributes[TAG] = str(tags)
    if keys := getattr(messages[0], "keys", None):
        attributes[KEYS] = keys.split() if isinstance(keys, str) else [str(key) for key in keys]
    return attributes


def _note(span: Span, result: object) -> None:
    """Add the place where a message was stored to its span."""
    if isinstance(result, SendResult):
        span.set_attributes({MESSAGE_ID: result.message_id, PARTITION: str(result.queue.queue_id)})


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("libramq", __version__, provider)
