"""Invariants of who owns which queue."""

from collections import defaultdict
from typing import TYPE_CHECKING

from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class EveryQueueOwned(Invariant):
    """Once faults have ended, every queue of a group comes to have one owner, and keeps it."""

    name = "every queue is owned by exactly one member soon after faults end"
    within_ms = 15_000  # Less than the 20 s after which members look by themselves.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._wrong: list[str] = []

    def is_met(self) -> bool:
        self._wrong = []
        for group, topics in self.cluster.subscriptions().items():
            owners: dict[MessageQueue, list[str]] = defaultdict(list)
            members = [member for member in self.cluster.members if member.group == group and member.is_alive]
            for member in members:
                for queue in member.core.owned():
                    owners[queue].append(member.name)
            for queue in self.cluster.queues(topics) if members else ():
                subscribed = any(queue.topic in member.topics for member in members)
                if subscribed and len(owners[queue]) != 1:
                    self._wrong.append(f"{group}: {queue} is owned by {owners[queue] or 'nobody'}")
        return not self._wrong

    def finish(self) -> None:
        if not self.is_met():
            self.broken("; ".join(self._wrong))
