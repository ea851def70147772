"""A FastStream broker: FastStream's applications on RocketMQ, on LibraMQ's servers or Apache's.

    from faststream import FastStream
    from libramq.integrations.faststream import RocketMQBroker

    broker = RocketMQBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("Orders")
    @broker.publisher("Invoices")
    async def invoice(order: Order) -> Invoice: ...

Upstream: FastStream 0.7, as its own brokers are made (faststream/nats, faststream/confluent).
"""

try:
    from libramq.integrations.faststream.broker import RocketMQBroker
    from libramq.integrations.faststream.message import RocketMQMessage
    from libramq.integrations.faststream.response import RocketMQPublishCommand, RocketMQResponse
    from libramq.integrations.faststream.router import RocketMQPublisher, RocketMQRoute, RocketMQRouter
    from libramq.integrations.faststream.testing import TestRocketMQBroker
except ImportError as missing:
    if (missing.name or "").startswith("libramq"):
        raise
    raise ImportError(
        "libramq.integrations.faststream needs FastStream 0.7: pip install 'libramq[faststream]'",
        name=missing.name,
    ) from missing

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
