"""The effects of a coordinator, which its broker performs in order: answers, grants, fence queries, rebalance
reports.

        Answer                     to a member's request, at once or after it was held
        Grant                      to a broker's fence, by PEER_GRANT; idempotent
        Gather                     a query of all fences; `gathered` takes the answers
        Assign                     work for a thread; `assigned` takes the result
    Started, Settled, Replaced, ModeChanged     what happened to a group, for events and metrics

A grant precedes the answers that mention it.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from libramq.balance.group import counts
from libramq.codes import ResponseCode
from libramq.fencing import FenceGrant
from libramq.groups.coordinator.queue_handover import Assignment
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.coordinator.target_assignment import Assigning, fewest_moves
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue

#: The broker's handle for a request that is answered later, by an effect.
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to a request. member: the id of the member that a GROUP_JOIN admitted."""

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
    """Compute a large group's assignment in a thread, which may take seconds."""

    group: str
    work: Assigning


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rebalance began or got another cause. who: the client ids or the topic that caused it."""

    group: str
    epoch: int
    reason: Reason
    who: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A rebalance has ended: every queue is held by its target member.

    This event has the facts that brokers cannot observe; `groups.rebalance` records which queues moved, and
    the duration. The figures are computed on access, so that the members' answers do not wait for them.
    They leave out retry topics, which carry no load.

    profiles: the remaining members'. names: client ids of all members, including departed ones. before,
    after: members by queue. existing: all queues. committed: queues whose former holders had committed
    everything. counted: the fewest moves, if counted with the assignment. duplicates: redelivered messages
    that members reported meanwhile.
    """

    group: str
    epoch: int
    profiles: Sequence[MemberProfile]
    names: Mapping[str, str]
    before: Mapping[MessageQueue, str]
    after: Mapping[MessageQueue, str]
    existing: Sequence[MessageQueue]
    committed: AbstractSet[MessageQueue] = frozenset()
    counted: int | None = None
    duplicates: int = 0

    @property
    def holders(self) -> dict[MessageQueue, str]:
        """Return the client ids by queue."""
        return {queue: self.names.get(self.after[queue], self.after[queue]) for queue in self._loads()}

    @property
    def members(self) -> tuple[str, ...]:
        """Return the client ids of the members."""
        staying = [profile.client_id for profile in self.profiles]
        return tuple(dict.fromkeys([*staying, *self.holders.values()]))

    @property
    def moved(self) -> list[MessageQueue]:
        """Return the queues that changed hands, across all brokers."""
        return [queue for queue in self._loads() if self.before.get(queue) != self.after[queue]]

    @property
    def uncommitted(self) -> list[MessageQueue]:
        """Return the queues whose messages may be redelivered.

        They were lost, or released before all handled messages were committed.
        """
        return [queue for queue in self.moved if queue not in self.committed]

    @property
    def minimum(self) -> int:
        """Return the fewest moves, across all brokers, that balance the load; as costly as an assignment."""
        if self.counted is not None:
            return self.counted
        queues = [queue for queue in self.existing if counts(queue.topic)]
        return fewest_moves(self.group, self.profiles, queues, self.before)

    def _loads(self) -> list[MessageQueue]:
        return sorted(queue for queue in self.after if counts(queue.topic))


@dataclass(frozen=True, slots=True)
class Replaced:
    """A client has taken another's place, as a returning static member does; no queue has moved."""

    group: str
    former: str
    client_id: str
    instance: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The group's assignment mode has changed."""

    group: str
    mode: str
    epoch: int


Effect = Answer[T] | Grant | Gather | Assign | Started | Settled | Replaced | ModeChanged
