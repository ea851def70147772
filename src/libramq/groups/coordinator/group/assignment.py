"""The assignment: which queues a member of a coordinated group may hold now, and which it has to release."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from libramq.fencing import MODE_EPOCHS
from libramq.groups.coordinator.group.queue_handover import QueueHandover
from libramq.message.queue import MessageQueue

#: Queues, and the epoch each was granted under.
Epochs = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One member's assignment, under an epoch of its group. In mode `client` the member allocates itself.

    warning: a problem of the group, for the member's user; "" for none.
    """

    epoch: int
    mode: str = MODE_EPOCHS
    queues: Epochs = field(default_factory=dict)
    revoke: Epochs = field(default_factory=dict)
    warning: str = ""


def assignment_by(queues: QueueHandover, member: str, held: Epochs) -> Assignment:
    """Return a member's assignment; queues that it lists but does not own are to be released."""
    owned = queues.of(member)
    keep = {queue: holding.epoch for queue, holding in owned.items() if queue not in queues.revoked}
    drop = {queue: epoch for queue, epoch in held.items() if queue not in keep}
    drop |= {queue: holding.epoch for queue, holding in owned.items() if queue not in keep}
    return Assignment(
        epoch=queues.epoch, queues=dict(sorted(keep.items())), revoke=dict(sorted(drop.items()))
    )
