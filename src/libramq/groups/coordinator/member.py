"""The member of a coordinated group: its session, the grace period after its connection ends, its held poll,
and the assignment last sent to it.

A session lasts while the member sends requests, including polls. A poll is held until there is news or a
third of the session has passed. When the member's connection ends, a short grace period begins; any request
over another connection ends it. A static member has no grace period, because it returns under its name.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_EPOCHS
from libramq.groups.coordinator.queue_handover import Assignment
from libramq.groups.coordinator.request import Held
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.rebalance_event import Reason

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: From the design: the time in which a member may reconnect.
CLOSED_GRACE_MS: Final = 150
#: Heartbeats come three times per session, so that one may be lost.
POLLS_PER_SESSION: Final = 3
#: Ours: a grant is repeated after this time if the member does not list it; it may be about to open the
#: queue.
REPEAT_MS: Final = 100


@dataclass(slots=True)
class HeldPoll(Generic[T]):
    """A held poll. epoch: that of the member's current assignment."""

    ticket: T
    epoch: int
    until_ms: MonotonicMs


@dataclass(slots=True)
class Sent(Generic[P]):
    """An assignment that was sent, with its time and connection."""

    assignment: Assignment
    at_ms: MonotonicMs
    peer: P | None


@dataclass(slots=True)
class GroupMember(Generic[P, T]):
    """One member. held: the queues it listed last, and those opened with an answer since."""

    id: str
    profile: MemberProfile
    seen_at_ms: MonotonicMs
    peer: P | None = None
    closed_at_ms: MonotonicMs | None = None
    poll: HeldPoll[T] | None = None
    held: Held = field(default_factory=dict)
    last_sent: Sent[P] | None = None

    @property
    def due_ms(self) -> MonotonicMs:
        """Return the member's next deadline."""
        due = self.seen_at_ms + self.profile.session_ms
        if self.closed_at_ms is not None:
            due = min(due, self.closed_at_ms + CLOSED_GRACE_MS)
        return due if self.poll is None else min(due, self.poll.until_ms)

    @property
    def was_seen(self) -> bool:
        """Return whether the member has sent a request since it was restored."""
        return self.peer is not None or self.last_sent is not None

    def seen(self, *, now_ms: MonotonicMs) -> None:
        """Note a request of the member."""
        self.seen_at_ms = now_ms
        self.closed_at_ms = None

    def stalled(self, stall_ms: int, *, now_ms: MonotonicMs) -> None:
        """Extend the session and the grace period by the time that the coordinator was stalled."""
        self.seen_at_ms = min(now_ms, self.seen_at_ms + stall_ms)
        if self.closed_at_ms is not None:
            self.closed_at_ms = min(now_ms, self.closed_at_ms + stall_ms)

    def closed(self, *, now_ms: MonotonicMs) -> None:
        """Note that the member's connection has ended."""
        self.peer = self.poll = None
        if self.profile.instance is None:
            self.closed_at_ms = now_ms

    def ended(self, *, now_ms: MonotonicMs) -> Reason | None:
        """Return why the member must be removed; None if it need not be."""
        if now_ms - self.seen_at_ms >= self.profile.session_ms:
            return Reason.SESSION_EXPIRED
        if self.closed_at_ms is not None and now_ms - self.closed_at_ms >= CLOSED_GRACE_MS:
            return Reason.CONNECTION_CLOSED
        return None

    def hold(self, ticket: T, epoch: int, hold_ms: int | None, *, now_ms: MonotonicMs) -> None:
        """Hold a poll, at most for the hold_ms the member specifies; an earlier poll has been answered."""
        assert self.poll is None
        longest_ms = self.profile.session_ms // POLLS_PER_SESSION
        if hold_ms is not None:
            longest_ms = min(longest_ms, max(0, hold_ms))
        self.poll = HeldPoll(ticket, epoch, now_ms + longest_ms)

    def is_news(self, assignment: Assignment, mode_epoch: int, *, now_ms: MonotonicMs) -> bool:
        """Return whether the held poll must be answered with this assignment now.

        An assignment just sent over this connection is not repeated at once, because the member may be
        applying it.
        """
        assert self.poll is not None
        # The member lacks a grant or does not know the group's mode.
        needed = self.poll.epoch < mode_epoch or (
            assignment.mode == MODE_EPOCHS
            and any(self.held.get(queue) != epoch for queue, epoch in assignment.queues.items())
        )
        sent = self.last_sent
        if assignment.warning != (sent.assignment.warning if sent is not None else ""):
            return True
        if not needed and not assignment.revoke:
            return False
        if sent is None or sent.peer != self.peer:
            return True
        if replace(sent.assignment, epoch=assignment.epoch) != assignment:  # The epoch alone is no news.
            return True
        if needed:
            repeat_at_ms = sent.at_ms + REPEAT_MS
            self.poll.until_ms = min(self.poll.until_ms, repeat_at_ms)
            return now_ms >= repeat_at_ms  # A time in the past would look like a stalled broker.
        return False
