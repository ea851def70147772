"""The grants: what a coordinator sends to the fences of a group's queues."""

from libramq.fencing import Attempts, Claim, Claims, FenceGrant
from libramq.groups.coordinator.effect import Grant
from libramq.groups.coordinator.group.queue_handover import QueueHandover
from libramq.message.queue import MessageQueue


def complete_grant(group: str, mode: str, queues: QueueHandover, broker_name: str) -> FenceGrant:
    """Return the full state for one fence."""
    claims = {
        queue: Claim(holding.member, holding.epoch)
        for queue, holding in queues.holdings.items()
        if queue.broker_name == broker_name
    }
    return FenceGrant(
        group=group,
        epoch=queues.epoch,
        mode=mode,
        claims=claims,
        complete=True,
        attempts=_attempts(queues, claims),
    )


def latest_grants(group: str, mode: str, queues: QueueHandover) -> list[Grant]:
    """Return the grants since the last call, one per broker."""
    by_broker: dict[str, dict[MessageQueue, Claim]] = {}
    for queue in queues.granted:
        holding = queues.holdings.get(queue)
        if holding is not None:
            by_broker.setdefault(queue.broker_name, {})[queue] = Claim(holding.member, holding.epoch)
    return [
        Grant(
            name,
            FenceGrant(
                group=group, epoch=queues.epoch, mode=mode, claims=claims, attempts=_attempts(queues, claims)
            ),
        )
        for name, claims in by_broker.items()
    ]


def _attempts(queues: QueueHandover, claims: Claims) -> dict[MessageQueue, Attempts]:
    return {queue: queues.attempts[queue] for queue in claims if queue in queues.attempts}
