"""The effects of a consumer's core, which its shell performs in order.

The parts of the core add them to the kernel's `effects`. A request goes out as an `Ask`, and its answer to
the part that made it: `done` is a method of that part, bound to the context of the request.
"""

from collections.abc import Callable, Mapping, Sequence
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
    """Make a request to a broker; done gets its result, or the error instead.

    takes_late: done also gets a result that comes after the timeout.
    """

    address: str
    call: Call[T]
    done: Callable[[T | LibraError, MonotonicMs], None]
    timeout_ms: int = REQUEST_TIMEOUT_MS
    takes_late: bool = False


class FetchRoutes(msgspec.Struct, frozen=True):
    """Fetch the routes of topics from a name server; done gets them (None for a topic without one)."""

    topics: tuple[str, ...]
    done: Callable[[Mapping[str, TopicRouteData | None], MonotonicMs], None]


class ReadOffset(msgspec.Struct, frozen=True):
    """Read an offset from the local offset store; done gets it, or None."""

    queue: MessageQueue
    done: Callable[[int | None, MonotonicMs], None]


class Deliver(msgspec.Struct, frozen=True):
    """Run handlers → `handled`."""

    deliveries: Sequence[Delivery]


class Abandon(msgspec.Struct, frozen=True):
    """Abandon handlers that do not return, and free their places."""

    deliveries: tuple[Delivery, ...]


class CommitsEnded(msgspec.Struct, frozen=True):
    """Report the result of the commits that the program requested."""

    ended: Callable[[LibraError | None], None]
    error: LibraError | None


class StoreOffsets(msgspec.Struct, frozen=True):
    """Write offsets to the local offset store; after a disk error, the next call writes them."""

    offsets: tuple[tuple[MessageQueue, int], ...]


class QueueChange(msgspec.Struct, frozen=True):
    """A change of our queues, for the listener."""

    queues: tuple[MessageQueue, ...]


class Assigned(QueueChange, frozen=True):
    """Notify the listener of newly assigned queues.

    → `hook_done`, if there is a listener: until then the queues are not read.
    """


class Revoked(QueueChange, frozen=True):
    """Notify the listener of queues that are no longer ours: drained, or out of time.

    → `hook_done`, if there is a listener: until then the queues are not released.
    """


class Lost(QueueChange, frozen=True):
    """Notify the listener of queues that others have, or may have, before we could commit."""


class Trouble(msgspec.Struct, frozen=True):
    """Report a problem that stops deliveries. keeps_out: it stops all of them until others act."""

    error: LibraError
    keeps_out: bool


class Recovered(msgspec.Struct, frozen=True):
    """Report that no problem keeps the consumer out any more."""


class Stopped(msgspec.Struct, frozen=True):
    """Report the end: no further effects will come."""


Effect = (
    Deliver
    | Ask[Any]
    | Assigned
    | Revoked
    | Lost
    | Abandon
    | CommitsEnded
    | ReadOffset
    | StoreOffsets
    | FetchRoutes
    | Trouble
    | Recovered
    | Stopped
)
