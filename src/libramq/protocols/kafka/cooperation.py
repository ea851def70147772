"""Cooperation: a cooperative rebalance has two rounds, and who waits for the second (KIP-429).

    round 1   A gives up half of its partitions   B gets nothing yet
    round 2   A has joined again                  B gets them

A joins again as soon as it has its share. B would hear of that by its next heartbeat, 3 s later with the
defaults, as clients begin to count anew when they have joined; until then nobody reads the partitions. So
the answer to B's sync waits for round 2, and tells it to join again. Members of librdkafka need no such
answer: their heartbeats are held all the time.
"""

from collections.abc import Collection, Mapping

from libramq.groups.classic.state import ClassicMember
from libramq.wire.kafka.subscription import CONSUMER, assigned_partitions, owned_partitions


def members_that_wait(
    members: Collection[ClassicMember],
    protocol_type: str | None,
    protocol_name: str | None,
    assignments: Mapping[str, bytes],
) -> frozenset[str]:
    """Return the members that get nothing new while others give up partitions; none if nobody does.

    Eager members own nothing when they join, so nobody of them gives anything up.
    """
    if protocol_type != CONSUMER:
        return frozenset()
    owned = {each.member_id: set(owned_partitions(each.metadata(protocol_name))) for each in members}
    if not any(owned.values()):
        return frozenset()
    assigned = {member_id: set(assigned_partitions(assignments.get(member_id, b""))) for member_id in owned}
    if all(kept <= assigned[member_id] for member_id, kept in owned.items()):
        return frozenset()
    return frozenset(member_id for member_id, kept in owned.items() if kept == assigned[member_id])
