"""The effects of a consumer's core: what its shell has to do, in order.

A question goes out as an `Ask`, and its answer to the part that asked: `done` is a method of that part, bound
to what the part must remember of the question, and returns the effects that follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from libramq.client.consuming.consumer_settings import PULL_BATCH_SIZE
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.fencing import Claim
from libramq.formats.route import TopicRouteData
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import GroupJoinBody, GroupPollBody, QueueGrant
from libramq.remoting.headers import GroupJoinHeader
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
class OpenQueue:
    """Open a queue that the coordinator granted, and query its committed offset → `claims.opened`."""

    queue: MessageQueue
    generation: int
    address: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class Pull:
    """Pull messages from an offset on → `own.pulled`.

    claim: under which the queue is open in a coordinated group. topic_start: what its opening named.
    as_records: its messages are wanted as PulledRecords. takes_batches: inner batches may come whole, perhaps
    more messages than `count_max`. accepts_damaged: bodies are taken although they do not match their
    checksums.
    The pull commits nothing, unlike upstream's: multi-threaded brokers let it overtake later commits.
    """

    queue: MessageQueue
    generation: int
    address: str
    offset: int
    count_max: int = PULL_BATCH_SIZE
    claim: Claim | None = None
    #: Returned unchanged: the position may be changed meanwhile.
    number: int = 0
    topic_start: int = 0
    as_records: bool = False
    accepts_damaged: bool = False
    takes_batches: bool = True


@dataclass(frozen=True, slots=True)
class Deliver:
    """Run handlers → `handled`."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abandon handlers that do not return, and free their places."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class SendBack:
    """Have a message redelivered later → `consumption.sent_back`. delay_level: see handling/send_back.py.

    is_counted: as an attempt; only our brokers know how not to. pass_on_ms: a member that subscribes to its
    topic gets it, for so long; 0: none needs to.
    """

    delivery: Delivery
    message: MessageExt
    address: str
    delay_level: int = 0
    is_counted: bool = True
    pass_on_ms: int = 0


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Send a copy to the group's retry topic, if a send-back failed → `consumption.copy_sent`.

    delay_level: as in SendBack.
    """

    delivery: Delivery
    message: MessageExt
    queue: MessageQueue
    address: str
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """Commit → `committed`. claim: as in a pull."""

    queue: MessageQueue
    generation: int
    offset: int
    address: str
    claim: Claim | None = None


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

    → `assigned_hook_done`, if there is a listener: until then the queues are not read.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Notify the listener of queues that are no longer ours: drained, or out of time.

    → `revoke_hook_done`, if there is a listener: until then the queues are not released.
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
class FindGroup:
    """Query a broker for the coordinator of our group → `coordination.found`. number: of the request."""

    address: str
    number: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Join the group, or rejoin it → `coordination.joined`. requested_ms: when the lease begins."""

    address: str
    number: int
    timeout_ms: int
    requested_ms: MonotonicMs
    header: GroupJoinHeader
    body: GroupJoinBody


@dataclass(frozen=True, slots=True)
class PollGroup:
    """Poll the coordinator: a sign of life, and a request for the assignment → `coordination.polled`."""

    address: str
    number: int
    timeout_ms: int
    requested_ms: MonotonicMs
    member: str
    epoch: int
    body: GroupPollBody
    hold_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseQueues:
    """Notify the coordinator of released queues. leaving: we stop. slow: a handler takes too long.

    uncommitted: queues whose last handled messages are not committed.
    """

    address: str
    member: str
    queues: tuple[QueueGrant, ...]
    leaving: bool = False
    slow: bool = False
    uncommitted: tuple[QueueGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave the group → `group_left`. queues: released just now, drained and committed."""

    address: str
    member: str
    reason: str
    queues: tuple[QueueGrant, ...] = ()


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
    | Pull
    | CommitOffset
    | SendBack
    | SendCopy
    | PollGroup
    | OpenQueue
    | ReleaseQueues
    | FindGroup
    | JoinGroup
    | LeaveGroup
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
