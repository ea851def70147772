"""The member of a coordinated group: what it said of itself, its session, its poll, and what it was told.

A session lasts while requests of the member come; a poll is one, and is held until there is something to say
or a third of the session has passed. When the member's connection ends a short grace begins, which any
request over another one ends. A static member has none: it is known by its name and comes back to it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_EPOCHS
from libramq.groups.coordinator.group_assignment import Assignment
from libramq.groups.coordinator.group_request import Held
from libramq.groups.coordinator.group_state import MemberProfile
from libramq.groups.rebalance_event import Reason

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: The design's: as long as a connection that ended may take to come back.
CLOSED_GRACE_MS: Final = 150
#: Heartbeats come three times a session, so that one may be lost.
POLLS_PER_SESSION: Final = 3
#: Ours: how soon a grant that a member does not list is said again; it may be about to take it up.
REPEAT_MS: Final = 100


@dataclass(slots=True)
class HeldPoll(Generic[T]):
    """A poll that waits. epoch: of the assignment the member goes by."""

    ticket: T
    epoch: int
    until_ms: MonotonicMs


@dataclass(slots=True)
class Sent(Generic[P]):
    """An assignment that went out, when and over which connection."""

    assignment: Assignment
    at_ms: MonotonicMs
    peer: P | None


@dataclass(slots=True)
class GroupMember(Generic[P, T]):
    """One member. held: what it believes to hold, as of its last request that said so."""

    id: str
    profile: MemberProfile
    heard_at_ms: MonotonicMs
    peer: P | None = None
    closed_at_ms: MonotonicMs | None = None
    poll: HeldPoll[T] | None = None
    held: Held = field(default_factory=dict)
    last_sent: Sent[P] | None = None

    @property
    def due_ms(self) -> MonotonicMs:
        """When it is to be looked at, if nothing happens before."""
        due = self.heard_at_ms + self.profile.session_ms
        if self.closed_at_ms is not None:
            due = min(due, self.closed_at_ms + CLOSED_GRACE_MS)
        return due if self.poll is None else min(due, self.poll.until_ms)

    @property
    def was_heard(self) -> bool:
        """Return whether it has spoken since it was recorded."""
        return self.peer is not None or self.last_sent is not None

    def heard(self, *, now_ms: MonotonicMs) -> None:
        """A request of the member has come."""
        self.heard_at_ms = now_ms
        self.closed_at_ms = None

    def stood_still(self, stood_ms: int, *, now_ms: MonotonicMs) -> None:
        """Its coordinator did not listen for so long: its session and its grace last as much longer."""
        self.heard_at_ms = min(now_ms, self.heard_at_ms + stood_ms)
        if self.closed_at_ms is not None:
            self.closed_at_ms = min(now_ms, self.closed_at_ms + stood_ms)

    def closed(self, *, now_ms: MonotonicMs) -> None:
        """Its connection ended."""
        self.peer = self.poll = None
        if self.profile.instance is None:
            self.closed_at_ms = now_ms

    def ended(self, *, now_ms: MonotonicMs) -> Reason | None:
        """Why it is no member any more, if it is none."""
        if now_ms - self.heard_at_ms >= self.profile.session_ms:
            return Reason.SESSION_EXPIRED
        if self.closed_at_ms is not None and now_ms - self.closed_at_ms >= CLOSED_GRACE_MS:
            return Reason.CONNECTION_CLOSED
        return None

    def hold(self, ticket: T, epoch: int, *, now_ms: MonotonicMs) -> None:
        """Keep a poll; the one before it was answered."""
        assert self.poll is None
        self.poll = HeldPoll(ticket, epoch, now_ms + self.profile.session_ms // POLLS_PER_SESSION)

    def is_news(self, assignment: Assignment, mode_epoch: int) -> bool:
        """Return whether the poll that waits is to be answered with this now.

        What the member was told over this connection is not said again at once: it may be about to do it.
        """
        assert self.poll is not None
        needed = self._needs(assignment, mode_epoch)
        sent = self.last_sent
        if assignment.warning != (sent.assignment.warning if sent is not None else ""):
            return True
        if not needed and not assignment.revoke:
            return False
        if sent is None or sent.peer != self.peer or _differ(sent.assignment, assignment):
            return True
        if needed:
            self.poll.until_ms = min(self.poll.until_ms, sent.at_ms + REPEAT_MS)
        return False

    def _needs(self, assignment: Assignment, mode_epoch: int) -> bool:
        """Return whether the member lacks a grant, or does not know how queues are shared."""
        assert self.poll is not None
        if self.poll.epoch < mode_epoch:
            return True
        return assignment.mode == MODE_EPOCHS and any(
            self.held.get(queue) != epoch for queue, epoch in assignment.queues.items()
        )


def _differ(one: Assignment, other: Assignment) -> bool:
    """Return whether they say different things; the epoch alone is none."""
    return one.queues != other.queues or one.revoke != other.revoke or one.mode != other.mode
