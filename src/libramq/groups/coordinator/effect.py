"""The effects of a coordinator: values that its broker performs, in order.

        Answer                     to a member's request, at once or after it was held
        Grant                      to a broker's fence, by PEER_GRANT; idempotent
        Gather                     a question; `gathered` takes the answer
        Assign                     work for a thread; `assigned` takes the result
    Started, Settled, Replaced, ModeChanged     what happened to a group, for events and metrics

A grant precedes the answers that mention it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from libramq.codes import ResponseCode
from libramq.fencing import FenceGrant
from libramq.groups.coordinator.group.assigning import Assigning
from libramq.groups.coordinator.group.assignment import Assignment
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
class Gather:
    """Query all fences about the group."""

    group: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Make a large group's assignment on a thread: it may take seconds."""

    group: str
    work: Assigning


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rebalance began or got another cause. who: the client ids, or the topic, that caused it."""

    group: str
    epoch: int
    reason: Reason
    who: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A rebalance has ended: every queue is held by the member it is meant for.

    It has what brokers cannot observe; `groups.rebalance` records which queues moved, and how long it took.
    members: client ids. holders: client ids by queue. moved: how many queues have changed hands, over all
    brokers; minimum: the fewest that had to for even loads, given who held what before. uncommitted: queues
    that were lost, or released before everything handled was committed: messages may be redelivered.
    duplicates: as reported by the members meanwhile.
    """

    group: str
    epoch: int
    members: tuple[str, ...]
    holders: Mapping[MessageQueue, str]
    moved: int
    minimum: int
    uncommitted: tuple[MessageQueue, ...] = ()
    duplicates: int = 0


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


Effect = Answer[T] | Grant | Gather | Assign | Started | Settled | Replaced | ModeChanged
