"""The registrator: accepts or refuses the arguments of `subscriber` and `publisher` on FastStream brokers and
routers. Also the router, whose subscribers and publishers a broker includes with a prefix.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from libramq.client.options import PushConsumerOptions, check_names
from libramq.errors import ConfigError
from libramq.filter.subscription import Sql
from libramq.integrations.faststream.message import Received
from libramq.integrations.faststream.producer import RocketMQBrokerConfig
from libramq.integrations.faststream.publisher import (
    RocketMQPublisherSpecification,
    RocketMQPublisherSpecificationConfig,
    RocketMQTopicPublisher,
)
from libramq.integrations.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecification,
    RocketMQSubscriberSpecificationConfig,
)

#: Options of PushConsumer that the broker sets or FastStream's own options replace.
_SET_BY_BROKER = frozenset({"group", "namesrv", "threads", "batch_size", "credentials", "tls"})
#: Alternatives to the options of other brokers' subscribers and of our consumers.
_INSTEAD = {
    "batch": "a handler gets one message",
    "batch_size": "a handler gets one message",
    "threads": "max_workers is how many messages are handled at once",
    "namesrv": "give it to RocketMQBroker",
    "credentials": "give it to RocketMQBroker",
    "tls": "give it to RocketMQBroker",
    "filter": "give it to the decorator: @subscriber(filter=...)",
    "no_ack": "use ack_policy=AckPolicy.MANUAL",
    "auto_commit": "use ack_policy",
    "retry": "use ack_policy and max_reconsume_times",
    "group_id": "it is called group",
    "auto_offset_reset": "it is called consume_from",
    "middlewares": "give them to RocketMQBroker or RocketMQRouter",
}


class RocketMQRegistrator(Registrator[Received, RocketMQBrokerConfig]):
    """The common part of brokers and routers, which registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str | None = None,
        expression: str | Sql = "*",
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> RocketMQSubscriber:
        """Subscribe handlers to a topic, as a member of a group.

        group: by default the broker's group and the topic. expression: tags, or Sql over properties.
        max_workers: the number of messages handled at once. options: those of PushConsumer, such as pop,
        orderly, consume_from and max_reconsume_times. All other arguments are FastStream's.
        """
        for name in options:
            if name in _INSTEAD:
                raise ConfigError(f"subscriber has no such option: {name}; {_INSTEAD[name]}")
        check_names(options, PushConsumerOptions.__annotations__.keys() - _SET_BY_BROKER, "subscriber")
        config = RocketMQSubscriberConfig(
            _outer_config=self.config,  # type: ignore[arg-type]
            topic=topic,
            group=group,
            expression=expression,
            max_workers=max_workers,
            options=options,
            no_reply=no_reply,
            _ack_policy=ack_policy,
        )
        calls = CallsCollection[Received]()
        specification = RocketMQSubscriberSpecification(
            self.config,  # type: ignore[arg-type]
            RocketMQSubscriberSpecificationConfig(
                topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )
        subscriber = RocketMQSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tags: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> RocketMQTopicPublisher:
        """Return a publisher to a topic; as a decorator, it publishes a handler's results."""
        config = PublisherUsecaseConfig(_outer_config=self.config)  # type: ignore[arg-type]
        specification = RocketMQPublisherSpecification(
            self.config,  # type: ignore[arg-type]
            RocketMQPublisherSpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        publisher = RocketMQTopicPublisher(
            config, specification, tags=tags, headers=headers or {}, reply_to=reply_to
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: Registrator[Received, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include a router; SetupError for another broker's router."""
        if not isinstance(router, RocketMQRegistrator):
            raise SetupError(f"expected a RocketMQRouter, not {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


class RocketMQPublisher(ArgsContainer):
    """The arguments of a route's publisher."""

    def __init__(self, topic: str, **arguments: Any) -> None:
        super().__init__(topic=topic, **arguments)


class RocketMQRoute(SubscriberRoute):
    """A handler with its subscriber's arguments."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketMQPublisher] = (),
        **arguments: Any,
    ) -> None:
        super().__init__(call, topic=topic, publishers=publishers, **arguments)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Received, RocketMQBrokerConfig]):
    """A router."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketMQBrokerConfig(
                prefix=prefix,
                include_in_schema=include_in_schema,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
            ),
            routers=routers,
        )
