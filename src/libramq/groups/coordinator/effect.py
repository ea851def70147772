"""The effects of a coordinator: values that its broker performs, in order.

        Answer                     to a member's request, at once or after it was held
        Grant                      to a broker's fence, by PEER_GRANT; idempotent
        WatchTopic, Gather         questions, answered by `queues_changed` and `gathered`
    Started, Settled, Replaced, ModeChanged     what happened to a group, for events and metrics

A grant precedes the answers that mention it.
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

#: The broker's handle for a request that is answered later, by an effect.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to a request. member: the one that a GROUP_JOIN admitted."""

    ticket: T
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    member: str | None = None
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Send a broker's fence the owners of its queues."""

    broker_name: str
    grant: FenceGrant


@dataclass(frozen=True, slots=True)
class WatchTopic:
    """Report the queues of a topic, now (an empty list if there are none) and after every change."""

    topic: str


@dataclass(frozen=True, slots=True)
class Gather:
    """Query all fences about the group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rebalance began or got another cause. who: the client ids, or the topic, that caused it."""

    group: str
    epoch: int
    reason: Reason
    who: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A queue has a new holder. Holders are client ids, or None for no holder. Times are monotonic.

    freed_at_ms: when the previous holder released or lost it.
    """

    queue: MessageQueue
    from_: str | None
    to: str
    freed_at_ms: MonotonicMs | None
    granted_at_ms: MonotonicMs
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A rebalance has ended: every queue is held by the member it is meant for.

    minimum: the fewest queues that had to change hands for even loads, given who held what before.
    unheld: queues that no member may hold. uncommitted: queues that were lost, or released before everything
    handled was committed: messages may be redelivered. duplicates: as reported by the members meanwhile.
    loads: by client id. holders: client ids by queue.
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
    """A client has taken another's place, as a returning static member does; no queue has moved."""

    group: str
    former: str
    client_id: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The group's queues are assigned in another way from now on."""

    group: str
    mode: str
    epoch: int


Effect = Answer[T] | Grant | WatchTopic | Gather | Started | Settled | Replaced | ModeChanged
