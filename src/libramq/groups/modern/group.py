"""A modern group (KIP-848): starts rebalances, fences members and ends sessions, decides who may commit, and
answers heartbeats.

    join, leave, end of a session, other topics or partitions ─► the group's epoch rises
    a moment later ─► the assignor computes the target of that epoch
    heartbeat ─► the member's next step towards its target: revoke first, then get free partitions

Each method takes a request or the time, and changes the state. It has no clock and no randomness. The caller
sends `answer` to members with `has_news`, and calls `tick` at `next_due_ms`. The caller also computes large
assignments: `take_work` returns the input, and `assigned` takes the result.

Upstream: ModernGroup.java, ConsumerGroup.java, GroupMetadataManager.java.
"""

from collections.abc import Iterable, KeysView, Mapping
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.modern.assignors import UNIFORM, AssignorWork, voted
from libramq.groups.modern.member import SESSION_MS, ModernMember, Step
from libramq.groups.modern.subscribed_topics import CountOf, SubscribedTopics
from libramq.groups.modern.values import (
    JOINS,
    LEAVES_FOR_A_WHILE,
    NO_PARTITIONS,
    Change,
    Heartbeat,
    HeartbeatAnswer,
    Partition,
    Partitions,
)
from libramq.groups.protocol_groups import Refusal
from libramq.groups.rebalance_event import Reason

#: Ours: the time in which members must return after a restart: one and a half times librdkafka's longest wait
#: before it reconnects (reconnect.backoff.max.ms).
RETURN_MS: Final = 15_000
#: Ours: more epochs than can begin in the half second before a power cut, whose records may be lost.
EPOCHS_AHEAD: Final = 100
#: Ours: members that join together get one assignment, as in a coordinated group.
COLLECT_MS: Final = 20
#: Ours: the wait for a group's first members, as in a classic group: the first would have to give up most of
#: an immediate assignment.
INITIAL_DELAY_MS: Final = 200
#: Ours; group.consumer.max.size is unbounded.
MEMBERS_MAX: Final = 1_000
#: Ours: the memory of a member.
MEMBER_BYTES: Final = 1_500
#: Ours: the memory of a partition and its topic's name.
PARTITION_BYTES: Final = 300


class ModernGroup:
    """One group: the members by id, the target of each, and their steps towards it.

    No other member gets a partition before its owner has given it up. epoch: rises with every cause of a
    rebalance; target_epoch: the last assigned epoch. touched: members whose state has changed since it was
    recorded. changes: the causes of rebalances since the caller last took them.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, ModernMember] = {}
        self.target: dict[str, Partitions] = {}
        self.touched: set[str] = set()
        #: Rises whenever a member may have news.
        self.version = 0
        self._owners: dict[Partition, str] = {}
        #: At or before the next due time; heartbeats only postpone it.
        self._due_ms: MonotonicMs | None = None
        self.assignor = UNIFORM
        self.changes: list[Change] = []
        #: The topics that match each pattern of a member.
        self.fitting: dict[str, frozenset[str]] = {}
        self._topics = SubscribedTopics()
        self._assign_at_ms: MonotonicMs | None = None
        #: The assignment being computed.
        self._work: AssignorWork | None = None
        self._is_taken = False
        self._work_epoch = 0
        self._static: dict[str, str] = {}

    @property
    def is_unused(self) -> bool:
        """Return whether the group has nothing worth keeping."""
        return not self.members

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return the time of the next `tick`."""
        return self._due_ms

    @property
    def cost_bytes(self) -> int:
        """Return the approximate memory that the group takes."""
        partitions = len(self._owners) + self._topics.count
        return MEMBER_BYTES * len(self.members) + self._topics.name_bytes + PARTITION_BYTES * partitions

    @property
    def state(self) -> str:
        """Return the name of the group's state (ConsumerGroupState)."""
        if not self.members:
            return "Empty"
        if self.epoch != self.target_epoch:
            return "Assigning"
        return "Stable" if self.is_settled else "Reconciling"

    @property
    def is_settled(self) -> bool:
        """Return whether every member has its target."""
        return self.epoch == self.target_epoch and all(
            each.epoch in (self.target_epoch, LEAVES_FOR_A_WHILE)
            and each.holds == self.target.get(each.member_id, NO_PARTITIONS)
            for each in self.members.values()
        )

    @property
    def topics(self) -> KeysView[str]:
        """Return the topics that members subscribe to."""
        return self._topics.names

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of assigned partitions of each topic."""
        return self._topics.counts

    # Requests.

    def beat(self, beat: Heartbeat, count_of: CountOf, now_ms: MonotonicMs) -> Refusal:
        """Handle the heartbeat of a member that joins, is alive or has given up partitions."""
        refusal = self._refusal(beat)
        topics = beat.topics
        if refusal is Refusal.NONE and topics is not None and self._topics.are_too_many(topics, count_of):
            refusal = Refusal.GROUP_FULL
        if refusal is not Refusal.NONE:
            return refusal
        member = self._joined(beat) if beat.epoch == JOINS else self.members[beat.member_id]
        member.renew(now_ms)
        self._due_by(member.expires_ms)
        before = member.topics
        news = (beat.topics, beat.pattern, beat.assignor, beat.rebalance_ms)
        if any(each is not None for each in news):
            self.touched.add(beat.member_id)
        is_new = beat.member_id not in self.target
        has_other_topics, has_other_assignor = member.take(beat, self.fitting)
        self._topics.subscribe(before, member.topics)
        if is_new:
            self.target[beat.member_id] = NO_PARTITIONS
            self._changed(Reason.MEMBER_JOINED, member.name, now_ms)
        elif has_other_topics:
            self._changed(Reason.SUBSCRIPTION_CHANGED, member.name, now_ms)
        elif has_other_assignor and voted(self.members.values()) != self.assignor:
            self._changed(Reason.STRATEGY_CHANGED, member.name, now_ms)
        if beat.owned is not None and member.revoking.isdisjoint(beat.owned):
            self._put(member, Step(member.epoch, member.assigned, NO_PARTITIONS), now_ms)
        grown = self._topics.look(count_of, now_ms, is_due=is_new or has_other_topics)
        if grown is not None:
            self._changed(Reason.QUEUE_COUNT_CHANGED, grown, now_ms)
        return Refusal.NONE

    def has_news(self, member_id: str) -> bool:
        """Return whether a member's heartbeat should be answered now."""
        member = self.members.get(member_id)
        if member is None:
            return True
        if member.epoch == JOINS and (self._assign_at_ms is not None or self._work is not None):
            return False  # The next assignment is imminent.
        step = self._next(member)
        if member.epoch == JOINS and not step.assigned and self.target[member_id]:
            return False  # Others give up partitions for it.
        return step.epoch != member.epoch or step.assigned != member.sent

    def is_moving(self, member_id: str) -> bool:
        """Return whether an answered member still has to give up partitions or to get some."""
        member = self.members[member_id]
        is_waiting = member.epoch == self.target_epoch and member.assigned != self.target[member_id]
        return bool(member.revoking) or is_waiting

    def answer(self, member_id: str, now_ms: MonotonicMs) -> HeartbeatAnswer:
        """Take a member's next step, and return the answer to its heartbeat."""
        member = self.members[member_id]
        if member.epoch == JOINS and self._assign_at_ms is not None:
            self._assign(now_ms)
        if member.epoch == JOINS and not self.target_epoch:  # The first assignment takes long.
            self.target_epoch = self.epoch
            self.epoch = self._work_epoch = self.epoch + 1
        self._put(member, self._next(member), now_ms)
        is_sent = member.sent == member.assigned
        member.sent = member.assigned
        return HeartbeatAnswer(member_id, member.epoch, None if is_sent else member.assigned)

    def leave(self, beat: Heartbeat, now_ms: MonotonicMs) -> Refusal:
        """Handle a leaving member; a static one that leaves for a while keeps its partitions."""
        refusal = self._refusal(beat)
        if refusal is not Refusal.NONE:
            return refusal
        member = self.members[beat.member_id]
        if beat.epoch == LEAVES_FOR_A_WHILE:
            self._put(member, Step(LEAVES_FOR_A_WHILE, member.assigned, NO_PARTITIONS), now_ms)
            return Refusal.NONE
        self._remove(member, Reason.MEMBER_LEFT, now_ms)
        return Refusal.NONE

    def remove(self, member_id: str, instance_id: str | None, now_ms: MonotonicMs) -> Refusal:
        """Remove a member at an operator's request, by its id or instance id."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is not None and member_id and member_id != known:
                return Refusal.FENCED_INSTANCE
            member_id = known or ""
        member = self.members.get(member_id)
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        self._remove(member, Reason.MEMBER_LEFT, now_ms)
        return Refusal.NONE

    def dissolve(self) -> None:
        """Drop all members, because another broker coordinates the group now."""
        for member in list(self.members.values()):
            self._drop(member)
        self.target.clear()
        self.version += 1

    def may_use_offsets(self, member_id: str, epoch: int) -> Refusal:
        """Return the refusal of a commit or fetch of offsets: it needs a member's epoch or an empty group.

        The previous epoch counts as well: a commit may cross the answer with the new epoch, and a member
        gives up partitions before it loses them. Consumers that choose their own partitions have no epoch,
        but with librdkafka they have an id.
        """
        if epoch < 0 and not self.members:
            return Refusal.NONE
        member = self.members.get(member_id)
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        return Refusal.NONE if epoch in (member.epoch, member.previous_epoch) else Refusal.STALE_EPOCH

    def lost(self, member_id: str, until_ms: MonotonicMs) -> bool:
        """Limit a member's session after its connection ended; return whether the limit applies.

        A static member keeps its whole session, but until it returns another client may take its place.
        """
        member = self.members.get(member_id)
        if member is None or member.epoch == LEAVES_FOR_A_WHILE:
            return False
        member.is_lost = True
        if member.instance_id is not None:
            return False
        member.expires_ms = min(member.expires_ms, until_ms)
        self._due_by(member.expires_ms)
        return True

    def returned(self, member_id: str, now_ms: MonotonicMs) -> None:
        """Renew the session of a lost member whose client is back."""
        member = self.members.get(member_id)
        if member is not None:
            member.renew(now_ms)

    # Patterns of topics.

    def uses(self, pattern: str) -> bool:
        """Return whether a member subscribes to a pattern."""
        return any(member.pattern == pattern for member in self.members.values())

    def fit(self, pattern: str, topics: frozenset[str], count_of: CountOf, now_ms: MonotonicMs) -> None:
        """Set the topics that match a pattern, which its members read from now on."""
        used = {member.pattern for member in self.members.values()}
        self.fitting = {each: fitting for each, fitting in self.fitting.items() if each in used}
        self.fitting[pattern] = topics
        others: list[ModernMember] = []
        for member in self.members.values():
            before = member.topics
            if member.pattern == pattern:
                member.subscribe(self.fitting)
                if member.topics != before:
                    others.append(member)
                    self._topics.subscribe(before, member.topics)
        if others:
            self.touched.update(each.member_id for each in others)
            self._changed(Reason.SUBSCRIPTION_CHANGED, others[0].name, now_ms)
            self._topics.look(count_of, now_ms, is_due=True)

    # The time.

    def restore(
        self,
        epoch: int,
        assignor: str,
        counts: Mapping[str, int],
        members: Iterable[tuple[ModernMember, Partitions]],
        now_ms: MonotonicMs,
    ) -> None:
        """Continue with the members and targets recorded before a restart.

        The members are expected back. Partitions that a crash left half recorded are reassigned.
        """
        self.assignor = assignor
        self._topics.restore(counts)
        for member, target in members:
            member.assigned -= self._owners.keys()
            member.revoking -= self._owners.keys()
            self._add(member)
            self.target[member.member_id] = target
            is_static = member.instance_id is not None
            member.expires_ms = now_ms + (SESSION_MS if is_static else RETURN_MS)
            member.is_lost = is_static  # Another client may take its place.
            member.is_awaited = True
            if member.revoking:
                member.revoke_by_ms = now_ms + member.rebalance_ms
                self._due_by(member.revoke_by_ms)
            self._due_by(member.expires_ms)
        self.epoch = self.target_epoch = epoch + EPOCHS_AHEAD
        if self.members:
            self._assign(now_ms)

    def extend(self, late_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the sessions after this process stalled; late_ms: the delay of `tick`."""
        for member in self.members.values():
            if member.is_lost and member.instance_id is None:  # Its client's return may still be unread.
                member.expires_ms = max(member.expires_ms, now_ms + late_ms)
            elif member.epoch != LEAVES_FOR_A_WHILE:
                member.renew(now_ms)
            if member.revoke_by_ms is not None:
                member.revoke_by_ms += late_ms

    def tick(self, now_ms: MonotonicMs) -> None:
        """Handle expired sessions, overdue revocations and a due assignment."""
        for member in list(self.members.values()):
            if member.expires_ms <= now_ms:
                is_closed = member.is_lost and member.instance_id is None
                reason = Reason.CONNECTION_CLOSED if is_closed else Reason.SESSION_EXPIRED
                self._remove(member, reason, now_ms)
            elif member.revoke_by_ms is not None and member.revoke_by_ms <= now_ms:
                self._remove(member, Reason.PROCESSING_TIMEOUT, now_ms)
        if self._assign_at_ms is not None and self._assign_at_ms <= now_ms:
            self._assign(now_ms)
        times = [each.expires_ms for each in self.members.values()]
        times += [each.revoke_by_ms for each in self.members.values() if each.revoke_by_ms is not None]
        times += [self._assign_at_ms] if self._assign_at_ms is not None and self._work is None else []
        self._due_ms = min(times, default=None)

    # Members.

    def _refusal(self, beat: Heartbeat) -> Refusal:
        known = self._static.get(beat.instance_id) if beat.instance_id is not None else None
        if beat.epoch == JOINS:
            return self._join_refusal(beat, known)
        if beat.instance_id is not None and known != beat.member_id:
            return Refusal.UNKNOWN_MEMBER if known is None else Refusal.FENCED_INSTANCE
        member = self.members.get(beat.member_id)
        if member is None:
            return Refusal.UNKNOWN_MEMBER
        if beat.epoch < 0:
            return Refusal.NONE
        if member.is_awaited and not (beat.owned or NO_PARTITIONS) <= member.holds:
            return Refusal.FENCED_EPOCH  # Its epoch is from another coordinator and may be equal by chance.
        if beat.epoch == member.epoch:
            return Refusal.NONE
        # The answer with its new epoch may have been lost.
        is_last = beat.epoch == member.previous_epoch and beat.owned is not None
        is_known = is_last and (beat.owned or NO_PARTITIONS) <= member.assigned
        return Refusal.NONE if is_known else Refusal.FENCED_EPOCH

    def _join_refusal(self, beat: Heartbeat, known: str | None) -> Refusal:
        if known is not None and known != beat.member_id:
            member = self.members[known]
            # Kafka makes the new client wait for a killed member's session to end.
            is_released = member.epoch == LEAVES_FOR_A_WHILE or member.is_lost
            return Refusal.NONE if is_released else Refusal.UNRELEASED_INSTANCE
        is_more = beat.member_id not in self.members and len(self.members) >= MEMBERS_MAX
        return Refusal.GROUP_FULL if is_more else Refusal.NONE

    def _joined(self, beat: Heartbeat) -> ModernMember:
        """Return a joining member: a new one, or one that starts over without partitions."""
        known = self._static.get(beat.instance_id) if beat.instance_id is not None else None
        member = ModernMember(beat.member_id, beat.instance_id)
        # A static member is back, perhaps under a new id, or the answer to a join was lost.
        ids = dict.fromkeys((beat.member_id, known))
        for old in [self.members[each] for each in ids if each is not None and each in self.members]:
            target = self.target.pop(old.member_id)
            self._drop(old)
            if old.instance_id == beat.instance_id:
                member.topics, member.assignor = old.topics, old.assignor
                member.named, member.pattern = old.named, old.pattern
                member.assigned = old.assigned & target
                self.target[beat.member_id] = target
        self._add(member)
        return member

    def _add(self, member: ModernMember) -> None:
        self.members[member.member_id] = member
        self._own(member, member.holds)
        self._topics.subscribe(frozenset(), member.topics)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self.touched.add(member.member_id)
        self.version += 1

    def _remove(self, member: ModernMember, reason: Reason, now_ms: MonotonicMs) -> None:
        self._drop(member)
        self.target.pop(member.member_id, None)
        self._changed(reason, member.name, now_ms)

    def _drop(self, member: ModernMember) -> None:
        self._own(member, NO_PARTITIONS)
        self._topics.subscribe(member.topics, frozenset())
        del self.members[member.member_id]
        self.touched.add(member.member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]

    # The target, and steps towards it.

    def _changed(self, reason: Reason, name: str, now_ms: MonotonicMs) -> None:
        self.changes.append(Change(reason, name))
        self.version += 1
        if self._assign_at_ms is None:
            self.epoch += 1
            delay_ms = INITIAL_DELAY_MS if not self.target_epoch else COLLECT_MS
            self._assign_at_ms = now_ms + delay_ms
            self._due_by(self._assign_at_ms)

    def _assign(self, now_ms: MonotonicMs) -> None:
        if self._work is not None:
            return  # Restarted when that is done.
        self._assign_at_ms = None
        self.assignor = voted(self.members.values())
        work = AssignorWork.of(self.assignor, self.members.values(), self._topics.counts, self.target)
        if work.is_large:
            self.epoch = max(self.epoch, self.target_epoch + 1)
            self._work, self._is_taken = work, False
        self._work_epoch = self.epoch
        if not work.is_large:
            self.assigned(work, work.made(), now_ms)

    def take_work(self) -> AssignorWork | None:
        """Return the input of an assignment to compute now, once."""
        work, self._is_taken = None if self._is_taken else self._work, True
        return work

    def assigned(self, work: AssignorWork, made: Mapping[str, Partitions], now_ms: MonotonicMs) -> None:
        """Take a computed assignment; an instance may be another member now, and new members get nothing."""
        known = {each.instance_id or each.member_id: made[each.member_id] for each in work.members}
        before = self.target
        self.target = {each.member_id: known.get(each.name, NO_PARTITIONS) for each in self.members.values()}
        self.touched.update(each for each, share in self.target.items() if before.get(each) != share)
        self.target_epoch = self._work_epoch
        self.version += 1
        self._work = None
        if self._assign_at_ms is not None:  # Postponed, not late: there was no stall.
            self._assign_at_ms = max(self._assign_at_ms, now_ms)
            self._due_by(self._assign_at_ms)

    def _next(self, member: ModernMember) -> Step:
        target = self.target.get(member.member_id, NO_PARTITIONS)
        return member.next_step(target, self.target_epoch, lambda each: each not in self._owners)

    def _put(self, member: ModernMember, step: Step, now_ms: MonotonicMs) -> None:
        """Take a step; partitions that it releases are free for other members."""
        if step != (member.epoch, member.assigned, member.revoking):
            self.touched.add(member.member_id)
        if step.epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, step.epoch
        if step.revoking != member.revoking:
            member.revoke_by_ms = now_ms + member.rebalance_ms if step.revoking else None
            if member.revoke_by_ms is not None:
                self._due_by(member.revoke_by_ms)
        held = member.holds
        member.assigned, member.revoking = step.assigned, step.revoking
        if member.holds != held:
            self._own(member, member.holds, held)

    def _own(self, member: ModernMember, now: Partitions, before: Partitions | None = None) -> None:
        for each in (member.holds if before is None else before) - now:
            self._owners.pop(each, None)
            self.version += 1
        for each in now:
            self._owners[each] = member.member_id

    def _due_by(self, due_ms: MonotonicMs) -> None:
        self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)
