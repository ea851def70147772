"""Range (Kafka's): topic by topic, each member gets one run of neighbouring queues.

Topics with equally many queues and the same members are divided alike, so that joins find both sides at one
member. Racks are ignored: a queue is at one broker.
Upstream: Kafka's RangeAssignor.java (range).
"""

from libramq.balance.group import Assignment, Group, Member
from libramq.message.queue import MessageQueue


def kafka_range(group: Group) -> Assignment:
    """Divide each topic among its subscribers; the first ones get the remainder."""
    shares: dict[str, list[MessageQueue]] = {member.client_id: [] for member in group.members}
    ordered = sorted(group.members, key=kafka_order)
    for topic, queues in group.queues.items():
        subscribers = [member for member in ordered if topic in member.topics]
        if not subscribers:
            continue
        share, remainder = divmod(len(queues), len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            end = start + share + (position < remainder)
            shares[member.client_id] += queues[start:end]
            start = end
    return shares


def kafka_order(member: Member) -> tuple[bool, str]:
    """Static members first, by their names (AbstractPartitionAssignor.MemberInfo)."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.client_id
