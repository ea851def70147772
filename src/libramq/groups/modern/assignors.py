"""The assignors of the coordinator: what all members of a modern group shall have.

    uniform    loads as even as subscriptions allow, with the fewest moves
    range      topic by topic, one run of neighbouring partitions for each member

Upstream: UniformAssignor.java, RangeAssignor.java of the group coordinator. Racks are ignored: a partition is
at one broker.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from libramq.balance.balanced_sticky import balanced_sticky
from libramq.balance.group import Group
from libramq.balance.group import Member as Taker
from libramq.balance.kafka_range import kafka_range
from libramq.balance.strategy import GroupRule
from libramq.groups.modern.member import Member
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions
from libramq.message.queue import MessageQueue

#: The assignor of groups whose members name none: the first of group.consumer.assignors.
UNIFORM: Final = "uniform"
ASSIGNORS: Final[Mapping[str, GroupRule]] = {UNIFORM: balanced_sticky, "range": kafka_range}


def voted(members: Iterable[Member]) -> str:
    """Return the assignor that most members want."""
    votes = Counter(member.assignor for member in members if member.assignor is not None)
    return max(sorted(votes), key=votes.__getitem__, default=UNIFORM)


def assign(
    name: str, members: Collection[Member], counts: Mapping[str, int], before: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Return what each member shall have, by member id.

    counts: how many partitions topics have; before: the last target.
    """
    takers = [
        Taker(
            client_id=member.member_id,
            topics=member.topics,
            owned=[_queue(each) for each in sorted(before.get(member.member_id, NO_PARTITIONS))],
            instance_id=member.instance_id,
        )
        for member in members
    ]
    queues = (MessageQueue(topic, "", index) for topic, count in counts.items() for index in range(count))
    shares = ASSIGNORS[name](Group.of(takers, queues))
    return {
        member.member_id: frozenset(
            Partition(each.topic, each.queue_id) for each in shares.get(member.member_id, ())
        )
        for member in members
    }


def _queue(partition: Partition) -> MessageQueue:
    return MessageQueue(partition.topic, "", partition.number)
