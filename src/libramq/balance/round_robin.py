"""Round robin (Kafka's): the queues of all topics are dealt out one by one, past members without a
subscription.

Upstream: Kafka's RoundRobinAssignor.java (roundrobin).
"""

from libramq.balance.group import Assignment, Group
from libramq.balance.kafka_range import kafka_order
from libramq.message.queue import MessageQueue


def round_robin(group: Group) -> Assignment:
    """Continue dealing from where the last topic ended."""
    ordered = sorted(group.members, key=kafka_order)
    shares: dict[str, list[MessageQueue]] = {member.client_id: [] for member in group.members}
    place = 0
    for topic in sorted(group.queues):
        if not any(topic in member.topics for member in ordered):
            continue
        for queue in group.queues[topic]:
            while topic not in ordered[place].topics:
                place = (place + 1) % len(ordered)
            shares[ordered[place].client_id].append(queue)
            place = (place + 1) % len(ordered)
    return shares
