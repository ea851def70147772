"""The FastStream subscriber: a push consumer that passes messages to handlers."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from libramq.client.consuming.consumer import Consumer
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS
from libramq.client.consuming.handling.handler_result import HandlerResult
from libramq.client.consuming.push_consumer import PushConsumer
from libramq.errors import LocalProtocolError
from libramq.filter.subscription import Selector, selector
from libramq.integrations.faststream.message import Received, decode, parse_message
from libramq.integrations.faststream.producer import RocketMQBrokerConfig
from libramq.integrations.faststream.publisher import ReplyPublisher
from libramq.message.message import MessageExt

#: Ours: the interval for looking up a topic that does not exist yet; the client's own interval is 30 s.
ROUTE_REFRESH_MS: Final = 1_000


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The configuration of a subscriber. options: as in PushConsumer."""

    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topic: str
    group: str | None
    expression: Any = "*"
    max_workers: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parser = parse_message
        self.decoder = decode

    @property
    def ack_policy(self) -> AckPolicy:
        """Return the acknowledgement policy; by default failed messages are redelivered, as in RocketMQ."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        policy = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if policy is EMPTY else policy


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The configuration of a subscriber's documentation."""

    topic: str


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQBrokerConfig, RocketMQSubscriberSpecificationConfig]
):
    """The documentation of a subscriber."""

    @property
    def topic(self) -> str:
        """Return the topic, with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """Return the topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads())
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQSubscriber(SubscriberUsecase[Received]):
    """A member of a group that calls handlers."""

    _outer_config: Any

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Received],
    ) -> None:
        super().__init__(config, specification, calls)
        self._config = config
        self._consumer: PushConsumer | None = None
        self._fetching: Consumer | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """Return the topic, with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def group(self) -> str:
        """Return the consumer group: one for each topic, since a group's members must subscribe alike."""
        return self._config.group or f"{self._outer_config.connection.group}-{self.topic}"

    @property
    def selector(self) -> Selector:
        """Return the topic's selector; raises ConfigError."""
        return selector(self._config.expression)

    async def start(self) -> None:
        """Join the group."""
        if self._consumer is not None or self._fetching is not None:
            return
        await super().start()
        options = {"route_refresh_ms": ROUTE_REFRESH_MS, **self._config.options}
        options = {"group": self.group, **self._outer_config.connection.options, **options}
        if self.calls:
            self._consumer = PushConsumer(threads=self._config.max_workers, **options)
            self._consumer.subscribe(self.topic, self._config.expression, self._handle)
            self._post_start()
            await self._consumer.start()
        else:
            self._fetching = Consumer(**options)
            self._fetching.subscribe(self.topic, self._config.expression)
            self._post_start()
            await self._fetching.start()

    async def stop(self) -> None:
        """Leave the group; no more handlers begin, and running ones get the broker's graceful_timeout.

        If called from a handler, another task does this, because it must wait for the handler.
        """
        consumer, fetching = self._consumer, self._fetching
        if self.is_in_handler:
            self.running = False
            self._stopping = asyncio.create_task(self.stop())
            return
        self._consumer = self._fetching = None
        timeout_s = self._outer_config.graceful_timeout
        timeout_ms = STOP_TIMEOUT_MS if timeout_s is None else int(timeout_s * 1000)
        # First: messages that arrive while FastStream waits for handlers would fail and go to the retry
        # topic.
        if consumer is not None:
            await consumer.stop(timeout_ms=timeout_ms)
        if fetching is not None:  # As at the end of a block: messages read by any task are done.
            await fetching.__aexit__(None, None, None)
        await super().stop()

    @property
    def is_in_handler(self) -> bool:
        """Return whether the caller is one of the subscriber's handlers, for which `stop` waits."""
        try:
            if self._consumer is not None:
                self._consumer.refuse_stop_in_handler()
        except LocalProtocolError:
            return True
        return False

    async def get_one(self, *, timeout: float = 5.0) -> StreamMessage[Received] | None:
        """Return the next message; None if none arrives in time. Only for subscribers without handlers."""
        consumer = self._without_handlers()

        async def fetch() -> MessageExt | None:
            found = await consumer.getmany(timeout_ms=int(timeout * 1000), max_records=1)
            return next((messages[0] for messages in found.values()), None)

        return await self._read(consumer, fetch())

    async def __aiter__(self) -> AsyncIterator[StreamMessage[Received]]:
        """Yield messages. Only for subscribers without handlers."""
        consumer = self._without_handlers()
        while True:
            try:
                message = await self._read(consumer, anext(consumer))
            except StopAsyncIteration:
                return
            assert message is not None, "it waits without end"
            yield message

    def get_log_context(self, message: StreamMessage[Received] | None) -> dict[str, str]:
        """Return the fields at the beginning of log lines."""
        return {
            "topic": self.topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }

    async def _handle(self, messages: list[MessageExt]) -> HandlerResult:
        received = Received(messages[0])
        await self.consume(received)
        return received.result()

    def _make_response_publisher(self, message: StreamMessage[Received]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    def _without_handlers(self) -> Consumer:
        assert not self.calls, "a subscriber with handlers passes its messages to them"
        assert self._fetching is not None, "start the subscriber first"
        return self._fetching

    async def _read(
        self, consumer: Consumer, fetch: Coroutine[Any, Any, MessageExt | None]
    ) -> StreamMessage[Received] | None:
        """Fetch a message in a new task, and parse it.

        A broker stops its subscribers in its own tasks, and a consumer waits for the next call of every
        running task that has fetched a message; the new task has ended by then. A message fetched for a
        cancelled caller is redelivered.
        """
        fetching = asyncio.create_task(fetch)
        try:
            message = await fetching
            return None if message is None else await self._parsed(message)
        except asyncio.CancelledError:
            if fetching.done() and not fetching.cancelled() and fetching.exception() is None:
                consumer._finish(is_done=False)
            raise

    async def _parsed(self, message: MessageExt) -> StreamMessage[Received]:
        received = Received(message)
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        middlewares = (each(received, context=context) for each in self._broker_middlewares)
        parsed = await process_msg(msg=received, middlewares=middlewares, parser=parser, decoder=decoder)
        assert parsed is not None, "it was received"
        return parsed
