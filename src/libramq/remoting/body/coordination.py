"""The bodies of coordinated groups: joins, polls, releases and assignments; grants, reports and lists between
brokers.

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Iterable, Mapping

import msgspec

from libramq.fencing import (
    MODE_EPOCHS,
    NO_ATTEMPTS,
    Attempts,
    Claim,
    Claims,
    FenceGrant,
    FenceReport,
    OpenedQueue,
)
from libramq.formats.document import Document
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.groups.roster import EdgeMember
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import QueueFields


class QueueGrant(QueueFields, frozen=True, kw_only=True):
    """A queue and the epoch of its grant. member: the owner, if the request does not imply it.

    attempts: earlier deliveries of the message at `offset`, if its queue is read in order.
    """

    epoch: int
    member: str = ""
    offset: int = 0
    attempts: int = 0

    @classmethod
    def of(
        cls, queue: MessageQueue, epoch: int, member: str = "", attempts: Attempts = NO_ATTEMPTS
    ) -> "QueueGrant":
        """Return a queue's grant."""
        offset, times = attempts
        return cls(**queue._asdict(), epoch=epoch, member=member, offset=offset, attempts=times)


def grants_of(claims: Claims, attempts: Mapping[MessageQueue, Attempts] | None = None) -> list[QueueGrant]:
    """Return the owners of queues in the form of bodies."""
    attempts = attempts or {}
    return [
        QueueGrant.of(queue, claim.epoch, claim.member, attempts.get(queue, NO_ATTEMPTS))
        for queue, claim in claims.items()
    ]


def claims_of(grants: Iterable[QueueGrant]) -> dict[MessageQueue, Claim]:
    """Decode the owners of queues; of several grants of a queue, the last counts."""
    return {grant.queue: Claim(grant.member, grant.epoch) for grant in grants}


def attempts_of(grants: Iterable[QueueGrant]) -> dict[MessageQueue, Attempts]:
    """Decode the attempts of queues that have any."""
    return {grant.queue: Attempts(grant.offset, grant.attempts) for grant in grants if grant.attempts > 0}


def epochs_of(grants: Iterable[QueueGrant]) -> dict[MessageQueue, int]:
    """Decode epochs by queue; of several grants of a queue, the last counts."""
    return {grant.queue: grant.epoch for grant in grants}


class QueueOpened(QueueFields, frozen=True, kw_only=True):
    """A queue opened for the member with its grant; the other fields are those of `OpenedQueue`."""

    offset: int | None = None
    former_epoch: int | None = None
    recovered_end: int | None = None
    topic_start: int = 0
    attempts: int = 0
    is_initial: bool = False

    @classmethod
    def of(cls, queue: MessageQueue, opened: OpenedQueue) -> "QueueOpened":
        """Return the body of an opening."""
        return cls(**queue._asdict(), **opened._asdict())

    def value(self) -> tuple[MessageQueue, OpenedQueue]:
        """Return the queue and its opening."""
        return self.queue, OpenedQueue(*[getattr(self, name) for name in OpenedQueue._fields])


class GroupJoinBody(Document, frozen=True, kw_only=True):
    """GROUP_JOIN: topics with their filter expressions; the queues already held; the capacity.

    orderly: the member handles a queue's messages in order; None: unstated, as in 0.1.0.
    """

    subscriptions: dict[str, str] = {}
    strategy: str = "balanced_sticky"
    held: list[QueueGrant] = []
    capacity: int = 1
    orderly: bool | None = None


class GroupPollBody(Document, frozen=True, kw_only=True):
    """GROUP_POLL: the queues the member holds, with their epochs; duplicates seen since the last poll.

    leaving: it stops, and releases its queues as they are drained. slow: one of its handlers has exceeded
    max_processing_ms, and others should have its queues until that handler is done.
    """

    held: list[QueueGrant] = []
    duplicates: int = 0
    leaving: bool = False
    slow: bool = False


class GroupReleaseBody(Document, frozen=True, kw_only=True):
    """GROUP_RELEASE: queues that a member has released. leaving, slow: as in GROUP_POLL.

    uncommitted: released queues with handled messages whose commit was not acknowledged; None: unknown, as
    in 0.2.0.
    """

    queues: list[QueueGrant] = []
    leaving: bool = False
    slow: bool = False
    uncommitted: list[QueueGrant] | None = None


class GroupLeaveBody(Document, frozen=True, kw_only=True):
    """GROUP_LEAVE: with a rebalance reason (member_left, processing_timeout).

    queues: dropped but not yet released queues in which all handled messages are committed.
    """

    reason: str = "member_left"
    queues: list[QueueGrant] = []


class GroupAssignment(Document, frozen=True, kw_only=True):
    """The reply to GROUP_JOIN and GROUP_POLL: the queues the member may hold now, and those to release.

    opened: those of the queues that were opened for it under these grants. warning: a problem of the group,
    for the member's user, or "". knows_slow: the coordinator supports `slow`, which 0.1.0 does not.
    """

    epoch: int
    mode: str = MODE_EPOCHS
    queues: list[QueueGrant] = []
    revoke: list[QueueGrant] = []
    opened: list[QueueOpened] = []
    warning: str = ""
    knows_slow: bool = False


class PeerAssignBody(Document, frozen=True, kw_only=True):
    """PEER_ASSIGN: an edge relays a QUERY_ASSIGNMENT of a member; the reply is a QueryAssignmentReply.

    members: that edge's members, which may not have been reported yet.
    """

    broker_name: str
    group: str
    client_id: str
    topic: str
    strategy_name: str = ""
    members: list[EdgeMember] | None = None


class PeerGrantBody(Document, frozen=True, kw_only=True):
    """PEER_GRANT: the coordinator sends a fence the owners of its queues.

    epoch: the group's. complete: these are all of the group's queues at this broker; others have no owner.
    client_ids: by member, when members begin to allocate for themselves; these take precedence for locks.
    """

    group: str
    epoch: int
    mode: str = MODE_EPOCHS
    grants: list[QueueGrant] = []
    complete: bool = False
    client_ids: dict[str, str] = {}

    @classmethod
    def of(cls, grant: FenceGrant) -> "PeerGrantBody":
        """Return the body of a grant."""
        return cls(
            group=grant.group,
            epoch=grant.epoch,
            mode=grant.mode,
            grants=grants_of(grant.claims, grant.attempts),
            complete=grant.complete,
            client_ids=dict(grant.client_ids),
        )

    def value(self) -> FenceGrant:
        """Return the grant."""
        return FenceGrant(
            group=self.group,
            epoch=self.epoch,
            mode=self.mode,
            claims=claims_of(self.grants),
            complete=self.complete,
            client_ids=self.client_ids,
            attempts=attempts_of(self.grants),
        )


class PeerMembersBody(Document, frozen=True, kw_only=True):
    """PEER_MEMBERS: an edge reports its members to the coordinator of their groups.

    masters: the brokers it knows, itself included, from which it derives coordinators. complete: these are
    all its groups with that coordinator; otherwise the changed ones, and the others are unchanged. listed:
    those of these groups whose member list came from another coordinator. assignments: in a complete report,
    the recorded assignments of members that query for their queues.
    """

    broker_name: str
    masters: list[str]
    groups: dict[str, list[EdgeMember]] = {}
    complete: bool = False
    listed: list[str] = []
    assignments: list[AssignmentUpdate] = msgspec.field(name="given", default_factory=list)


class PeerListBody(Document, frozen=True, kw_only=True):
    """PEER_LIST: a coordinator sends an edge the members of a group that has members at several edges.

    Without client ids, the group is now at one edge only, which knows its members itself. version: grows with
    each list of a coordinator.
    """

    broker_name: str
    group: str
    version: int
    client_ids: list[str] = []


class PeerGatherBody(Document, frozen=True, kw_only=True):
    """PEER_GATHER: a new coordinator queries a fence about a group; the reply is a PeerGathered."""

    group: str


class PeerGathered(Document, frozen=True, kw_only=True):
    """The state of a fence: the highest epoch it has seen, and the members that have its queues open.

    members: the group's, as its coordinator at the same broker knew them under members_epoch; None: as far
    back as the broker remembers, it has not coordinated the group.
    """

    epoch: int = 0
    open: list[QueueGrant] = []
    members: list[str] | None = None
    members_epoch: int = 0

    @classmethod
    def of(cls, report: FenceReport) -> "PeerGathered":
        """Return the body of a report."""
        return cls(
            epoch=report.epoch,
            open=grants_of(report.openings),
            members=list(report.members) if report.members is not None else None,
            members_epoch=report.members_epoch,
        )

    def value(self) -> FenceReport:
        """Return the report."""
        return FenceReport(
            epoch=self.epoch,
            openings=claims_of(self.open),
            members=self.members,
            members_epoch=self.members_epoch,
        )


class PeerRemovedBody(Document, frozen=True, kw_only=True):
    """PEER_REMOVED: a broker has deleted a topic, or a group; its fence has lost the related state.

    Either may have been created again meanwhile. If both are named, an operator has set the group's offsets
    there, and the topic's queues are closed until they are granted again.
    """

    broker_name: str
    topic: str = ""
    group: str = ""


class PeerStartedBody(Document, frozen=True, kw_only=True):
    """PEER_STARTED: a coordinator reports the start of a rebalance to the brokers of a group's queues.

    Each of them records the moves of its own queues, as it does for groups without a coordinator.
    is_repeated: the report precedes the full state on a new connection, and may have arrived before; a broker
    whose fence has seen the epoch ignores it.
    """

    group: str
    epoch: int
    reason: str
    who: str | None = None
    members: list[str] = []
    is_repeated: bool = False


class PeerRebalanceBody(Document, frozen=True, kw_only=True):
    """PEER_REBALANCE: a coordinator reports a rebalance's progress to the brokers of a group's queues.

    is_complete: every queue is granted to its target; then these are the members, and uncommitted the queues
    whose messages may be redelivered. replaced: new client ids by the ids they replaced; their queues have
    not moved. instances: their static names, by client id.
    """

    group: str
    members: list[str] = []
    uncommitted: list[QueueGrant] = []
    is_complete: bool = False
    replaced: dict[str, str] = {}
    instances: dict[str, str] = {}
