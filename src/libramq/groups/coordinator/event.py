"""The events of a coordinated group, which are the rows of the table in `transitions`.

They come from members, operators, connections, sessions, topics, stock members, fences and time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from libramq.fencing import FenceReport
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.request import Join, Leave, Poll, Release
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.coordinator.target_assignment import Assigning, Made
from libramq.groups.rebalance_event import Reason

Member = GroupMember[Any, Any]


@dataclass(frozen=True, slots=True)
class Begun:
    """The process has started: the sessions of restored members begin."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A client joins or a member returns. is_alone: no other client of the group is connected here."""

    ticket: Any
    peer: Any
    profile: MemberProfile
    join: Join
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Polled:
    """A member polls for its assignment."""

    ticket: Any
    peer: Any
    member: Member
    poll: Poll


@dataclass(frozen=True, slots=True)
class Released:
    """A member has released queues."""

    ticket: Any
    peer: Any
    member: Member
    release: Release


@dataclass(frozen=True, slots=True)
class Left:
    """A member leaves."""

    ticket: Any
    member: Member
    leave: Leave


@dataclass(frozen=True, slots=True)
class Removed:
    """An operator removes a member, by its static name or its client id."""

    ticket: Any
    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection of a member has ended."""

    member: Member


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A member was silent for its session, or for the grace period after its connection ended."""

    member: Member
    reason: Reason


@dataclass(frozen=True, slots=True)
class QueuesChanged:
    """The queues of a topic have changed. reason: None if they were not known before."""

    topic: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class QueuesRemoved:
    """A fence took a topic's queues from their holders: the topic was deleted or its offsets were set.

    Existing queues are granted again, because the topic may have been recreated in the meantime.
    """

    topic: str
    broker_name: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Assigned:
    """A thread has computed the assignment of a large group, or failed to."""

    work: Assigning
    made: Made | Exception


@dataclass(frozen=True, slots=True)
class StockMembersJoined:
    """The group has stock members, which allocate queues for themselves. client_ids: all of them."""

    client_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class StockMembersLeft:
    """The group has no stock member any more."""


@dataclass(frozen=True, slots=True)
class GrantRefused:
    """A fence has refused the grant of epoch `granted`: it has openings up to `epoch`.

    Another broker has coordinated the group meanwhile. If it still does, the group must be dropped; otherwise
    the group continues above that epoch.
    """

    granted: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FencesInDoubt:
    """The fences may have news: a broker was found, or has deleted the group."""


@dataclass(frozen=True, slots=True)
class FencesReported:
    """The fences have reported; reports of unanswering fences are missing."""

    reports: Sequence[FenceReport]


@dataclass(frozen=True, slots=True)
class InquiryTimedOut:
    """A deadline passed before the awaited event."""


@dataclass(frozen=True, slots=True)
class ChangesCollected:
    """The time for collecting further changes is over."""


@dataclass(frozen=True, slots=True)
class HandoverDue:
    """A free queue can be granted, or a revoked queue is overdue."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The process was stalled for that time."""

    stall_ms: int


@dataclass(frozen=True, slots=True)
class Dissolved:
    """The group was deleted, or another broker coordinates it now. address: that broker's, if known."""

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
    | QueuesChanged
    | QueuesRemoved
    | Assigned
    | StockMembersJoined
    | StockMembersLeft
    | GrantRefused
    | FencesInDoubt
    | FencesReported
    | InquiryTimedOut
    | ChangesCollected
    | HandoverDue
    | Stalled
    | Dissolved
)
