"""The messages of FastStream's handlers: a received message and its acknowledgement, rejection or redelivery;
a response, and the command that publishes it.
"""

from typing import Any, TypedDict

from faststream.message import AckStatus, StreamMessage, decode_message
from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand

from libramq.client.consuming.handling.handler_result import HandlerResult, Reject, Retry
from libramq.message import properties as names
from libramq.message.message import MessageExt


class Received:
    """A received message with its handler's decision; FastStream's raw message."""

    __slots__ = ("delay", "message", "status")

    def __init__(self, message: MessageExt) -> None:
        self.message = message
        self.status: AckStatus | None = None
        self.delay: float | None = None

    def decide(self, status: AckStatus, delay: float | None = None) -> None:
        """Note a decision; only the first one counts."""
        if self.status is None:
            self.status, self.delay = status, delay

    def result(self) -> HandlerResult:
        """Return the result for a push consumer; an unacknowledged message is redelivered."""
        if self.status is AckStatus.ACKED:
            return None
        return Reject() if self.status is AckStatus.REJECTED else Retry(after=self.delay)


class RocketMQMessage(StreamMessage[Received]):
    """A message. `raw_message.message` is LibraMQ's MessageExt."""

    async def ack(self) -> None:
        """Acknowledge the message as done."""
        self.raw_message.decide(AckStatus.ACKED)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Request redelivery, after growing delays or after `delay` seconds."""
        self.raw_message.decide(AckStatus.NACKED, delay)
        await super().nack()

    async def reject(self) -> None:
        """Make the message a dead letter of its group."""
        self.raw_message.decide(AckStatus.REJECTED)
        await super().reject()


#: The headers common to FastStream's brokers, stored as message properties.
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
#: Ours: marks a message with an empty body, FastStream's encoding of None. RocketMQ does not allow empty
#: bodies.
EMPTY_BODY = "empty-body"
NO_BODY = b"\0"


async def parse_message(received: Received) -> StreamMessage[Any]:
    """Return a message for FastStream."""
    message = received.message
    properties = message.properties
    return RocketMQMessage(
        raw_message=received,
        body=b"" if EMPTY_BODY in properties else message.body,
        headers={name: value for name, value in properties.items() if name != EMPTY_BODY},
        # A RocketMQ request names the client that waits for the reply instead of a topic.
        reply_to=properties.get(REPLY_TO) or properties.get(names.REPLY_TO_CLIENT, ""),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Decode the body according to its content type."""
    return decode_message(message)


class RequestOptions(TypedDict, total=False):
    """The options of a request."""

    headers: dict[str, Any] | None
    correlation_id: str | None
    tags: str | None


class PublishOptions(RequestOptions, total=False):
    """The options of a published message.

    order_key: messages with the same key go to the same queue. delay_ms: the time from storing to delivery.
    reply_to: the topic for the handler's result.
    """

    reply_to: str
    keys: str | None
    order_key: str | None
    delay_ms: int


class RocketMQResponse(Response):
    """A handler's result with tags, keys and order key for its message."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tags: str | None = None,
        keys: str | None = None,
        order_key: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tags = tags
        self.keys = keys
        self.order_key = order_key

    def as_publish_command(self) -> "RocketMQPublishCommand":
        """Return the command that publishes the response."""
        return RocketMQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            tags=self.tags,
            keys=self.keys,
            order_key=self.order_key,
            _publish_type=PublishType.PUBLISH,
        )

    def get_publish_key(self) -> Any | None:
        """Return the key that determines the queue."""
        return self.order_key


class RocketMQPublishCommand(BatchPublishCommand):
    """The command to publish messages to a topic."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        tags: str | None = None,
        keys: str | None = None,
        order_key: str | None = None,
        delay_ms: int = 0,
        reply_to: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
        request: Received | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            reply_to=reply_to,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        self.tags = tags
        self.keys = keys
        self.order_key = order_key
        self.delay_ms = delay_ms
        self.timeout = timeout
        #: The request to which this is the reply.
        self.request = request

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "RocketMQPublishCommand":
        """Convert a command of another kind into a RocketMQ command."""
        if isinstance(cmd, cls):
            return cmd
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            topic=cmd.destination,
            reply_to=cmd.reply_to,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            _publish_type=cmd.publish_type,
        )
