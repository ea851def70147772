"""The message of a FastStream handler, and what acknowledging or rejecting it does: done, again, or a dead
letter.
"""

from typing import Any

from faststream.message import AckStatus, StreamMessage, decode_message

from libramq.client.consuming.handling.handler_result import HandlerResult, Reject, Retry
from libramq.message import properties as names
from libramq.message.message import MessageExt


class Received:
    """A received message with the decision of its handler; FastStream's raw message."""

    __slots__ = ("delay", "message", "status")

    def __init__(self, message: MessageExt) -> None:
        self.message = message
        self.status: AckStatus | None = None
        self.delay: float | None = None

    def decide(self, status: AckStatus, delay: float | None = None) -> None:
        """Take the first decision."""
        if self.status is None:
            self.status, self.delay = status, delay

    def result(self) -> HandlerResult:
        """Return the result for a push consumer; what was not acknowledged comes again."""
        if self.status is AckStatus.ACKED:
            return None
        return Reject() if self.status is AckStatus.REJECTED else Retry(after=self.delay)


class RocketMQMessage(StreamMessage[Received]):
    """A message. `raw_message.message` is LibraMQ's MessageExt."""

    async def ack(self) -> None:
        """Take it as done."""
        self.raw_message.decide(AckStatus.ACKED)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Have it delivered again, after growing delays or `delay` seconds."""
        self.raw_message.decide(AckStatus.NACKED, delay)
        await super().nack()

    async def reject(self) -> None:
        """Make it a dead letter of its group."""
        self.raw_message.decide(AckStatus.REJECTED)
        await super().reject()


#: The headers that FastStream's brokers share, kept as properties of a message.
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
#: Ours: it marks a message whose body is empty. RocketMQ has no empty bodies, and FastStream's None is one.
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
        # A request of RocketMQ's names the client that waits for the reply, not a topic.
        reply_to=properties.get(REPLY_TO) or properties.get(names.REPLY_TO_CLIENT, ""),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Return the body as its content type says."""
    return decode_message(message)
