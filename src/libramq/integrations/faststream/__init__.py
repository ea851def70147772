"""A FastStream broker: FastStream applications on RocketMQ, with LibraMQ's or Apache's servers.

    from faststream import FastStream
    from libramq.integrations.faststream import RocketMQBroker

    broker = RocketMQBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("Orders")
    @broker.publisher("Invoices")
    async def invoice(order: Order) -> Invoice: ...

Upstream: FastStream 0.7; modelled on its own brokers (faststream/nats, faststream/confluent).
"""

from libramq.errors import needs_extra

with needs_extra("libramq.integrations.faststream", "faststream"):
    from libramq.integrations.faststream.broker import RocketMQBroker
    from libramq.integrations.faststream.message import (
        RocketMQMessage,
        RocketMQPublishCommand,
        RocketMQResponse,
    )
    from libramq.integrations.faststream.registrator import RocketMQPublisher, RocketMQRoute, RocketMQRouter
    from libramq.integrations.faststream.testing import TestRocketMQBroker

__all__ = (
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
)
