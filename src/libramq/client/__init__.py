"""The RocketMQ client: producer, consumers, admin; asyncio first.

The same classes for blocking code are in `libramq.sync`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from libramq.admin.admin import Admin as Admin
    from libramq.client.consuming.consumer import Consumer as Consumer
    from libramq.client.consuming.handling.handler_result import HandlerResult as HandlerResult
    from libramq.client.consuming.handling.handler_result import Reject as Reject
    from libramq.client.consuming.handling.handler_result import Retry as Retry
    from libramq.client.consuming.handling.handlers import Handler as Handler
    from libramq.client.consuming.push_consumer import PushConsumer as PushConsumer
    from libramq.client.options import ConsumeFrom as ConsumeFrom
    from libramq.client.popping.simple_consumer import SimpleConsumer as SimpleConsumer
    from libramq.client.producing.producer import Producer as Producer
    from libramq.client.producing.queue_selector import by_hash as by_hash
    from libramq.client.producing.queue_selector import by_random as by_random
    from libramq.client.producing.send_result import SendResult as SendResult
    from libramq.client.producing.send_result import SendStatus as SendStatus
    from libramq.client.producing.transactions import Transaction as Transaction
    from libramq.client.producing.transactions import TransactionState as TransactionState
    from libramq.client.statistics import ConsumerStatistics as ConsumerStatistics
    from libramq.client.statistics import ProducerStatistics as ProducerStatistics
    from libramq.client.statistics import SimpleConsumerStatistics as SimpleConsumerStatistics
    from libramq.filter.subscription import Sql as Sql
    from libramq.remoting.credentials import Credentials as Credentials
    from libramq.transport.tls import Tls as Tls

# Imported on first use: a Spark worker reads queues and needs no producer.
_MODULES: Final = {
    "Admin": "libramq.admin.admin",
    "ConsumeFrom": "libramq.client.options",
    "Consumer": "libramq.client.consuming.consumer",
    "ConsumerStatistics": "libramq.client.statistics",
    "Credentials": "libramq.remoting.credentials",
    "Handler": "libramq.client.consuming.handling.handlers",
    "HandlerResult": "libramq.client.consuming.handling.handler_result",
    "Producer": "libramq.client.producing.producer",
    "ProducerStatistics": "libramq.client.statistics",
    "PushConsumer": "libramq.client.consuming.push_consumer",
    "Reject": "libramq.client.consuming.handling.handler_result",
    "Retry": "libramq.client.consuming.handling.handler_result",
    "SendResult": "libramq.client.producing.send_result",
    "SendStatus": "libramq.client.producing.send_result",
    "SimpleConsumer": "libramq.client.popping.simple_consumer",
    "SimpleConsumerStatistics": "libramq.client.statistics",
    "Sql": "libramq.filter.subscription",
    "Tls": "libramq.transport.tls",
    "Transaction": "libramq.client.producing.transactions",
    "TransactionState": "libramq.client.producing.transactions",
    "by_hash": "libramq.client.producing.queue_selector",
    "by_random": "libramq.client.producing.queue_selector",
}

__all__ = [
    "Admin",
    "ConsumeFrom",
    "Consumer",
    "ConsumerStatistics",
    "Credentials",
    "Handler",
    "HandlerResult",
    "Producer",
    "ProducerStatistics",
    "PushConsumer",
    "Reject",
    "Retry",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerStatistics",
    "Sql",
    "Tls",
    "Transaction",
    "TransactionState",
    "by_hash",
    "by_random",
]


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'libramq.client' has no attribute {name!r}")
        return getattr(import_module(module), name)
