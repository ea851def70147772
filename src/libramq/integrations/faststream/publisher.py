"""The FastStream publishers: `@broker.publisher(topic)`, and the publisher of replies to requests."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Unpack

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from libramq.integrations.faststream.message import (
    PublishOptions,
    RequestOptions,
    RocketMQMessage,
    RocketMQPublishCommand,
)
from libramq.integrations.faststream.producer import RocketMQBrokerConfig
from libramq.message import properties as names


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    """The configuration of a publisher's documentation."""

    topic: str


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """The documentation of a publisher."""

    @property
    def topic(self) -> str:
        """Return the topic, with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Return the name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQTopicPublisher(PublisherUsecase):
    """Publishes to one topic."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: PublisherSpecification[Any, Any],
        *,
        tags: str | None,
        headers: dict[str, Any],
        reply_to: str,
    ) -> None:
        super().__init__(config, specification)
        self._tags, self._headers, self._reply_to = tags, headers, reply_to

    @property
    def topic(self) -> str:
        """Return the topic, with the routers' prefixes."""
        return self.specification.topic  # type: ignore[attr-defined,no-any-return]

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        **options: Unpack[PublishOptions],
    ) -> Any:
        """Publish a message; the arguments override the publisher's own."""
        self._complete(options)
        options["reply_to"] = options.get("reply_to") or self._reply_to
        command = RocketMQPublishCommand(
            message, topic=topic or self.topic, _publish_type=PublishType.PUBLISH, **options
        )
        return await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float | None = 30.0,
        **options: Unpack[RequestOptions],
    ) -> RocketMQMessage:
        """Publish a request and return the reply."""
        self._complete(options)
        command = RocketMQPublishCommand(
            message, topic=topic or self.topic, timeout=timeout, _publish_type=PublishType.REQUEST, **options
        )
        reply: RocketMQMessage = await self._basic_request(command, producer=self._outer_config.producer)
        return reply

    def _complete(self, options: RequestOptions) -> None:
        """Fill in options missing from a call with the publisher's own and a new correlation id."""
        options["headers"] = self._headers | (options.get("headers") or {})
        options["correlation_id"] = options.get("correlation_id") or self._outer_config.id_generator()
        options["tags"] = options.get("tags") or self._tags

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish a handler's result."""
        command = RocketMQPublishCommand.from_cmd(cmd)
        command.destination = self.topic
        command.reply_to = command.reply_to or self._reply_to
        command.tags = command.tags or self._tags
        command.add_headers(self._headers, override=False)
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result as the reply to a message."""

    def __init__(self, producer: ProducerProto[Any], message: Any) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Address the result to the message's reply topic or to the client that waits for it."""
        command = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._message.reply_to
        if names.REPLY_TO_CLIENT in self._message.raw_message.message.properties:
            command.request = self._message.raw_message
        return command
