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
    from libramq.errors import BrokerError as BrokerError
    from libramq.errors import BufferFull as BufferFull
    from libramq.errors import ConfigError as ConfigError
    from libramq.errors import ConnectFailed as ConnectFailed
    from libramq.errors import ConnectionLost as ConnectionLost
    from libramq.errors import ConsumerNotOnline as ConsumerNotOnline
    from libramq.errors import Fenced as Fenced
    from libramq.errors import HandlerTooSlow as HandlerTooSlow
    from libramq.errors import InvalidMessage as InvalidMessage
    from libramq.errors import InvalidName as InvalidName
    from libramq.errors import InvalidParameter as InvalidParameter
    from libramq.errors import InvalidResult as InvalidResult
    from libramq.errors import LibraError as LibraError
    from libramq.errors import LocalProtocolError as LocalProtocolError
    from libramq.errors import LoopClosed as LoopClosed
    from libramq.errors import MemberReplaced as MemberReplaced
    from libramq.errors import MessageIllegal as MessageIllegal
    from libramq.errors import NameServerUnavailable as NameServerUnavailable
    from libramq.errors import NoPermission as NoPermission
    from libramq.errors import NotCoordinator as NotCoordinator
    from libramq.errors import NotYetGranted as NotYetGranted
    from libramq.errors import ProtocolError as ProtocolError
    from libramq.errors import PullOffsetMoved as PullOffsetMoved
    from libramq.errors import QueryNotFound as QueryNotFound
    from libramq.errors import RemoteError as RemoteError
    from libramq.errors import RemoteProtocolError as RemoteProtocolError
    from libramq.errors import RequestCodeNotSupported as RequestCodeNotSupported
    from libramq.errors import RequestTimeout as RequestTimeout
    from libramq.errors import RouteNotFound as RouteNotFound
    from libramq.errors import ServiceNotAvailable as ServiceNotAvailable
    from libramq.errors import StoreCorrupt as StoreCorrupt
    from libramq.errors import StoreDamaged as StoreDamaged
    from libramq.errors import StoreError as StoreError
    from libramq.errors import StoreLocked as StoreLocked
    from libramq.errors import SubscriptionGroupNotExist as SubscriptionGroupNotExist
    from libramq.errors import SubscriptionParseFailed as SubscriptionParseFailed
    from libramq.errors import SubscriptionsDiffer as SubscriptionsDiffer
    from libramq.errors import SyncFailed as SyncFailed
    from libramq.errors import SystemBusy as SystemBusy
    from libramq.errors import TopicNotExist as TopicNotExist
    from libramq.errors import UnknownMember as UnknownMember
    from libramq.errors import VersionNotSupported as VersionNotSupported
    from libramq.message import Message as Message
    from libramq.message import MessageExt as MessageExt
    from libramq.message import MessageQueue as MessageQueue

__version__ = "0.2.0.dev0"

_ERRORS: Final = (
    "BrokerError",
    "BufferFull",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumerNotOnline",
    "Fenced",
    "HandlerTooSlow",
    "InvalidMessage",
    "InvalidName",
    "InvalidParameter",
    "InvalidResult",
    "LibraError",
    "LocalProtocolError",
    "LoopClosed",
    "MemberReplaced",
    "MessageIllegal",
    "NameServerUnavailable",
    "NoPermission",
    "NotCoordinator",
    "NotYetGranted",
    "ProtocolError",
    "PullOffsetMoved",
    "QueryNotFound",
    "RemoteError",
    "RemoteProtocolError",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "RouteNotFound",
    "ServiceNotAvailable",
    "StoreCorrupt",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "SubscriptionGroupNotExist",
    "SubscriptionParseFailed",
    "SubscriptionsDiffer",
    "SyncFailed",
    "SystemBusy",
    "TopicNotExist",
    "UnknownMember",
    "VersionNotSupported",
)
_HOME: Final = {
    "Message": "libramq.message",
    "MessageExt": "libramq.message",
    "MessageQueue": "libramq.message",
    "Producer": "libramq.client",
    "PushConsumer": "libramq.client",
    "Reject": "libramq.client",
    "Retry": "libramq.client",
    **dict.fromkeys(_ERRORS, "libramq.errors"),
}

__all__ = [
    "BrokerError",
    "BufferFull",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumerNotOnline",
    "Fenced",
    "HandlerTooSlow",
    "InvalidMessage",
    "InvalidName",
    "InvalidParameter",
    "InvalidResult",
    "LibraError",
    "LocalProtocolError",
    "LoopClosed",
    "MemberReplaced",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageQueue",
    "NameServerUnavailable",
    "NoPermission",
    "NotCoordinator",
    "NotYetGranted",
    "Producer",
    "ProtocolError",
    "PullOffsetMoved",
    "PushConsumer",
    "QueryNotFound",
    "Reject",
    "RemoteError",
    "RemoteProtocolError",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "Retry",
    "RouteNotFound",
    "ServiceNotAvailable",
    "StoreCorrupt",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "SubscriptionGroupNotExist",
    "SubscriptionParseFailed",
    "SubscriptionsDiffer",
    "SyncFailed",
    "SystemBusy",
    "TopicNotExist",
    "UnknownMember",
    "VersionNotSupported",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'libramq' has no attribute {name!r}")
    return getattr(import_module(home), name)
