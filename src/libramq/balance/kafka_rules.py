"""Kafka's rules: range, round robin, sticky and cooperative sticky, each over all topics of a group at once.

    kafka_range          each member gets one run of neighbouring queues of each topic; topics with equally
                         many queues and the same members are divided alike, so joins find both sides together
    round_robin          the queues of all topics are dealt out in turn, past members without a subscription
    sticky               as even as possible, and then every queue stays with its member if it can
    cooperative_sticky   the same in two steps: a queue that moves is released first

Sticky, equal subscriptions: step by step Kafka's own result. If several members have the same right to one
more queue, Kafka goes through them in the order of a hash table; here it is the order of their ids. Different
subscriptions: Kafka searches for improvements by trial, ours is optimal (balanced_sticky). Racks are ignored:
a queue is at one broker.

Upstream: Kafka's RangeAssignor.java, RoundRobinAssignor.java, AbstractStickyAssignor.java.
"""

from collections import deque
from collections.abc import Sequence

from libramq.balance.balanced_sticky import most_even
from libramq.balance.group import Assignment, Group, Member, holdings, ownership
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
    """Return the sort key: static members first, by name (AbstractPartitionAssignor.MemberInfo)."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.client_id


def round_robin(group: Group) -> Assignment:
    """Continue dealing each topic where the last one ended."""
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


def sticky(group: Group) -> Assignment:
    """Assign evenly first, then stickily; as in Kafka, a retry topic is like any other topic."""
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
