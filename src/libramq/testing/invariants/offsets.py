"""Invariants of committed offsets: the last acknowledged one is kept, none lies beyond the durable end."""

from collections import defaultdict
from typing import TYPE_CHECKING

from libramq.broker.broker import Broker
from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.testing.history import Commit
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class _Register:
    """The commits of one group in one queue that the broker may still hold.

    A broker's offset behaves as a register that members write and read: a read that began after a commit was
    acknowledged sees that one, or one that was not over before it. Unanswered ones may be applied any time,
    but none under an epoch below that of an acknowledged one.
    """

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.offsets: set[int] = set()
        #: Until when commits were dropped that only earlier requests can have seen.
        self.forgotten_ms = MonotonicMs(-1)
        #: After a power cut: any offset ever committed may reappear.
        self.is_lossy = False

    def current(self, requested_ms: MonotonicMs) -> tuple[list[Commit], bool]:
        """Return the commits that a read begun at a time may see, and whether it must see one."""
        answered = [
            c
            for c in self.commits
            if c.answered_ms is not None and c.answered_ms < requested_ms and not c.may_be_lost
        ]
        newest_ms = max((commit.requested_ms for commit in answered), default=None)
        if newest_ms is None:
            return self.commits, False
        epoch = max(_epoch(commit) for commit in answered)
        return [
            commit
            for commit in self.commits
            if (commit.answered_ms is None or commit.answered_ms >= newest_ms)
            and (commit.claim is None or commit.claim.epoch >= epoch)
        ], True

    def forget_old(self, now_ms: MonotonicMs) -> None:
        """Drop commits that no later read may see."""
        self.commits, self.forgotten_ms = self.current(now_ms)[0], now_ms


def _epoch(commit: Commit) -> int:
    return commit.claim.epoch if commit.claim is not None else 0


class CommitIsKept(Invariant):
    """Check that queries return the last acknowledged offset, also after a crash."""

    name = "an acknowledged commit is not forgotten, and no offset is zero by accident"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._registers: dict[tuple[str, MessageQueue], _Register] = defaultdict(_Register)

    def commit_requested(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        register = self._registers[group, queue]
        if len(register.commits) > 16:
            register.forget_old(self.cluster.now_ms)
        register.commits.append(commit)
        register.offsets.add(commit.offset)

    def offset_read(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs
    ) -> None:
        self._judge(group, queue, offset, requested_ms, "a member gets")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None:
            for (_, queue), register in self._registers.items():
                if queue.broker_name == name:
                    register.is_lossy = True
                    for commit in register.commits:
                        commit.may_be_lost = True

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for (group, queue), register in self._registers.items():
            if queue.broker_name == name:
                offset = broker.offsets.query(group, queue.topic, queue.queue_id)
                self._judge(group, queue, offset, self.cluster.now_ms, "after recovery it is")
                if register.is_lossy:  # From here on it is judged again.
                    register.is_lossy = False
                    baseline = Commit(offset or 0, self.cluster.now_ms)
                    baseline.answered_ms = self.cluster.now_ms if offset is not None else None
                    register.commits = [c for c in register.commits if c.answered_ms is None] + [baseline]
                    register.forgotten_ms = self.cluster.now_ms

    def _judge(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs, how: str
    ) -> None:
        if self.cluster.was_deleted(queue):
            return  # Late commits to a deleted topic of that name may be applied.
        register = self._registers[group, queue]
        commits, must_see = register.current(requested_ms)
        if register.is_lossy:
            commits, must_see = [], False
            if offset in register.offsets:
                return
        if requested_ms < register.forgotten_ms and offset in register.offsets:
            return  # A frozen member gets the answer long after.
        if (not offset and not must_see) or any(commit.offset == offset for commit in commits):
            return
        allowed = sorted({commit.offset for commit in commits} or register.offsets)
        if offset is not None and self._was_clamped(queue, offset, max(allowed, default=0)):
            return
        self.broken(f"{group} committed {allowed} in {queue}; {how} {offset}")

    def _was_clamped(self, queue: MessageQueue, offset: int, committed_max: int) -> bool:
        """Return whether the queue lost its end, so that offsets beyond were lowered to it."""
        return (
            not self.cluster.is_sync and queue.broker_name in self.cluster.cuts_ms and offset < committed_max
        )


class CommitWithinDurable(Invariant):
    """Check that no group's offset is beyond the durable end: it would skip the next messages there."""

    name = "committed offsets lie within what is durable"

    def step(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                self.broker_recovered(name, node.broker)

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for key, offsets in broker.ledger.offsets.tables()["offsetTable"].items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                end = broker.store.max_offset(topic, queue_id)
                if offset > end:
                    self.broken(
                        f"{group} committed {offset} in {topic}@{name}/{queue_id}, which ends at {end}"
                    )
