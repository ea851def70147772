"""LibraMQ: a RocketMQ broker, name server and clients in Python.

Clients and messages are imported on first use, so that a Spark worker with `libramq.spark` loads no client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from libramq import errors
from libramq.errors import *  # noqa: F403 (every public error; errors.__all__ is the one list of them)

if TYPE_CHECKING:
    from libramq.client import Consumer, Producer, PushConsumer, Reject, Retry, SimpleConsumer, Sql
    from libramq.logs import log_to_stderr
    from libramq.message import Message, MessageExt, MessageQueue

__version__ = "0.2.0.dev0"

__all__ = ["Consumer", "Message", "MessageExt", "MessageQueue", "Producer", "PushConsumer", "Reject", "Retry"]
__all__ += ["SimpleConsumer", "Sql", "log_to_stderr"]
__all__ += errors.__all__

_MODULES: Final = {
    "Consumer": "libramq.client",
    "Message": "libramq.message",
    "MessageExt": "libramq.message",
    "MessageQueue": "libramq.message",
    "Producer": "libramq.client",
    "PushConsumer": "libramq.client",
    "Reject": "libramq.client",
    "Retry": "libramq.client",
    "SimpleConsumer": "libramq.client",
    "Sql": "libramq.client",
    "log_to_stderr": "libramq.logs",
}


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'libramq' has no attribute {name!r}")
        return getattr(import_module(module), name)
