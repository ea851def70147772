"""Effects of a coordinator: values that its broker performs, in the order in which they stand.

    Answer                     to a member's request, now or after it was held
    Grant                      to the fence of a broker: PEER_GRANT; sending one again does no harm
    WatchTopic, Gather         questions; the answers are `queues_changed` and `gathered`
    Started, Settled, Replaced, ModeChanged     what a group went through, for events and metrics

A grant stands before the answers that speak of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import FenceGrant
from libramq.groups.coordinator.group_assignment import Assignment
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue

#: A request that is answered by an effect, as the broker knows it.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to a request. member: who was asked for, or named, by a GROUP_JOIN."""

    ticket: T
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    member: str | None = None
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell a broker's fence whose its queues are."""

    broker_name: str
    grant: FenceGrant


@dataclass(frozen=True, slots=True)
class WatchTopic:
    """Say which queues the topic has, soon (none: an empty answer) and whenever that changes."""

    topic: str


@dataclass(frozen=True, slots=True)
class Gather:
    """Ask all fences what they know of the group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rebalance began or got another cause. who: client ids, or the topic, that brought it about."""

    group: str
    epoch: int
    reason: Reason
    who: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A queue that has another holder than before. Client ids; None: nobody held it. Times are monotonic.

    freed_at_ms: when its holder had given it up, or lost it.
    """

    queue: MessageQueue
    from_: str | None
    to: str
    freed_at_ms: MonotonicMs | None
    granted_at_ms: MonotonicMs
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Every queue is held by whom it is meant for.

    minimum: the fewest queues that had to change hands so that loads are even, given who held what before.
    unheld: queues that nobody may hold. uncommitted: those that were lost, or given up before all that was
    handled was committed: messages may come again. duplicates: as members reported them meanwhile. loads: by
    client id. holders: client ids by queue.
    """

    group: str
    epoch: int
    moves: tuple[HandedOver, ...]
    minimum: int
    time_to_stable_ms: int
    unheld: int = 0
    uncommitted: tuple[MessageQueue, ...] = ()
    duplicates: int = 0
    loads: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[MessageQueue, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A client has taken the place of another, as a static member that comes back does: nothing has moved."""

    group: str
    former: str
    client_id: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The group's queues are shared in another way from now on."""

    group: str
    mode: str
    epoch: int


Effect = Answer[T] | Grant | WatchTopic | Gather | Started | Settled | Replaced | ModeChanged
