"""The options of clients, with their types and bounds, for asyncio and for blocking code; how an unknown or
invalid one is refused; the base of all asyncio clients.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Required, Self, TypedDict, get_type_hints

from libramq.balance import TopicRule
from libramq.clock import Clock
from libramq.errors import ConfigError, LibraError, NoSuchMethod, did_you_mean, nearest_name
from libramq.filesystem import FileSystem
from libramq.message.message import Deserializer
from libramq.message.queue import MessageQueue
from libramq.remoting.credentials import Credentials
from libramq.transport.tls import Tls


class ConsumeFrom(Enum):
    """The position at which a group begins in a queue without a committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


#: Called with queues; a plain function or a coroutine function.
QueueHook = Callable[[tuple[MessageQueue, ...]], Any]
#: Called with a LibraError; a plain function or a coroutine function.
ErrorHook = Callable[[LibraError], Any]
#: Where a new group begins; the strings are the names that other clients use.
Beginning = ConsumeFrom | Literal["earliest", "latest", "timestamp"]


class GroupConsumerOptions(TypedDict, total=False):
    """The options that a PushConsumer and a Consumer have in common.

    Most are fields of ConsumerSettings, which has their defaults and bounds.
    """

    group: Required[str]
    namesrv: str | Sequence[str] | None
    consume_from: Beginning
    consume_timestamp_ms: int | None
    strategy: str | TopicRule | None
    broadcasting: bool
    instance_name: str | None
    instance_id: str | None
    local_offsets: str | Path | None
    on_assigned: QueueHook | None
    on_revoked: QueueHook | None
    on_lost: QueueHook | None
    on_error: ErrorHook | None
    deserializer: Deserializer | None
    credentials: Credentials | None
    tls: Tls | None
    clock: Clock | None
    randomness: random.Random | None
    filesystem: FileSystem | None
    # Few programs change these.
    pull_batch_size: int
    pull_batch_bytes: int
    pull_interval_ms: int
    pull_threshold_for_queue: int
    pull_threshold_mib_for_queue: int
    pull_threshold_for_topic: int
    pull_threshold_mib_for_topic: int
    span_max: int
    route_refresh_ms: int
    heartbeat_ms: int
    rebalance_ms: int
    takeover_delay_ms: int
    revoke_drain_ms: int
    revoke_timeout_ms: int
    catch_up_rate: int
    session_ms: int
    max_processing_ms: int


class ConsumerOptions(GroupConsumerOptions, total=False):
    """All options of a Consumer."""

    auto_commit: bool
    auto_commit_interval_ms: int
    pull_threshold_for_all: int


class PushConsumerOptions(GroupConsumerOptions, total=False):
    """All options of a PushConsumer."""

    threads: int
    batch_size: int
    orderly: bool
    pop: bool
    dead_letter_errors: bool
    consume_timeout_ms: int
    max_reconsume_times: int
    persist_ms: int
    orderly_drain_ms: int
    orderly_takeover_ms: int
    suspend_ms: int
    invisible_ms: int


class SimpleConsumerOptions(TypedDict, total=False):
    """All options of a SimpleConsumer."""

    group: Required[str]
    namesrv: str | Sequence[str] | None
    from_end: bool
    prefetch: bool
    deserializer: Deserializer | None
    credentials: Credentials | None
    tls: Tls | None
    clock: Clock | None
    randomness: random.Random | None


class AdminOptions(TypedDict, total=False):
    """All options of an Admin."""

    namesrv: str | Sequence[str] | None
    timeout_ms: int
    credentials: Credentials | None
    tls: Tls | None
    clock: Clock | None
    randomness: random.Random | None


def beginning(consume_from: object) -> ConsumeFrom:
    """Return the position at which a group begins, by its name; raises ConfigError."""
    if isinstance(consume_from, ConsumeFrom):
        return consume_from
    if isinstance(consume_from, str):
        found = _BEGINNINGS.get(consume_from.lower())
        if found is not None:
            return found
    raise ConfigError(
        f'consume_from is "earliest", "latest" or "timestamp" (or a ConsumeFrom), not {consume_from!r}'
    )


def check_names(options: Mapping[str, Any], allowed: Collection[str], what: str) -> None:
    """Raise ConfigError for an unknown option, suggesting the nearest known one."""
    for name in options:
        if name not in allowed:
            near = nearest_name(name, allowed)
            advice = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"{what} has no such option: {name}{advice}")


class Within(NamedTuple):
    """The bounds of a setting that is a whole number: `threads: Annotated[int, Within(1, 1000)]`."""

    low: int
    high: int | None = None


def check_numbers(settings: object) -> None:
    """Raise ConfigError for a setting that is not within the bounds of its annotation."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        for within in getattr(kind, "__metadata__", ()):
            whole_number(name, getattr(settings, name), *within)


def whole_number(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise ConfigError unless the value is a whole number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is a whole number, not {value!r}")
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name} is {allowed}, not {value}")


def check_function(name: str, value: object) -> None:
    """Raise ConfigError for a value that cannot be called."""
    if not callable(value):
        raise ConfigError(f"{name} is a function, not {value!r}")


def instance_of(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise ConfigError for a value of another type. what: the types in words."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {what}, not {value!r}")


_BEGINNINGS = (
    {
        "earliest": ConsumeFrom.FIRST_OFFSET,
        "latest": ConsumeFrom.LAST_OFFSET,
        "timestamp": ConsumeFrom.TIMESTAMP,
    }
    | {each.value.lower(): each for each in ConsumeFrom}
    | {each.name.lower(): each for each in ConsumeFrom}
)

#: Methods that users may look for in a client of another kind.
_AT_OTHERS = {
    **dict.fromkeys(("assign", "batches", "commit", "getmany", "getone", "position", "seek"), "Consumer"),
    **dict.fromkeys(("ack", "change_invisible_time", "nack", "receive", "unsubscribe"), "SimpleConsumer"),
    **dict.fromkeys(("flush", "request", "send", "send_batch", "send_nowait", "send_oneway"), "Producer"),
    **dict.fromkeys(("create_topic", "delete_topic", "groups", "topics"), "Admin"),
}
#: Method names of other libraries, and LibraMQ's equivalents.
_SYNONYMS = {
    "close": "stop",
    "shutdown": "stop",
    "poll": "getmany",
    "produce": "send",
    "acknowledge": "ack",
}


def no_such_method(client: object, name: str) -> AttributeError:
    """Return the error for an attribute that a client does not have."""
    kind = type(client).__name__
    if name.startswith("_"):
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    same = _SYNONYMS.get(name)
    if same is not None and hasattr(type(client), same):
        return NoSuchMethod(f"a {kind} has no {name}(); use {same}()")
    if name in _AT_OTHERS:
        return NoSuchMethod(f"a {kind} has no {name}(); {_AT_OTHERS[name]} has it")
    public = [each for each in dir(type(client)) if not each.startswith("_")]
    return NoSuchMethod(f"a {kind} has no {name}{did_you_mean(name, public)}")


class AsyncClient:
    """A client for asyncio: `async with` starts and stops it; errors for missing methods suggest others."""

    if not TYPE_CHECKING:  # A type checker would accept every name.

        def __getattr__(self, name: str) -> Any:
            raise no_such_method(self, name)

    async def start(self) -> None:
        """Start."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close all connections."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
