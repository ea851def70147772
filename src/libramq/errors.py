"""The exceptions LibraMQ raises, as one tree; which response code of a broker becomes which; hints: the name
that was probably meant, or the missing extra.

    LibraError
    ├── ConfigError                 an option, property, path or name the user gave cannot be used
    │   ├── InvalidName             a topic or group name outside RocketMQ's rules
    │   ├── NoSuchMethod            a client of this kind has no such method; another kind may have it
    │   └── MissingExtra            a library of one of LibraMQ's extras is not installed
    ├── InvalidMessage              a message that no broker would take (empty, too large, reserved property)
    ├── InvalidResult               a handler's return value does not say which messages are done
    ├── BufferFull                  the producer's send buffer is full
    ├── SubscriptionsDiffer         members of a group have different tags: it passes over some messages
    ├── HandlerTooSlow              a handler exceeds max_processing_ms; others get its member's queues
    ├── CommitFailed                offsets were not committed: their queue has moved to another member
    ├── LoopClosed                  the event loop was closed before its consumer was stopped
    ├── StoreError                  the store directory cannot be used as it is
    │   ├── StoreLocked             another process has it open
    │   ├── StoreCorrupt            bytes in it are not what the format allows
    │   ├── SyncFailed              a flush failed: nothing written since the last one is safe
    │   └── StoreDamaged            stored data cannot be read any more; an operator must decide
    ├── ProtocolError
    │   ├── LocalProtocolError      our side broke the protocol: a bug of ours
    │   │   └── InvalidState        a call came too early, too late, or from a place where it cannot work
    │   └── RemoteProtocolError     the other side did
    │       └── BodyDamaged         a message's body does not match its checksum
    └── RemoteError                 a request to another process did not succeed
        ├── ConnectFailed           nothing accepts connections at the address
        ├── ConnectionLost          the connection ended before the answer arrived
        ├── RequestTimeout          no answer within the time allowed
        ├── NameServerUnavailable   none of the name servers answered
        ├── RouteNotFound           the name server knows no broker for the topic
        │   └── BrokersAway         those that had it are away, or none is registered at all
        ├── FeatureNotSupported     the broker's version lacks a feature, and would do something else instead
        ├── MemberReplaced          another client has joined under our static member's name
        └── BrokerError             the answer is an error: `.response_code`, `.remark`
            └── one class a response code: TopicNotExist, NoPermission, SystemBusy …

Every message names the thing that failed and a remedy. Foreign exceptions (OSError, asyncio's, msgspec's) are
caught at the boundary and raised as one of these.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import ClassVar, Final, Self

from libramq.codes import ResponseCode

__all__ = [
    "BodyDamaged",
    "BrokerError",
    "BrokersAway",
    "BufferFull",
    "CommitFailed",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumerNotOnline",
    "FeatureNotSupported",
    "Fenced",
    "FilterRefused",
    "HandlerTooSlow",
    "InvalidMessage",
    "InvalidName",
    "InvalidParameter",
    "InvalidResult",
    "InvalidState",
    "LibraError",
    "LocalProtocolError",
    "LoopClosed",
    "MemberReplaced",
    "MessageIllegal",
    "MissingExtra",
    "NameServerUnavailable",
    "NoPermission",
    "NoSuchMethod",
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
]


#: Ours: at most this many names are compared with a wrong one, at 20 to 90 µs each.
NAMES_COMPARED_MAX: Final = 10_000
#: Ours: the similarity (difflib's ratio) from which names are considered near.
NEARNESS: Final = 0.65


def nearest_name(wrong: str, names: Iterable[str]) -> str | None:
    """Return the existing name that a wrong one was probably meant to be, or None."""
    from difflib import get_close_matches  # Few programs need it, but all import this module.

    by_lower = {name.lower(): name for name in islice(names, NAMES_COMPARED_MAX)}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=NEARNESS)
    return by_lower[near[0]] if near else None


def did_you_mean(wrong: str, names: Iterable[str]) -> str:
    """Return a hint at the existing name probably meant by a wrong one; "" if none is near."""
    near = nearest_name(wrong, names)
    return f" (did you mean {near}?)" if near else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 member", "2 members"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class LibraError(Exception):
    """The base of all exceptions that LibraMQ raises on purpose."""


class ConfigError(LibraError):
    """An option, property, path or name cannot be used; the text says what is allowed."""


class InvalidName(ConfigError, ValueError):
    """A topic or group name violates the rules of TopicValidator.java."""


class NoSuchMethod(ConfigError, AttributeError):
    """A client has no such method; the text names the nearest one, or the client that has it."""


class MissingExtra(ConfigError, ImportError):
    """A library of an extra is missing; the text is the command that installs it."""


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise MissingExtra if the block imports a missing library. what: the subject of the error."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtra) or (error.name or "").startswith("libramq"):
            raise
        library = (error.name or str(error)).partition(".")[0]
        text = f"{what} needs {library}: pip install 'libramq[{extra}]'"
        raise MissingExtra(text, name=error.name) from None


class Journalling:
    """Raises BrokerError if the disk refuses a journal write of the block.

    A class, because every committing request enters one: a generator takes nearly a microsecond longer.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            remark = f"the {self._what} cannot be journalled: {error}"
            raise broker_error(ResponseCode.SYSTEM_ERROR, remark) from error


class InvalidMessage(LibraError, ValueError):
    """No broker would accept this message."""


class InvalidResult(LibraError, TypeError):
    """A handler's return value does not say which of its messages are done."""


class BufferFull(LibraError):
    """The producer's send buffer is full; continue when some messages have been sent."""


class SubscriptionsDiffer(LibraError):
    """Members of a coordinated group have different subscriptions to a topic, so it skips some messages."""


class HandlerTooSlow(LibraError):
    """A handler exceeds max_processing_ms; others get its member's queues until the handler is done."""


class CommitFailed(LibraError):
    """Offsets were not committed: their queue is no longer this consumer's."""


class LoopClosed(LibraError):
    """The consumer's event loop was closed without `stop`; the consumer has ended."""


class StoreError(LibraError):
    """The store directory cannot be used as it is."""


class StoreLocked(StoreError):
    """Another process has the store directory open."""


class StoreCorrupt(StoreError):
    """The store has bytes that its format does not allow."""


class SyncFailed(StoreError):
    """An fsync failed. The kernel may have dropped the pages, so a later success proves nothing."""


class StoreDamaged(StoreError):
    """Stored data cannot be read any more; if more than one record is lost, an operator must decide."""


class ProtocolError(LibraError):
    """The remoting protocol was violated."""


class LocalProtocolError(ProtocolError):
    """Our side violated the protocol: a bug of ours."""


class InvalidState(LocalProtocolError, RuntimeError):
    """A call came too early, too late, or on a wrong thread or loop; the text says what to do instead."""


class RemoteProtocolError(ProtocolError):
    """The other side violated the protocol."""


class BodyDamaged(RemoteProtocolError):
    """A received message's body does not match its checksum."""


class RemoteError(LibraError):
    """A request to another process failed."""


class ConnectFailed(RemoteError):
    """Nothing accepts connections at the address."""


class ConnectionLost(RemoteError):
    """The connection ended before the response came; whether the request took effect is unknown."""


class RequestTimeout(RemoteError):
    """There was no response within the allowed time; whether the request took effect is unknown."""

    @classmethod
    def of(cls, address: str, time: str = "in time") -> Self:
        """Return the error of a peer that has not answered."""
        return cls(f"{address} did not answer {time} (allow more time, or see whether it hangs)")


class NameServerUnavailable(RemoteError):
    """None of the name servers answered."""


class RouteNotFound(RemoteError):
    """No broker of the topic is registered at the name server."""


class BrokersAway(RouteNotFound):
    """The brokers that had the topic are away, or none is registered at all: it may be there soon."""


class MemberReplaced(RemoteError):
    """Another client has joined the group under the name (instance_id) of our static member."""


class FeatureNotSupported(RemoteError):
    """The broker's version lacks a feature; it was not asked, because it would do something else instead."""


#: Remedies for failed changes of users, by the text of Apache's answer: its code is that of any refusal.
_OF_USERS: Final = {
    "The user is existed": "It exists already: libra admin updateUser changes it.",
    "The user is not exist": "libra admin listUser shows those that exist; createUser creates one.",
}


class BrokerError(RemoteError):
    """The response is an error.

    response_code: the broker's or name server's number (a codes.ResponseCode if known).
    remark: its text. remedy: what usually helps. request: the request's name, if that explains the error.
    """

    remedy: ClassVar[str] = ""
    by_code: ClassVar[dict[int, type["BrokerError"]]] = {}

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """Register the class whose instance `broker_error` returns for a response code."""
        if code is not None:
            BrokerError.by_code[code] = cls

    def __init__(
        self, response_code: int, remark: str | None = None, *, where: str = "", request: str = ""
    ) -> None:
        self.response_code = response_code
        self.remark = remark or ""
        try:
            name = ResponseCode(response_code).name
        except ValueError:
            name = "unknown code"
        answered = f"{where} answered {request + ' with ' if request else ''}" if where else ""
        text = f"{answered}{response_code} {name}"
        text += f": {self.remark.strip()}" if self.remark else ""
        remedy = _OF_USERS.get(self.remark.rstrip("."), self.remedy)
        super().__init__(text.rstrip(".") + f". {remedy}" if remedy else text)


class SystemBusy(BrokerError, code=ResponseCode.SYSTEM_BUSY):
    """2: flow control; the broker did not accept the request."""

    remedy = "Send again after a pause, or to another broker."


class RequestCodeNotSupported(BrokerError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """3: the peer does not know this request."""

    remedy = "Send it to a broker or name server whose version supports it."


class MessageIllegal(BrokerError, code=ResponseCode.MESSAGE_ILLEGAL):
    """13: the broker refuses the message itself (size, properties, topic)."""

    remedy = "Correct the message; sending it again cannot help."


class ServiceNotAvailable(BrokerError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """14: the broker cannot write now (shutting down, disk full, a slave)."""

    remedy = "Look at the broker's log and disk; other brokers may accept requests meanwhile."


class VersionNotSupported(BrokerError, code=ResponseCode.VERSION_NOT_SUPPORTED):
    """15: the peer does not support the request's protocol version."""

    remedy = "Upgrade whichever of the two is older."


class FilterRefused(BrokerError):
    """The broker does not filter by the subscription's SQL92 expression, and returns no messages for it."""

    remedy = "Set enablePropertyFilter=true at Apache's broker, or subscribe by tags."


class NoPermission(BrokerError, code=ResponseCode.NO_PERMISSION):
    """16: not allowed, or the topic or broker lacks the permission."""

    remedy = "Check the credentials and the permission of the topic and group."


class TopicNotExist(BrokerError, code=ResponseCode.TOPIC_NOT_EXIST):
    """17: the topic does not exist."""

    remedy = "Create it (libra admin updateTopic -c CLUSTER -t TOPIC) or check its name."


class PullOffsetMoved(BrokerError, code=ResponseCode.PULL_OFFSET_MOVED):
    """21: the requested offset lies outside the queue."""


class QueryNotFound(BrokerError, code=ResponseCode.QUERY_NOT_FOUND):
    """22: there is no such entry."""


class SubscriptionParseFailed(BrokerError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """23: the filter expression cannot be parsed."""

    remedy = "Use '*' or 'tagA || tagB', or correct the SQL92 expression."


class SubscriptionGroupNotExist(BrokerError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """26: the consumer group does not exist."""

    remedy = "Create it, or let the broker create groups (autoCreateSubscriptionGroup=true)."


class InvalidParameter(BrokerError, code=ResponseCode.INVALID_PARAMETER):
    """29: a field of the request has a value that is not allowed."""


class ConsumerNotOnline(BrokerError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """206: no member of the group is connected."""

    remedy = "Start a consumer of the group first."


class Fenced(BrokerError, code=ResponseCode.FENCED):
    """3100: the queue is open to another member, or under a later epoch; or the group is under epochs."""

    remedy = "Release the queue; the group's coordinator decides who owns it."


class UnknownMember(BrokerError, code=ResponseCode.UNKNOWN_MEMBER):
    """3101: the coordinator does not, or no longer, know the member; our clients rejoin automatically."""


class NotCoordinator(BrokerError, code=ResponseCode.NOT_COORDINATOR):
    """3102: another broker coordinates the group; its address is the remark (empty: not known yet)."""

    remedy = "Send the request there, or find the coordinator with GROUP_FIND."


class NotYetGranted(BrokerError, code=ResponseCode.NOT_YET_GRANTED):
    """3103: the coordinator's grant has not reached the queue's broker."""

    remedy = "Open the queue again in a moment."


def broker_error(
    response_code: int, remark: str | None, *, where: str = "", request: str = ""
) -> BrokerError:
    """Return the exception for an error response."""
    return BrokerError.by_code.get(response_code, BrokerError)(
        response_code, remark, where=where, request=request
    )
