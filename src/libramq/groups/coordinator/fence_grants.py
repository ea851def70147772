"""The grants: what the fences of a coordinated group are told."""

from libramq.groups.coordinator.effect import Grant
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.remoting.body.coordination import PeerGrantBody, QueueGrant


def holdings_of(queues: QueueHandover) -> list[QueueGrant]:
    """Who holds what."""
    return [QueueGrant.of(queue, holding.epoch, holding.member) for queue, holding in queues.holdings.items()]


def complete_grant(group: str, mode: str, queues: QueueHandover, broker_name: str) -> PeerGrantBody:
    """All that one fence is to know."""
    return PeerGrantBody(
        group=group,
        epoch=queues.epoch,
        mode=mode,
        grants=[grant for grant in holdings_of(queues) if grant.broker_name == broker_name],
        complete=True,
    )


def latest_grants(group: str, mode: str, queues: QueueHandover) -> list[Grant]:
    """What has been granted since somebody asked last, a body a broker."""
    by_broker: dict[str, list[QueueGrant]] = {}
    for queue in queues.granted:
        holding = queues.holdings.get(queue)
        if holding is not None:
            grant = QueueGrant.of(queue, holding.epoch, holding.member)
            by_broker.setdefault(queue.broker_name, []).append(grant)
    return [
        Grant(name, PeerGrantBody(group=group, epoch=queues.epoch, mode=mode, grants=grants))
        for name, grants in by_broker.items()
    ]
