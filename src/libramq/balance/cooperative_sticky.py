"""Cooperative sticky: sticky in two steps, so that no member stops without need.

        first   members keep what stays; a queue that moves is unassigned, and its holder releases it
        then    it is assigned to its new member

Upstream: Kafka's CooperativeStickyAssignor.java (cooperative-sticky), KIP-429.
"""

from libramq.balance.group import Assignment, Group
from libramq.balance.ownership import ownership
from libramq.balance.sticky import sticky


def cooperative_sticky(group: Group) -> Assignment:
    """Return the sticky assignment without the queues that another member still holds."""
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
