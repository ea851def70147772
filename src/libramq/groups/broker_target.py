"""The target of a group with server-side assignment: which member each queue is meant for, over all topics.

It is computed from the group as it was, so any thread may do that: a thousand members that subscribe to
different topics take 0.3 to 1.7 s.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from libramq.balance import Group, Member, balanced_sticky
from libramq.message.queue import MessageQueue

#: Ours: what is assigned within a turn of the loop, in some 10 ms, as in coordinated groups.
SUBSCRIPTIONS_AT_ONCE_MAX: Final = 200
QUEUES_AT_ONCE_MAX: Final = 1_000

#: A member's queues by topic, in their order.
Lots = dict[str, list[MessageQueue]]


class BrokerTarget(NamedTuple):
    """A target. members: by queue; lots: by member; topics: all queues by topic."""

    members: dict[MessageQueue, str]
    lots: dict[str, Lots]
    topics: Lots


class TargetWork(NamedTuple):
    """The input of a target. topics: of each member; owned: its queues. version: of the group."""

    version: Hashable
    topics: Mapping[str, frozenset[str]]
    owned: Mapping[str, Sequence[MessageQueue]]
    queues: Sequence[MessageQueue]

    @property
    def is_large(self) -> bool:
        """Return whether it takes more than some milliseconds."""
        subscriptions = sum(map(len, self.topics.values()))
        return subscriptions > SUBSCRIPTIONS_AT_ONCE_MAX or len(self.queues) > QUEUES_AT_ONCE_MAX

    def compute(self) -> BrokerTarget:
        """Compute the target."""
        members = (
            Member(client_id=client_id, topics=topics, owned=self.owned[client_id])
            for client_id, topics in self.topics.items()
        )
        group = Group.of(members, self.queues)
        assignment = balanced_sticky(group)
        by_queue = {queue: client_id for client_id, lot in assignment.items() for queue in lot}
        lots: dict[str, Lots] = {client_id: {} for client_id in self.topics}
        for queue, client_id in sorted(by_queue.items()):
            lots[client_id].setdefault(queue.topic, []).append(queue)
        return BrokerTarget(by_queue, lots, {topic: list(lot) for topic, lot in group.queues.items()})
