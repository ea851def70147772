"""The reports of rebalances: how a coordinator has rebalances recorded, here and at the other brokers."""

from collections.abc import Sequence
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_peers import GroupPeers
from libramq.clock import Now
from libramq.groups.coordinator.effect import Replaced, Settled, Started

#: Ours: how many causers a rebalance event names; a hundred members may join at once.
NAMED_MAX: Final = 5


class RebalanceReports:
    """Reports of the rebalances of groups coordinated here."""

    def __init__(self, *, broker_name: str, consumers: ConsumerClients, peers: GroupPeers) -> None:
        self._broker_name = broker_name
        self._rebalances = consumers.rebalances
        self._peers = peers

    def record(self, effect: Started | Settled, now: Now) -> None:
        """Record a rebalance's start or end, here and at the other brokers. now: when it happened."""
        if isinstance(effect, Settled):
            self._completed(effect)
            self._peers.settled(effect)
            return
        who = named(effect.who)
        self._rebalances.started(
            effect.group, effect.reason, who, effect.members, epoch=effect.epoch, now=now
        )
        self._peers.started(effect, who)

    def _completed(self, settled: Settled) -> None:
        """Record the end of a rebalance; the minimum of moves only where other brokers have queues too.

        Where all are here, what was observed says how many had to move.
        """
        observed = self._rebalances.observed(settled.group)
        if observed is not None:
            holders = settled.holders
            own = {q: client_id for q, client_id in holders.items() if q.broker_name == self._broker_name}
            observed.completed(
                settled.members,
                holders=own,
                uncommitted=settled.uncommitted,
                duplicates=settled.duplicates,
                minimum=settled.minimum if len(own) < len(holders) else None,
            )

    def replaced(self, replaced: Replaced) -> None:
        """Record that a client has taken another's place."""
        observed = self._rebalances.observed(replaced.group)
        if observed is not None:
            observed.replaced(replaced.former, replaced.client_id)
        self._peers.replaced(replaced)


def named(who: Sequence[str]) -> str | None:
    """Return who caused a rebalance, as text; not all, if there are many."""
    if len(who) <= NAMED_MAX:
        return ", ".join(who) or None
    return f"{', '.join(who[:NAMED_MAX])} and {len(who) - NAMED_MAX} more"
