"""Events of a coordinated group: the rows of the table in `transitions`.

Requests of members and operators, ends of connections and sessions, topics, stock members, fences, time.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from libramq.fencing import FenceReport
from libramq.groups.coordinator.group_member import GroupMember
from libramq.groups.coordinator.group_request import Held
from libramq.groups.coordinator.group_state import MemberProfile
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue

Member = GroupMember[Any, Any]


@dataclass(frozen=True, slots=True)
class Begun:
    """The process has begun: what was restored is waited for from now on."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A client joins, or a member comes back. wanted: the id it says it has; held: what it says it holds."""

    ticket: Any
    peer: Any
    profile: MemberProfile
    wanted: str | None
    held: Held
    if_free: bool = False


@dataclass(frozen=True, slots=True)
class Polled:
    """A member asks for its assignment. epoch: of the one it goes by."""

    ticket: Any
    peer: Any
    member: Member
    epoch: int
    held: Held
    duplicates: int = 0
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """A member has given up queues. committed: those of which nothing comes again."""

    ticket: Any
    peer: Any
    member: Member
    queues: Held
    is_leaving: bool = False
    committed: Container[MessageQueue] = frozenset()


@dataclass(frozen=True, slots=True)
class Left:
    """A member says that it goes. committed: queues of which nothing comes again."""

    ticket: Any
    member: Member
    reason: Reason
    committed: Held = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removed:
    """An operator takes a member out, by its static name or its client id."""

    ticket: Any
    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection of a member ended."""

    member: Member


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A member was not heard of for its session, or for the grace after its connection ended."""

    member: Member
    reason: Reason


@dataclass(frozen=True, slots=True)
class PollTimedOut:
    """A poll has waited for a third of its member's session."""

    member: Member


@dataclass(frozen=True, slots=True)
class QueuesChanged:
    """A topic has other queues. No reason: they were not known before."""

    topic: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class QueuesRemoved:
    """A fence has taken a topic's queues from their holders; those that exist are granted anew."""

    topic: str
    broker_name: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class StockMembersCame:
    """These clients of the group allocate for themselves; they are all that do."""

    client_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class StockMembersLeft:
    """No client of the group allocates for itself."""


@dataclass(frozen=True, slots=True)
class GrantRefused:
    """A fence has not taken what was granted under `granted`: it knows of openings up to `epoch`."""

    granted: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FencesInDoubt:
    """Fences may know other things than the coordinator, up to that epoch at least."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FencesReported:
    """Fences have said what they know; those that have not are left out."""

    reports: Sequence[FenceReport]


@dataclass(frozen=True, slots=True)
class InquiryTimedOut:
    """A deadline passed before the awaited event."""


@dataclass(frozen=True, slots=True)
class ChangesCollected:
    """No further change is waited for."""


@dataclass(frozen=True, slots=True)
class HandoverDue:
    """Queues are free to be granted, or overdue to be taken."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The process did nothing for so long."""

    stood_ms: int


@dataclass(frozen=True, slots=True)
class Dissolved:
    """The group was deleted, or lives elsewhere: at that address, if it is known."""

    address: str


Event = (
    Begun
    | Joined
    | Polled
    | Released
    | Left
    | Removed
    | ConnectionClosed
    | SessionEnded
    | PollTimedOut
    | QueuesChanged
    | QueuesRemoved
    | StockMembersCame
    | StockMembersLeft
    | GrantRefused
    | FencesInDoubt
    | FencesReported
    | InquiryTimedOut
    | ChangesCollected
    | HandoverDue
    | StoodStill
    | Dissolved
)
