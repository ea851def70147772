"""The rebalance of a classic group: its two phases, and what they leave behind.

joins are parked ─► all are there, or the time is up ─► the generation begins; the leader gets all members
syncs are parked ─► the leader's brings the assignment ─► everybody gets a share
                                                         └► or waits for the next rebalance, a moment away
"""

from collections.abc import Collection, Hashable, Iterator, Sequence

from libramq.clock import MonotonicMs
from libramq.groups.classic.state import (
    INITIAL_DELAY_MS,
    NEXT,
    NEXT_REBALANCE_MS,
    Member,
    Status,
    voted,
)
from libramq.groups.classic.values import Answer, Joined, JoinedMember, Refusal, Sync, Synced


class ClassicRebalance:
    """The members of a group, and the phases of its rebalance."""

    def __init__(self) -> None:
        self.status = Status.EMPTY
        self.generation = 0
        #: Rises whenever its members or their shares may have changed.
        self.version = 0
        self._generations_ahead = 1
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        #: Ids that were given out and have not returned, with the time until which they may.
        self.pending: dict[str, MonotonicMs] = {}
        self._static: dict[str, str] = {}
        self._join_ends_ms: MonotonicMs | None = None
        #: Of the first rebalance: it continues while members join, until then. None: of a later one.
        self._initial_until_ms: MonotonicMs | None = None
        self._has_newcomer = False
        #: Whether a member has gone since the last rebalance began.
        self._has_removed = False
        self._sync_ends_ms: MonotonicMs | None = None
        self._to_sync: set[str] = set()
        #: Members whose shares bring nothing new, while others have to join again; until when they wait.
        self._waiting: Collection[str] = ()
        self._wait_ends_ms: MonotonicMs | None = None
        self._answers: list[Answer] = []

    def _rebalance(self, now_ms: MonotonicMs) -> None:
        """Begin to collect members, unless that is under way; end it if all are there."""
        if self.status is not Status.PREPARING_REBALANCE:
            for member in self.members.values():
                self._end_sync(member, Refusal.REBALANCE_IN_PROGRESS)
            self._to_sync.clear()
            self._sync_ends_ms = None
            self._waiting, self._wait_ends_ms = (), None
            timeout_ms = self._rebalance_timeout_ms()
            if self.status is Status.EMPTY:
                self._initial_until_ms = now_ms + timeout_ms
                self._join_ends_ms = now_ms + min(INITIAL_DELAY_MS, timeout_ms)
                self._has_newcomer = False
            else:
                self._initial_until_ms = None
                self._join_ends_ms = now_ms + timeout_ms
            self._become(Status.PREPARING_REBALANCE)
        if self._initial_until_ms is None and self._all_joined():
            self._complete_join(now_ms)

    def _all_joined(self) -> bool:
        return not self.pending and all(member.join_key is not None for member in self.members.values())

    def _join_phase_ended(self, now_ms: MonotonicMs) -> None:
        until_ms = self._initial_until_ms
        if until_ms is not None and self._has_newcomer and now_ms < until_ms:
            self._has_newcomer = False
            self._join_ends_ms = min(now_ms + INITIAL_DELAY_MS, until_ms)
            return
        self._initial_until_ms = None
        absent = [member for member in self.members.values() if member.join_key is None]
        for member in absent:
            if member.instance_id is None:
                self._remove(member)
        if self.members and all(member.join_key is None for member in self.members.values()):
            self._join_ends_ms = (
                now_ms + self._rebalance_timeout_ms()
            )  # Only static members, none of them here.
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: MonotonicMs) -> None:
        self._join_ends_ms = None
        self._has_removed = False
        self.generation += self._generations_ahead
        self._generations_ahead = 1
        if not self.members:
            self.protocol_name = self.leader = None
            self._become(Status.EMPTY)
            return
        self.protocol_name = voted(self.members.values())
        joined = [member for member in self.members.values() if member.join_key is not None]
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self._become(Status.COMPLETING_REBALANCE)
        self._sync_ends_ms = now_ms + self._rebalance_timeout_ms()
        for member in self.members.values():
            member.assignment = b""
        for member in joined:
            member.is_new = False
            member.renew(now_ms)
            self._to_sync.add(member.member_id)
            self._answers.append(self._joined(member))

    def _assign(self, sync: Sync, now_ms: MonotonicMs) -> None:
        for member in self.members.values():
            member.assignment = sync.assignments.get(member.member_id, b"")
        self._become(Status.STABLE)
        if sync.waiting:
            self._waiting, self._wait_ends_ms = sync.waiting, now_ms + NEXT_REBALANCE_MS
        self._answer_syncs(now_ms)

    def _answer_syncs(self, now_ms: MonotonicMs) -> None:
        """Give members that ask their shares, except for those that wait; their sessions begin again."""
        for member in self.members.values():
            waits = member.may_wait and member.member_id in self._waiting
            if member.sync_key is not None and not waits:
                member.renew(now_ms)
                self._answers.append(self._share(member.sync_key, member))
                member.sync_key = None

    def _wait_ended(self, now_ms: MonotonicMs) -> None:
        """Answer those that waited: the others have not joined again in time."""
        self._waiting, self._wait_ends_ms = (), None
        self._answer_syncs(now_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _remove(self, member: Member) -> None:
        self._end_join(member, Refusal.UNKNOWN_MEMBER)
        self._end_sync(member, Refusal.UNKNOWN_MEMBER)
        del self.members[member.member_id]
        self._to_sync.discard(member.member_id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = None
        self._has_removed = True
        self.version += 1

    def _members_left(self, now_ms: MonotonicMs) -> None:
        """Rebalance if members were removed; one that is under way may be complete without them."""
        is_preparing = self.status is Status.PREPARING_REBALANCE
        if self._has_removed or is_preparing:
            self._has_removed = False
            if self.status is not Status.EMPTY:
                self._rebalance(now_ms)

    def _joined(self, member: Member) -> Joined:
        """Return the answer to a member's join, which is not parked any more."""
        key, member.join_key = member.join_key, None
        assert key is not None, "a join is answered once"
        members: Sequence[JoinedMember] = ()
        if member.member_id == self.leader:
            members = [
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol_name))
                for each in self.members.values()
            ]
        return Joined(
            key, Refusal.NONE, member.member_id, self.generation, self.protocol_type, self.protocol_name,
            self.leader or "", members,
        )  # fmt: skip

    def _share(self, key: Hashable, member: Member) -> Synced:
        return Synced(key, Refusal.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _end_join(self, member: Member, refusal: Refusal) -> None:
        if member.join_key is not None:
            self._answers.append(Joined(member.join_key, refusal, member.member_id))
            member.join_key = None

    def _end_sync(self, member: Member, refusal: Refusal) -> None:
        if member.sync_key is not None:
            self._answers.append(Synced(member.sync_key, refusal))
            member.sync_key = None

    def _taken(self) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers

    def _become(self, status: Status) -> None:
        assert status in NEXT[self.status], f"{self.status} is not followed by {status}"
        self.status = status
        self.version += 1

    def _times(self) -> Iterator[MonotonicMs]:
        yield from self.pending.values()
        for member in self.members.values():
            if member.due_ms is not None:
                yield member.due_ms
        for ends_ms in (self._join_ends_ms, self._sync_ends_ms, self._wait_ends_ms):
            if ends_ms is not None:
                yield ends_ms
