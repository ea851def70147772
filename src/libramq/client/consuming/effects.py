"""The effects of a consumer's core: what its shell has to do, in order.

A question goes out as an `Ask`, and its answer to the part that asked: `done` is a method of that part, bound
to what the part must remember of the question, and returns the effects that follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.formats.route import TopicRouteData
from libramq.message.queue import MessageQueue
from libramq.rpc.call import Call
from libramq.transport.access import REQUEST_TIMEOUT_MS

T = TypeVar("T")

#: Instead of a broker's address: any name server.
NAME_SERVER: Final = ""


class Ask(msgspec.Struct, Generic[T], frozen=True):
    """Make a request to a broker; what follows from its result, or from the error instead, is done's effects.

    takes_late: done gets a result that comes after the timeout, too.
    """

    address: str
    call: Call[T]
    done: Callable[[T | LibraError, MonotonicMs], "Effects"]
    timeout_ms: int = REQUEST_TIMEOUT_MS
    takes_late: bool = False


@dataclass(frozen=True, slots=True)
class FetchRoutes:
    """Fetch the routes of topics from a name server; done gets them (None for a topic without one)."""

    topics: tuple[str, ...]
    done: Callable[[Mapping[str, TopicRouteData | None], MonotonicMs], "Effects"]


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """Read an offset from the local offset store; done gets it, or None."""

    queue: MessageQueue
    done: Callable[[int | None, MonotonicMs], "Effects"]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Run handlers → `handled`."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abandon handlers that do not return, and free their places."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class CommitsEnded:
    """Report to the program that the offsets it wanted committed are committed, or why they are not."""

    ended: Callable[[LibraError | None], None]
    error: LibraError | None


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Write offsets to the local offset store; what cannot be written is written with the next call."""

    offsets: tuple[tuple[MessageQueue, int], ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Notify the listener of queues that are ours now.

    → `hook_done`, if there is a listener: until then the queues are not read.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Notify the listener of queues that are no longer ours: drained, or out of time.

    → `hook_done`, if there is a listener: until then the queues are not released.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Notify the listener of queues that others have, or may have, before we could commit."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Report a problem that stops deliveries. keeps_out: it stops all, until others act."""

    error: LibraError
    keeps_out: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """Report that nothing keeps us out any more."""


@dataclass(frozen=True, slots=True)
class Unregister:
    """Unregister from brokers → `unregistered`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Report the end: no further effects will come."""


#: Changes of our queues, for the listener.
QueueChange = Assigned | Revoked | Lost
Effect = (
    Deliver
    | Ask[Any]
    | QueueChange
    | Abandon
    | CommitsEnded
    | ReadOffset
    | StoreOffsets
    | FetchRoutes
    | Trouble
    | Recovered
    | Unregister
    | Stopped
)
Effects = list[Effect]
#: The functions that perform effects, by the type of the effect that each takes.
Performers = dict[type[Any], Callable[[Any], None]]
