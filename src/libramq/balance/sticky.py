"""Sticky and cooperative sticky (Kafka's): as even as possible, and then every queue stays with its member if
it can.

Equal subscriptions: step by step Kafka's own result. If several members have the same right to one more
queue, Kafka goes through them in the order of a hash table; here it is the order of their ids. Different
subscriptions: Kafka searches for improvements by trial, ours is optimal (balanced_sticky). Racks are ignored:
a queue is at one broker.

Upstream: Kafka's StickyAssignor.java, AbstractStickyAssignor.java (sticky).
"""

from collections import deque
from collections.abc import Sequence

from libramq.balance.balanced_sticky import most_even
from libramq.balance.group import Assignment, Group
from libramq.balance.ownership import holdings, ownership
from libramq.message.queue import MessageQueue


def sticky(group: Group) -> Assignment:
    """Assign evenly first, then stickily; as in Kafka, a retry topic is a topic like any other."""
    held = holdings(group)
    if len({member.topics.intersection(group.queues) for member in group.members}) == 1:
        shares = _alike(group, held)
    else:
        shares = most_even(group, group.queues, held, [1] * len(group.members))
    return {member.client_id: share for member, share in zip(group.members, shares, strict=True)}


def _alike(group: Group, held: Sequence[Sequence[MessageQueue]]) -> list[list[MessageQueue]]:
    """Assign like upstream's ConstrainedAssignmentBuilder."""
    topics = sorted(topic for topic in group.queues if topic in group.members[0].topics)
    number = {queue: place for topic in topics for place, queue in enumerate(group.queues[topic])}
    least, places = divmod(len(number), len(group.members))
    most = least + (places > 0)

    shares: list[list[MessageQueue]] = []
    below: deque[int] = deque()  # Members with fewer queues than the least,
    at_least: deque[int] = deque()  # and those with as many, which may get one more.
    for member, queues in enumerate(held):
        owned = sorted(queues, key=lambda queue: (number[queue], queue.topic))
        if len(owned) < least:
            below.append(member)
        elif len(owned) >= most and places:
            owned = owned[:most]
            places -= 1
        else:
            owned = owned[:least]
            at_least.append(member)
        shares.append(owned)

    kept = {queue for share in shares for queue in share}
    for queue in number:
        if queue in kept:
            continue
        member = below.popleft() if below else at_least.popleft()
        shares[member].append(queue)
        if len(shares[member]) < least:
            below.append(member)
        elif len(shares[member]) == least:
            at_least.append(member)
    return shares


def cooperative_sticky(group: Group) -> Assignment:
    """Return the sticky assignment without the queues that another member still holds.

        first   members keep what stays; a queue that moves is unassigned, and its holder releases it
        then    it is assigned to its new member

    Upstream: Kafka's CooperativeStickyAssignor.java (cooperative-sticky), KIP-429.
    """
    known = ownership(group)
    goal = sticky(group)
    return {
        member.client_id: [
            queue
            for queue in goal[member.client_id]
            if known.owners.get(queue, place) == place and queue not in known.contested
        ]
        for place, member in enumerate(group.members)
    }
