"""The target of a modern group: what its members shall have, of which topics, and why it is made again."""

from collections.abc import KeysView, Mapping
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.modern.assignors import UNIFORM, Assigning, voted
from libramq.groups.modern.member import Member, Step
from libramq.groups.modern.subscribed_topics import CountOf, SubscribedTopics
from libramq.groups.modern.values import LEAVES_FOR_A_WHILE, NO_PARTITIONS, Change, Partition, Partitions
from libramq.groups.rebalance_event import Reason

#: Ours: members that come at once get one assignment, as in a coordinated group.
COLLECT_MS: Final = 20
#: Ours: a group's first members, as in a classic group: what one gets at once it would have to give up again.
INITIAL_DELAY_MS: Final = 200


class TargetAssignment:
    """The members by their ids, the target of each, and their steps towards it.

    A partition is taken from a member only after that has given it up; until then nobody else gets it.
    epoch: rises with every cause of a rebalance; target_epoch: the one that was assigned last. touched: the
    members whose state has changed since it was recorded. changes: the causes of rebalances since they were
    taken.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, Member] = {}
        self.target: dict[str, Partitions] = {}
        self.touched: set[str] = set()
        #: Rises whenever some member may have news.
        self.version = 0
        self._owners: dict[Partition, str] = {}
        #: No later than the next time at which something is due: beats only put that off.
        self._due_ms: MonotonicMs | None = None
        self.assignor = UNIFORM
        self.changes: list[Change] = []
        #: The topics that fit the patterns of members.
        self.fitting: dict[str, frozenset[str]] = {}
        self._topics = SubscribedTopics()
        self._assign_at_ms: MonotonicMs | None = None
        #: The assignment that is being made, whether `take_work` has returned it, and its epoch.
        self._work: Assigning | None = None
        self._is_taken = False
        self._work_epoch = 0

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
        """Return what its members subscribe to."""
        return self._topics.names

    @property
    def counts(self) -> Mapping[str, int]:
        """Return how many partitions of each topic are assigned."""
        return self._topics.counts

    def uses(self, pattern: str) -> bool:
        """Return whether a member subscribes to a pattern."""
        return any(member.pattern == pattern for member in self.members.values())

    def fit(self, pattern: str, topics: frozenset[str], count_of: CountOf, now_ms: MonotonicMs) -> None:
        """Note which topics fit a pattern now: its members read them."""
        used = {member.pattern for member in self.members.values()}
        self.fitting = {each: fitting for each, fitting in self.fitting.items() if each in used}
        self.fitting[pattern] = topics
        others: list[Member] = []
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
            return  # It is begun again when that is done.
        self._assign_at_ms = None
        self.assignor = voted(self.members.values())
        work = Assigning.of(self.assignor, self.members.values(), self._topics.counts, self.target)
        if work.is_large:
            self.epoch = max(self.epoch, self.target_epoch + 1)
            self._work, self._is_taken = work, False
        self._work_epoch = self.epoch
        if not work.is_large:
            self.assigned(work, work.made(), now_ms)

    def take_work(self) -> Assigning | None:
        """Return an assignment that is to be made now, once."""
        work, self._is_taken = None if self._is_taken else self._work, True
        return work

    def assigned(self, work: Assigning, made: Mapping[str, Partitions], now_ms: MonotonicMs) -> None:
        """Take an assignment: an instance may have another member by now, and new ones have nothing."""
        known = {each.instance_id or each.member_id: made[each.member_id] for each in work.members}
        before = self.target
        self.target = {each.member_id: known.get(each.name, NO_PARTITIONS) for each in self.members.values()}
        self.touched.update(each for each, share in self.target.items() if before.get(each) != share)
        self.target_epoch = self._work_epoch
        self.version += 1
        self._work = None
        if self._assign_at_ms is not None:  # Put off, not late: nobody stood still.
            self._assign_at_ms = max(self._assign_at_ms, now_ms)
            self._due_by(self._assign_at_ms)

    def _next(self, member: Member) -> Step:
        target = self.target.get(member.member_id, NO_PARTITIONS)
        return member.next_step(target, self.target_epoch, lambda each: each not in self._owners)

    def _put(self, member: Member, step: Step, now_ms: MonotonicMs) -> None:
        """Take a step; whatever it releases is free for others."""
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

    def _own(self, member: Member, now: Partitions, before: Partitions | None = None) -> None:
        for each in (member.holds if before is None else before) - now:
            self._owners.pop(each, None)
            self.version += 1
        for each in now:
            self._owners[each] = member.member_id

    def _due_by(self, due_ms: MonotonicMs) -> None:
        self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)
