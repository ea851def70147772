"""The assignors of KIP-848's groups (uniform, range), and the members' vote on the assignor.

    uniform    loads as even as subscriptions allow, with the fewest moves
    range      topic by topic, one run of consecutive partitions for each member

Upstream: UniformAssignor.java, RangeAssignor.java of the group coordinator. Racks are ignored, because a
partition is at one broker.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from libramq.balance.balanced_sticky import balanced_sticky
from libramq.balance.group import Group, Member
from libramq.balance.kafka_rules import kafka_range
from libramq.balance.strategy import GroupRule
from libramq.groups.limits import is_large
from libramq.groups.modern.member import ModernMember
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions
from libramq.message.queue import MessageQueue

#: The assignor of groups whose members name none: the first of group.consumer.assignors.
UNIFORM: Final = "uniform"
ASSIGNORS: Final[Mapping[str, GroupRule]] = {UNIFORM: balanced_sticky, "range": kafka_range}


def voted(members: Iterable[ModernMember]) -> str:
    """Return the assignor that most members want."""
    votes = Counter(member.assignor for member in members if member.assignor is not None)
    return max(sorted(votes), key=votes.__getitem__, default=UNIFORM)


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]


class AssignorWork(NamedTuple):
    """The input of an assignment, a snapshot of a group; any thread may compute it.

    counts: the number of partitions by topic; before: the last target, by member id.
    """

    assignor: str
    members: Sequence[Subscriber]
    counts: Mapping[str, int]
    before: Mapping[str, Partitions]

    @classmethod
    def of(
        cls,
        name: str,
        members: Iterable[ModernMember],
        counts: Mapping[str, int],
        before: Mapping[str, Partitions],
    ) -> "AssignorWork":
        """Return the input of an assignment for these members."""
        seen = [Subscriber(each.member_id, each.instance_id, each.topics) for each in members]
        return cls(name, seen, dict(counts), dict(before))

    @property
    def is_large(self) -> bool:
        """Return whether the computation takes more than some milliseconds."""
        return is_large((each.topics for each in self.members), sum(self.counts.values()))

    def made(self) -> dict[str, Partitions]:
        """Compute the target of each member, by member id."""
        takers = [
            Member(
                client_id=member.member_id,
                topics=member.topics,
                owned=[
                    MessageQueue(each.topic, "", each.number)
                    for each in sorted(self.before.get(member.member_id, NO_PARTITIONS))
                ],
                instance_id=member.instance_id,
            )
            for member in self.members
        ]
        queues = (
            MessageQueue(topic, "", each) for topic, count in self.counts.items() for each in range(count)
        )
        shares = ASSIGNORS[self.assignor](Group.of(takers, queues))
        return {
            member.member_id: frozenset(
                Partition(each.topic, each.queue_id) for each in shares.get(member.member_id, ())
            )
            for member in self.members
        }
