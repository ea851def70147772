"""The assignment: what a member of a coordinated group is told to hold and to give up."""

from collections.abc import Hashable
from typing import Any, TypeVar

from libramq.groups.coordinator.group_member import GroupMember
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.remoting.body.coordination import MODE_CLIENT, GroupAssignment, QueueGrant

P = TypeVar("P", bound=Hashable)


def assignment_by(queues: QueueHandover, member: GroupMember[P, Any]) -> GroupAssignment:
    """What it holds by the coordinator's word; what it lists besides is not its own, and is to go."""
    owned = queues.of(member.id)
    keep = {queue: holding.epoch for queue, holding in owned.items() if queue not in queues.revoked}
    drop = {queue: epoch for queue, epoch in member.held.items() if queue not in keep}
    drop |= {queue: holding.epoch for queue, holding in owned.items() if queue not in keep}
    return GroupAssignment(
        epoch=queues.epoch,
        queues=[QueueGrant.of(queue, epoch) for queue, epoch in sorted(keep.items())],
        revoke=[QueueGrant.of(queue, epoch) for queue, epoch in sorted(drop.items())],
    )


def assignment_as_held(epoch: int, member: GroupMember[P, Any]) -> GroupAssignment:
    """What it holds by its own word: it is to go on so."""
    held = [QueueGrant.of(queue, epoch) for queue, epoch in sorted(member.held.items())]
    return GroupAssignment(epoch=epoch, queues=held)


def assignment_of_nothing(epoch: int) -> GroupAssignment:
    """It is to allocate for itself."""
    return GroupAssignment(epoch=epoch, mode=MODE_CLIENT)
