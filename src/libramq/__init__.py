"""LibraMQ: the RocketMQ message system in Python.

The names below load on first use, so that a Spark worker that imports `libramq.spark` loads no client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from libramq.client import Producer as Producer
    from libramq.client import PushConsumer as PushConsumer
    from libramq.client import Reject as Reject
    from libramq.client import Retry as Retry
    from libramq.message import Message as Message
    from libramq.message import MessageExt as MessageExt
    from libramq.message import MessageQueue as MessageQueue

__version__ = "0.2.0.dev0"

_HOME: Final = {
    "Message": "libramq.message",
    "MessageExt": "libramq.message",
    "MessageQueue": "libramq.message",
    "Producer": "libramq.client",
    "PushConsumer": "libramq.client",
    "Reject": "libramq.client",
    "Retry": "libramq.client",
}

__all__ = ["Message", "MessageExt", "MessageQueue", "Producer", "PushConsumer", "Reject", "Retry"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'libramq' has no attribute {name!r}")
    return getattr(import_module(home), name)
