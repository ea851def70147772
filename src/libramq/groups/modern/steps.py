"""The members of a modern group, what each has and shall have, and their steps from the one to the other.

A partition is taken from a member only after that has given it up; until then nobody else gets it.
"""

from libramq.clock import MonotonicMs
from libramq.groups.modern.member import Member, Step
from libramq.groups.modern.values import LEAVES_FOR_A_WHILE, NO_PARTITIONS, Partition, Partitions


class MemberSteps:
    """The members by their ids. epoch: rises with every cause of a rebalance; target_epoch: the one that
    was assigned last. touched: the members whose state has changed since it was recorded.
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

    @property
    def is_settled(self) -> bool:
        """Return whether every member has its target."""
        return self.epoch == self.target_epoch and all(
            each.epoch in (self.target_epoch, LEAVES_FOR_A_WHILE)
            and each.holds == self.target.get(each.member_id, NO_PARTITIONS)
            for each in self.members.values()
        )

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
