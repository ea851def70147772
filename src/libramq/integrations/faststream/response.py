"""The response of a FastStream handler, and the command that publishes it."""

from typing import Any, TypedDict

from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand

from libramq.integrations.faststream.message import Received


class RequestOptions(TypedDict, total=False):
    """The options of a request."""

    headers: dict[str, Any] | None
    correlation_id: str | None
    tags: str | None


class PublishOptions(RequestOptions, total=False):
    """The options of a published message.

    order_key: messages with one key go to one queue. delay_ms: how long after it is stored it is delivered.
    reply_to: the topic where the handler's result is published.
    """

    reply_to: str
    keys: str | None
    order_key: str | None
    delay_ms: int


class RocketMQResponse(Response):
    """A handler's result with the tags, keys and order key of the message that it becomes."""

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
        """Return the command that publishes it."""
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
        """Return the key that decides the queue."""
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
        #: The request that it replies to.
        self.request = request

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "RocketMQPublishCommand":
        """Return the command of another kind as one of RocketMQ's."""
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
