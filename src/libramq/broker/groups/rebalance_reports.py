"""The reports of rebalances: how a coordinator has rebalances recorded, here and at the other brokers."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_peers import GroupPeers
from libramq.clock import Clock, read_clock
from libramq.groups.coordinator.effect import Replaced, Settled, Started

#: Ours: how many causers a rebalance event names; a hundred members may join at once.
NAMED_MAX: Final = 5


class RebalanceReports:
    """Reports of the rebalances of groups coordinated here."""

    def __init__(
        self, *, broker_name: str, consumers: ConsumerClients, peers: GroupPeers, clock: Clock
    ) -> None:
        self._broker_name = broker_name
        self._rebalances = consumers.rebalances
        self._peers = peers
        self._clock = clock

    def started(self, started: Started) -> None:
        """Record the start of a rebalance, and have the others record their queues' moves."""
        who = named(started.who)
        start = partial(
            self._rebalances.started,
            started.group,
            started.reason,
            who,
            started.members,
            epoch=started.epoch,
            now=read_clock(self._clock),
        )
        self._rebalances.note_later(start)
        self._peers.started(started, who)

    def settled(self, settled: Settled) -> None:
        """Record the end of a rebalance; the minimum of moves only where other brokers have queues too.

        Where all are here, what was observed says how many had to move.
        """
        self._rebalances.note_later(partial(self._completed, settled))
        self._peers.settled(settled)

    def _completed(self, settled: Settled) -> None:
        own = {q: client_id for q, client_id in settled.holders.items() if q.broker_name == self._broker_name}
        observed = self._rebalances.observed(settled.group)
        if observed is not None:
            observed.completed(
                settled.members,
                holders=own,
                uncommitted=settled.uncommitted,
                duplicates=settled.duplicates,
                minimum=settled.minimum if len(own) < len(settled.holders) else None,
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
