"""A classic group, Kafka's older protocol: runs its rebalances, chooses the leader, fences and removes
members, and decides who may commit.

    joins are parked ─► all have joined, or time is up ─► the generation begins; the leader gets all members
    syncs are parked ─► the leader's brings the assignment ─► every member gets its share
                                                            └► or waits for the imminent next rebalance

Each method takes a request or the time, changes the state, and returns the due answers. It has no clock and
no randomness. The caller calls `tick` at `next_due_ms`.

Upstream: GroupCoordinator.scala, GroupMetadata.scala; now ClassicGroup.java, GroupMetadataManager.java.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.classic.state import (
    INITIAL_DELAY_MS,
    MEMBER_BYTES,
    MEMBERS_MAX,
    NEW_MEMBER_MS,
    NEXT,
    NEXT_REBALANCE_MS,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    ClassicMember,
    Status,
    fits,
    refusal_of,
    voted,
)
from libramq.groups.classic.values import (
    Answer,
    Beat,
    JoinAnswer,
    JoinedMember,
    JoinGroup,
    Leaving,
    SyncAnswer,
    SyncGroup,
)
from libramq.groups.protocol_groups import Refusal

#: Ours: more generations than may begin without a share being sent.
GENERATIONS_AHEAD: Final = 100


class ClassicGroup:
    """One group: its members, and the phases of its rebalance."""

    def __init__(self) -> None:
        self.status = Status.EMPTY
        self.generation = 0
        #: Rises whenever the members or their shares may have changed.
        self.version = 0
        self._generations_ahead = 1
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        #: Ids sent to new members that have not rejoined yet, with their deadlines.
        self.pending: dict[str, MonotonicMs] = {}
        self._static: dict[str, str] = {}
        self._join_ends_ms: MonotonicMs | None = None
        #: The end of the first rebalance, which continues while members join; None in later ones.
        self._initial_until_ms: MonotonicMs | None = None
        self._has_newcomer = False
        #: Whether a member was removed since the last rebalance began.
        self._has_removed = False
        self._sync_ends_ms: MonotonicMs | None = None
        self._to_sync: set[str] = set()
        #: Members whose shares bring nothing new, which wait while others rejoin.
        self._waiting: Collection[str] = ()
        self._wait_ends_ms: MonotonicMs | None = None
        self._answers: list[Answer] = []

    @property
    def is_unused(self) -> bool:
        """Return whether the group has nothing worth keeping."""
        return not self.members and not self.pending and self.status is Status.EMPTY

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return the time of the next `tick`."""
        return min(self._times(), default=None)

    @property
    def cost_bytes(self) -> int:
        """Return the approximate memory that the group takes."""
        return MEMBER_BYTES * (len(self.pending) + len(self.members)) + sum(
            member.content_bytes for member in self.members.values()
        )

    @property
    def has_synced(self) -> bool:
        """Return whether every member has its share, or no member is left."""
        if self.status is not Status.STABLE:
            return self.status is Status.EMPTY
        return not self._to_sync and all(member.sync_key is None for member in self.members.values())

    def reads_share(self, member: ClassicMember) -> bool:
        """Return whether a member has its share of this generation."""
        has_sent_sync = member.member_id not in self._to_sync
        return self.status is Status.STABLE and has_sent_sync and member.sync_key is None

    # Requests.

    def join(self, join: JoinGroup, now_ms: MonotonicMs) -> list[Answer]:
        """Handle a member that joins or rejoins."""
        refusal = self._join_refusal(join)
        if refusal is not None:
            self._answers.append(JoinAnswer(join.key, refusal, join.member_id))
        elif not join.member_id:
            self._join_without_id(join, now_ms)
        elif join.member_id in self.pending:
            del self.pending[join.member_id]
            self._add(join.member_id, join, now_ms)
        else:
            self._rejoin(self.members[join.member_id], join, now_ms)
        return self._taken()

    def sync(self, sync: SyncGroup, now_ms: MonotonicMs) -> list[Answer]:
        """Handle a member's request for its share; the leader's request contains all shares."""
        refusal = self._refusal(Beat(sync.member_id, sync.instance_id, sync.generation))
        if refusal is Refusal.NONE:
            named = ((sync.protocol_type, self.protocol_type), (sync.protocol_name, self.protocol_name))
            if any(theirs is not None and theirs != ours for theirs, ours in named):
                refusal = Refusal.INCONSISTENT_PROTOCOL
            elif self.status is Status.PREPARING_REBALANCE:
                refusal = Refusal.REBALANCE_IN_PROGRESS
        if refusal is not Refusal.NONE:
            self._answers.append(SyncAnswer(sync.key, refusal))
            return self._taken()
        member = self.members[sync.member_id]
        member.renew(now_ms)
        self._to_sync.discard(member.member_id)
        self._end_sync(member, Refusal.REBALANCE_IN_PROGRESS)  # A retry: the first answer was lost.
        member.sync_key, member.may_wait = sync.key, sync.may_wait
        if self.status is Status.STABLE:
            self._answer_syncs(now_ms)
        elif member.member_id == self.leader:
            self._assign(sync, now_ms)
        return self._taken()

    def is_assigned_by(self, member_id: str, generation: int) -> bool:
        """Return whether a member's sync would bring the assignment of its generation."""
        is_awaited = self.status is Status.COMPLETING_REBALANCE and generation == self.generation
        return is_awaited and member_id == self.leader

    def beat(self, beat: Beat, now_ms: MonotonicMs) -> Refusal:
        """Handle a member's sign of life; return its refusal or the news of a rebalance."""
        if self._refusal(beat) is Refusal.NONE:
            self.members[beat.member_id].renew(now_ms)
        return self.news(beat)

    def news(self, beat: Beat) -> Refusal:
        """Return the refusal or the news of a rebalance for a member, without renewing its session."""
        refusal = self._refusal(beat)
        if refusal is Refusal.NONE and self.status is Status.PREPARING_REBALANCE:
            return Refusal.REBALANCE_IN_PROGRESS
        return refusal

    def dissolve(self) -> list[Hashable]:
        """Return the parked requests, which stay unanswered because another broker coordinates the group."""
        keys = [key for each in self.members.values() for key in (each.join_key, each.sync_key)]
        return [key for key in keys if key is not None]

    def lost(self, member_id: str, until_ms: MonotonicMs, is_gone: Callable[[Hashable], bool]) -> bool:
        """Limit a dynamic member's session after its connection ended; return False for any other member.

        is_gone: whether a parked request came over that connection. A static member keeps its whole session.
        """
        member = self.members.get(member_id)
        if member is None or member.instance_id is not None:
            return False
        if is_gone(member.join_key):
            member.join_key = None
        if is_gone(member.sync_key):
            member.sync_key = None
        member.expires_ms = min(member.expires_ms, until_ms)
        member.is_lost = True
        return True

    def returned(self, member_id: str, now_ms: MonotonicMs) -> None:
        """Renew the session of a lost member whose client is back."""
        member = self.members.get(member_id)
        if member is not None:
            member.renew(now_ms)

    def may_commit(self, beat: Beat, now_ms: MonotonicMs) -> Refusal:
        """Return the refusal of a commit, which needs a member of this generation or an empty group.

        A commit to an empty group may name a member: librdkafka's consumers have an id even if they never
        join.
        """
        if beat.generation < 0 and not self.members:
            return Refusal.NONE
        refusal = self._refusal(beat)
        if refusal is Refusal.NONE:
            self.members[beat.member_id].renew(now_ms)
            if self.status is Status.COMPLETING_REBALANCE:
                return Refusal.REBALANCE_IN_PROGRESS
        return refusal

    def leave(self, leaving: Sequence[Leaving], now_ms: MonotonicMs) -> tuple[list[Refusal], list[Answer]]:
        """Handle leaving members; return the refusal of each, and the answers to others."""
        refusals = [self._leave(each) for each in leaving]
        self._members_left(now_ms)
        return refusals, self._taken()

    def extend(self, late_ms: int, now_ms: MonotonicMs) -> None:
        """Restart the sessions after this process stalled, for which members are not to blame.

        late_ms: the delay of `tick`. The process may have been stalled for longer.
        """
        for member_id, until_ms in self.pending.items():
            self.pending[member_id] = until_ms + late_ms
        for member in self.members.values():
            if member.is_lost:  # Its client's return may still be unread.
                member.expires_ms = max(member.expires_ms, now_ms + min(late_ms, member.session_ms))
            elif member.expires_ms < now_ms + member.session_ms:
                member.renew(now_ms)
        for name in ("_join_ends_ms", "_initial_until_ms", "_sync_ends_ms", "_wait_ends_ms"):
            until_ms = getattr(self, name)
            setattr(self, name, until_ms + late_ms if until_ms is not None else None)

    def tick(self, now_ms: MonotonicMs) -> list[Answer]:
        """Handle expired sessions and unused ids, and the ends of rebalance phases."""
        self.pending = {member_id: until for member_id, until in self.pending.items() if until > now_ms}
        for member in list(self.members.values()):
            if member.due_ms is not None and member.due_ms <= now_ms:
                self._remove(member)
        if self._sync_ends_ms is not None and now_ms >= self._sync_ends_ms:
            for member_id in [each for each in self._to_sync if each in self.members]:
                self._remove(self.members[member_id])
            self._sync_ends_ms = None
        if self._wait_ends_ms is not None and now_ms >= self._wait_ends_ms:
            self._waiting, self._wait_ends_ms = (), None  # The others did not rejoin in time.
            self._answer_syncs(now_ms)
        self._members_left(now_ms)
        if self._join_ends_ms is not None and now_ms >= self._join_ends_ms:
            self._join_phase_ended(now_ms)
        return self._taken()

    def restore(
        self,
        generation: int,
        protocol_type: str | None,
        protocol_name: str | None,
        leader: str | None,
        members: Iterable[ClassicMember],
    ) -> None:
        """Continue with the members and shares of the former coordinator.

        It may have begun further generations without sending shares, so the next generation skips ahead.
        """
        self.status = Status.STABLE
        self.generation, self._generations_ahead = generation, GENERATIONS_AHEAD
        self.protocol_type, self.protocol_name, self.leader = protocol_type, protocol_name, leader
        self.version += 1
        for member in members:
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id

    # Joining.

    def _join_refusal(self, join: JoinGroup) -> Refusal | None:
        if not SESSION_MS_MIN <= join.session_ms <= SESSION_MS_MAX:
            return Refusal.INVALID_SESSION_TIMEOUT
        if not join.protocol_type or not join.protocols or not self._is_consistent(join):
            return Refusal.INCONSISTENT_PROTOCOL
        known = self._static.get(join.instance_id) if join.instance_id is not None else None
        if not join.member_id:
            is_more = known is None and len(self.members) + len(self.pending) >= MEMBERS_MAX
            return Refusal.GROUP_FULL if is_more else None
        if known is not None and known != join.member_id:
            return Refusal.FENCED_INSTANCE
        if join.member_id not in self.members and join.member_id not in self.pending:
            return Refusal.UNKNOWN_MEMBER
        return None

    def _is_consistent(self, join: JoinGroup) -> bool:
        """Return whether a member supports a strategy that all others support."""
        replaced = self._static.get(join.instance_id) if join.instance_id is not None else None
        same = (join.member_id, replaced)
        others = [member for member_id, member in self.members.items() if member_id not in same]
        return not others or (join.protocol_type == self.protocol_type and fits(join, others))

    def _join_without_id(self, join: JoinGroup, now_ms: MonotonicMs) -> None:
        known = self._static.get(join.instance_id) if join.instance_id is not None else None
        if known is not None:
            self._replace(self.members[known], join, now_ms)
        elif join.instance_id is None and join.must_come_back:  # KIP-394.
            self.pending[join.fresh_id] = now_ms + join.session_ms
            self._answers.append(JoinAnswer(join.key, Refusal.MEMBER_ID_REQUIRED, join.fresh_id))
        else:
            self._add(join.fresh_id, join, now_ms)

    def _add(self, member_id: str, join: JoinGroup, now_ms: MonotonicMs) -> None:
        member = self.members[member_id] = ClassicMember(member_id, join)
        member.expires_ms = now_ms + NEW_MEMBER_MS
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        if self.protocol_type is None or len(self.members) == 1:
            self.protocol_type = join.protocol_type
        self._has_newcomer = True
        self._rebalance(now_ms)

    def _rejoin(self, member: ClassicMember, join: JoinGroup, now_ms: MonotonicMs) -> None:
        is_leader = member.member_id == self.leader
        is_same = member.knows(join)
        self._end_join(member, Refusal.REBALANCE_IN_PROGRESS)  # A retry: the first answer was lost.
        is_settled = self.status is Status.COMPLETING_REBALANCE or (
            self.status is Status.STABLE and not is_leader
        )
        member.take(join)
        if is_settled and is_same:
            member.renew(now_ms)
            self._answers.append(self._joined(member))
        else:
            self._rebalance(now_ms)

    def _replace(self, old: ClassicMember, join: JoinGroup, now_ms: MonotonicMs) -> None:
        """Replace a returned static member's id; parked requests of the old id are fenced (KIP-345)."""
        self._end_join(old, Refusal.FENCED_INSTANCE)
        self._end_sync(old, Refusal.FENCED_INSTANCE)
        del self.members[old.member_id]
        member = self.members[join.fresh_id] = ClassicMember(join.fresh_id, join)
        assert join.instance_id is not None, "a static member has an instance id"
        self._static[join.instance_id] = member.member_id
        member.assignment = old.assignment
        member.is_new = False
        self.version += 1
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = member.member_id
        self._to_sync.discard(old.member_id)
        member.renew(now_ms)
        if self.status is not Status.STABLE or voted(self.members.values()) != self.protocol_name:
            self._rebalance(now_ms)
            return
        answer = self._joined(member)
        if was_leader and join.may_skip:
            answer = answer._replace(skip_assignment=True)
        elif was_leader:  # As a leader it would reassign; as a follower it takes its share.
            answer = answer._replace(leader=old.member_id, members=())
        self._answers.append(answer)

    # Leaving.

    def _leave(self, leaving: Leaving) -> Refusal:
        member_id = leaving.member_id
        if leaving.instance_id is not None:
            known = self._static.get(leaving.instance_id)
            if known is None:
                return Refusal.UNKNOWN_MEMBER
            if member_id and member_id != known:
                return Refusal.FENCED_INSTANCE
            member_id = known
        if self.pending.pop(member_id, None) is not None:
            return Refusal.NONE
        member = self.members.get(member_id)
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        self._remove(member)
        return Refusal.NONE

    def _refusal(self, beat: Beat) -> Refusal:
        return refusal_of(beat, self.members, self._static, self.generation)

    # The phases of a rebalance.

    def _rebalance(self, now_ms: MonotonicMs) -> None:
        """Begin to collect members, if not already doing so; end the phase if all have joined."""
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
        is_complete = not self.pending and all(each.join_key is not None for each in self.members.values())
        if self._initial_until_ms is None and is_complete:
            self._complete_join(now_ms)

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
            # Only static members are left, none of them connected.
            self._join_ends_ms = now_ms + self._rebalance_timeout_ms()
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

    def _assign(self, sync: SyncGroup, now_ms: MonotonicMs) -> None:
        for member in self.members.values():
            member.assignment = sync.assignments.get(member.member_id, b"")
        self._become(Status.STABLE)
        if sync.waiting:
            self._waiting, self._wait_ends_ms = sync.waiting, now_ms + NEXT_REBALANCE_MS
        self._answer_syncs(now_ms)

    def _answer_syncs(self, now_ms: MonotonicMs) -> None:
        """Answer parked syncs with the shares, except for waiting members; renew the answered members."""
        for member in self.members.values():
            waits = member.may_wait and member.member_id in self._waiting
            if member.sync_key is not None and not waits:
                member.renew(now_ms)
                share = member.assignment, self.protocol_type, self.protocol_name
                self._answers.append(SyncAnswer(member.sync_key, Refusal.NONE, *share))
                member.sync_key = None

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def _remove(self, member: ClassicMember) -> None:
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
        """Rebalance if members were removed; a rebalance under way may now be complete."""
        is_preparing = self.status is Status.PREPARING_REBALANCE
        if self._has_removed or is_preparing:
            self._has_removed = False
            if self.status is not Status.EMPTY:
                self._rebalance(now_ms)

    def _joined(self, member: ClassicMember) -> JoinAnswer:
        """Return the answer to a member's join, and unpark the join."""
        key, member.join_key = member.join_key, None
        assert key is not None, "a join is answered once"
        members: Sequence[JoinedMember] = ()
        if member.member_id == self.leader:
            members = [
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol_name))
                for each in self.members.values()
            ]
        return JoinAnswer(
            key, Refusal.NONE, member.member_id, self.generation, self.protocol_type, self.protocol_name,
            self.leader or "", members,
        )  # fmt: skip

    def _end_join(self, member: ClassicMember, refusal: Refusal) -> None:
        if member.join_key is not None:
            self._answers.append(JoinAnswer(member.join_key, refusal, member.member_id))
            member.join_key = None

    def _end_sync(self, member: ClassicMember, refusal: Refusal) -> None:
        if member.sync_key is not None:
            self._answers.append(SyncAnswer(member.sync_key, refusal))
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
