"""The producer that FastStream's publishers and `broker.publish` use, and the connection that creates it."""

from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import BrokerConfig
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import IncorrectState

from libramq.admin.admin import Admin
from libramq.client.producing.producer import Producer
from libramq.client.producing.queue_selector import by_hash
from libramq.errors import LibraError, RequestTimeout
from libramq.integrations.faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EMPTY_BODY,
    NO_BODY,
    REPLY_TO,
    Received,
    RocketMQPublishCommand,
    decode,
    parse_message,
)
from libramq.message.message import Message


class Connection:
    """The clients of one broker. options: common to all of LibraMQ's clients."""

    def __init__(self, group: str = "", **options: Any) -> None:
        self.group = group
        self.options = options
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    @property
    def producer(self) -> Producer:
        """Return the producer; raises IncorrectState until the broker is connected."""
        if self._producer is None:
            raise IncorrectState("connect or start the broker first: it has no producer yet")
        return self._producer

    async def connect(self) -> Producer:
        """Start the clients."""
        if self._producer is None:
            producer, admin = Producer(group=self.group, **self.options), Admin(**self.options)
            await producer.start()
            await admin.start()
            self._producer, self._admin = producer, admin
        return self._producer

    async def disconnect(self) -> None:
        """Stop the clients."""
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        if producer is not None:
            await producer.stop()
        if admin is not None:
            await admin.stop()

    async def ping(self) -> bool:
        """Return whether a name server answers and knows a broker."""
        if self._admin is None:
            return False
        try:
            return bool((await self._admin.cluster_info()).broker_addr_table)
        except LibraError:
            return False


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """The configuration of a broker."""

    connection: Connection = field(default_factory=Connection)


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Publishes through LibraMQ's producer."""

    _parser: AsyncCallable
    _decoder: AsyncCallable

    def __init__(
        self, connection: Connection, parser: CustomCallable | None, decoder: CustomCallable | None
    ) -> None:
        self._connection = connection
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.serializer: Any = None
        self.codec: Any = DefaultCodec()

    def connect(self, serializer: Any, codec: Any) -> None:
        """Set the serializer and the codec of bodies; without a codec, the default one."""
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: RocketMQPublishCommand) -> Any:
        """Send a message or the reply to a request; return the send's result."""
        message = await self.message_of(cmd, cmd.body)
        producer = self._connection.producer
        if cmd.request is not None:
            return await producer.reply(
                cmd.request.message,
                message.body,
                tags=message.tags,
                keys=message.keys,
                properties=message.properties,
            )
        selector = None if cmd.order_key is None else by_hash(cmd.order_key)
        return await producer.send(message, selector=selector)

    async def request(self, cmd: RocketMQPublishCommand) -> Received:
        """Send a request and return the reply; TimeoutError if none arrives in time."""
        message = await self.message_of(cmd, cmd.body)
        timeout_ms = None if cmd.timeout is None else max(1, int(cmd.timeout * 1000))
        try:
            return Received(await self._connection.producer.request(message, timeout_ms=timeout_ms))
        except RequestTimeout as error:  # The exception that FastStream's brokers raise.
            raise TimeoutError(str(error)) from error

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Any:
        """Send messages as a batch."""
        messages = [await self.message_of(cmd, body) for body in cmd.batch_bodies]
        return await self._connection.producer.send_batch(messages)

    async def message_of(self, cmd: RocketMQPublishCommand, body: Any) -> Message:
        """Return the message for a publish command."""
        encoded, content_type = await self.codec.encode(body, self.serializer)
        headers = {
            CONTENT_TYPE: content_type,
            CORRELATION_ID: cmd.correlation_id,
            REPLY_TO: cmd.reply_to,
            EMPTY_BODY: None if encoded else "true",
            **cmd.headers,
        }
        return Message(
            cmd.destination,
            encoded or NO_BODY,
            tags=cmd.tags,
            keys=cmd.keys or (),
            # A header without a value becomes no property.
            properties={name: str(value) for name, value in headers.items() if value not in (None, "")},
            delay_ms=cmd.delay_ms,
        )
