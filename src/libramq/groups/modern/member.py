"""A member of a modern group (KIP-848), its next step towards its target, and the time limit of a revocation.

    assigned        partitions it may read
    revoking        partitions it must give up before another member gets them
    target          partitions the assignor has chosen for it

    has too many    ─► assigned shrinks, the rest is revoked      its epoch stays, unless it rejoins
    has too few     ─► it gets partitions that are free           its epoch becomes the target's

Upstream: CurrentAssignmentBuilder.java, ConsumerGroupMember.java.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.groups.modern.values import JOINS, NO_PARTITIONS, Heartbeat, Partition, Partitions

#: group.consumer.session.timeout.ms.
SESSION_MS: Final = 45_000
#: Ours: max.poll.interval.ms may be days, and a partition would wait that long for its revocation.
REBALANCE_MS_MAX: Final = 3_600_000
#: The default of max.poll.interval.ms, until a member names its own.
REBALANCE_MS: Final = 300_000


class Step(NamedTuple):
    """A member's state after its next step."""

    epoch: int
    assigned: Partitions
    revoking: Partitions


class ModernMember:
    """A member. sent: the assignment in its last answer; None if it must be sent."""

    __slots__ = (
        "assigned", "assignor", "client_host", "client_id", "epoch", "expires_ms", "instance_id",
        "is_awaited", "is_lost", "member_id", "named", "pattern", "previous_epoch", "rack_id", "rebalance_ms",
        "revoke_by_ms", "revoking", "sent", "topics",
    )  # fmt: skip

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id: str | None = None
        self.client_id = self.client_host = ""
        self.rebalance_ms = REBALANCE_MS
        #: The topics that it names; `topics` includes those that match `pattern`.
        self.named: frozenset[str] = frozenset()
        self.pattern = ""
        self.topics: frozenset[str] = frozenset()
        self.assignor: str | None = None
        self.epoch = self.previous_epoch = JOINS
        self.assigned = self.revoking = NO_PARTITIONS
        self.sent: Partitions | None = None
        self.expires_ms = MonotonicMs(0)
        self.revoke_by_ms: MonotonicMs | None = None
        #: Whether its connection has ended without a sign of life since.
        self.is_lost = False
        #: Whether it was restored after a restart without a sign of life since.
        self.is_awaited = False

    @property
    def name(self) -> str:
        """Return the member's name in the group's history, which a static member keeps when it returns."""
        return self.instance_id or self.member_id

    @property
    def holds(self) -> Partitions:
        """Return the partitions that no other member may have."""
        return self.assigned | self.revoking if self.revoking else self.assigned

    @property
    def last_seen_ms(self) -> MonotonicMs:
        """Return the time of the member's last sign of life."""
        return self.expires_ms - SESSION_MS

    def renew(self, now_ms: MonotonicMs) -> None:
        """Expect the next sign of life within a session."""
        self.expires_ms = now_ms + SESSION_MS
        self.is_lost = self.is_awaited = False

    def subscribe(self, fitting: Mapping[str, frozenset[str]]) -> None:
        """Set its topics: those it names, and those that match its pattern. fitting: the topics by pattern.

        While the matches of a new pattern are unknown, it keeps its topics.
        """
        more = fitting.get(self.pattern) if self.pattern else frozenset()
        if more is None:
            more = self.topics
        # Share the sets where possible.
        self.topics = self.named | more if self.named and more else more or self.named

    def take(self, beat: Heartbeat, fitting: Mapping[str, frozenset[str]]) -> tuple[bool, bool]:
        """Take over the values of a heartbeat. fitting: as for `subscribe`.

        Returns whether the member's topics changed, and whether its assignor changed.
        """
        topics, assignor = self.topics, self.assignor
        if beat.topics is not None or beat.pattern is not None:
            self.named = self.named if beat.topics is None else beat.topics
            self.pattern = self.pattern if beat.pattern is None else beat.pattern
            self.subscribe(fitting)
        self.assignor = assignor if beat.assignor is None else beat.assignor
        self.rack_id = self.rack_id if beat.rack_id is None else beat.rack_id
        if beat.rebalance_ms is not None:
            self.rebalance_ms = min(beat.rebalance_ms, REBALANCE_MS_MAX)
        self.client_id, self.client_host = beat.client_id, beat.client_host
        is_other = beat.owned is not None and beat.owned != self.assigned
        if beat.is_full or is_other or beat.epoch != self.epoch:  # The last answer may be lost.
            self.sent = None
        return self.topics != topics, self.assignor != assignor

    def next_step(self, target: Partitions, target_epoch: int, is_free: Callable[[Partition], bool]) -> Step:
        """Return the state after the member's next step; its current state if it must wait."""
        if self.revoking or (self.epoch == target_epoch and self.assigned == target):
            return Step(self.epoch, self.assigned, self.revoking)
        kept = self.assigned & target
        if kept != self.assigned and self.epoch != JOINS:  # A rejoining member has nothing to revoke.
            return Step(self.epoch, kept, self.assigned - kept)
        return Step(target_epoch, kept | frozenset(filter(is_free, target - kept)), NO_PARTITIONS)
