"""The state of a classic group: statuses, members, the check of a request's generation, the vote on a
strategy, and the limits of sessions and rebalance delays.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Beat, JoinGroup, Protocol
from libramq.groups.protocol_groups import Refusal


class Status(Enum):
    """The status of a group."""

    EMPTY = auto()
    PREPARING_REBALANCE = auto()  # Waiting for members; joins are parked.
    COMPLETING_REBALANCE = auto()  # Waiting for the leader's assignment; syncs are parked.
    STABLE = auto()


NEXT: Final[Mapping[Status, frozenset[Status]]] = {
    Status.EMPTY: frozenset({Status.PREPARING_REBALANCE}),
    Status.PREPARING_REBALANCE: frozenset({Status.COMPLETING_REBALANCE, Status.EMPTY}),
    Status.COMPLETING_REBALANCE: frozenset({Status.STABLE, Status.PREPARING_REBALANCE}),
    Status.STABLE: frozenset({Status.PREPARING_REBALANCE}),
}

#: Ours: as in coordinated groups; group.min.session.timeout.ms is 6 s.
SESSION_MS_MIN: Final = 1_000
#: group.max.session.timeout.ms.
SESSION_MS_MAX: Final = 1_800_000
#: Ours: members started together arrive within less time; group.initial.rebalance.delay.ms is 3 s.
INITIAL_DELAY_MS: Final = 200
#: Ours: heartbeat.interval.ms, the time within which a heartbeat would announce the next rebalance to a
#: member.
NEXT_REBALANCE_MS: Final = 3_000
#: NEW_MEMBER_JOIN_TIMEOUT_MS of GroupCoordinator: a member sends no heartbeats before its first answer.
NEW_MEMBER_MS: Final = 300_000
#: Ours: Kafka's group.max.size is unbounded. Each answer to a leader's join lists all members.
MEMBERS_MAX: Final = 1_000
#: Ours: the memory of a member, not counting its metadata.
MEMBER_BYTES: Final = 1_000
#: Ours: max.poll.interval.ms may be days, and a rebalance would wait that long for an absent member.
REBALANCE_MS_MAX: Final = 3_600_000


class ClassicMember:
    """A member. join_key, sync_key: its parked requests."""

    __slots__ = (
        "_protocols_bytes",
        "assignment",
        "client_host",
        "client_id",
        "expires_ms",
        "instance_id",
        "is_lost",
        "is_new",
        "join_key",
        "may_skip",
        "may_wait",
        "member_id",
        "protocols",
        "rebalance_ms",
        "session_ms",
        "sync_key",
    )

    def __init__(self, member_id: str, join: JoinGroup) -> None:
        self.member_id = member_id
        self.instance_id = join.instance_id
        self.assignment = b""
        self.is_new = True
        #: Whether its connection has ended without a sign of life since.
        self.is_lost = False
        self.sync_key: Hashable | None = None
        #: Whether its sync may be answered with the next rebalance.
        self.may_wait = False
        self.expires_ms = MonotonicMs(0)
        self.take(join)

    def take(self, join: JoinGroup) -> None:
        """Take over the values of a join, whose request is parked."""
        self.client_id = join.client_id
        self.client_host = join.client_host
        self.session_ms = join.session_ms
        self.rebalance_ms = min(max(join.rebalance_ms, join.session_ms), REBALANCE_MS_MAX)
        self.protocols: Sequence[Protocol] = tuple(join.protocols)
        self._protocols_bytes = sum(len(each.name) + len(each.metadata) for each in self.protocols)
        self.may_skip = join.may_skip
        self.join_key: Hashable | None = join.key

    def knows(self, join: JoinGroup) -> bool:
        """Return whether a join names the same strategies and subscriptions as the last one."""
        return tuple(self.protocols) == tuple(join.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the subscription for a strategy."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")

    @property
    def name(self) -> str:
        """Return the member's name in the group's history, which a static member keeps when it returns."""
        return self.instance_id or self.member_id

    @property
    def last_seen_ms(self) -> MonotonicMs:
        """Return the time of the member's last sign of life."""
        return self.expires_ms - self.session_ms

    @property
    def due_ms(self) -> MonotonicMs | None:
        """Return when the session ends; None while the member waits for an answer, unless for its first."""
        waits = self.join_key is not None or self.sync_key is not None
        return None if waits and not self.is_new else self.expires_ms

    @property
    def content_bytes(self) -> int:
        """Return the size of the member's strategies, metadata and share."""
        return len(self.assignment) + self._protocols_bytes

    def renew(self, now_ms: MonotonicMs) -> None:
        """Expect the next sign of life within a session."""
        self.expires_ms = now_ms + self.session_ms
        self.is_lost = False


def common_names(members: Collection[ClassicMember]) -> set[str]:
    """Return the strategies that all members support."""
    return set.intersection(*({each.name for each in member.protocols} for member in members))


def fits(join: JoinGroup, others: Collection[ClassicMember]) -> bool:
    """Return whether a join names a strategy that all others support."""
    common = common_names(others)
    return any(each.name in common for each in join.protocols)


def refusal_of(
    beat: Beat, members: Mapping[str, ClassicMember], static: Mapping[str, str], generation: int
) -> Refusal:
    """Return the refusal of a request that is not from a member of this generation; otherwise NONE.

    static: member ids by instance id.
    """
    known = static.get(beat.instance_id) if beat.instance_id is not None else None
    if known is not None and known != beat.member_id:
        return Refusal.FENCED_INSTANCE
    if beat.member_id not in members or (beat.instance_id is not None and known is None):
        return Refusal.UNKNOWN_MEMBER
    return Refusal.NONE if beat.generation == generation else Refusal.ILLEGAL_GENERATION


def voted(members: Collection[ClassicMember]) -> str:
    """Return the strategy with most votes: each member votes for its first one that all support."""
    common = common_names(members)
    votes: dict[str, int] = {}
    for member in members:
        name = next(each.name for each in member.protocols if each.name in common)
        votes[name] = votes.get(name, 0) + 1
    return max(votes, key=votes.__getitem__)
