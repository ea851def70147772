"""The FastStream router: subscribers and publishers that a broker includes, with a prefix."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from libramq.integrations.faststream.config import RocketMQBrokerConfig
from libramq.integrations.faststream.message import Received
from libramq.integrations.faststream.registrator import RocketMQRegistrator


class RocketMQPublisher(ArgsContainer):
    """The arguments of a publisher of a route."""

    def __init__(self, topic: str, **arguments: Any) -> None:
        super().__init__(topic=topic, **arguments)


class RocketMQRoute(SubscriberRoute):
    """A handler with the arguments of its subscriber."""

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
