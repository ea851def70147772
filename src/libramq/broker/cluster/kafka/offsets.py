"""Offsets at other brokers: a group's coordinator commits, looks up and deletes offsets of queues that other
brokers have (PEER_OFFSETS).
"""

from collections.abc import Callable, Sequence

from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.broker.groups.group_offsets import Exchange, Exchanged
from libramq.errors import LibraError
from libramq.remoting.body.kafka_cluster import PeerOffsets, PeerOffsetsBody, offsets_of, queues_of
from libramq.rpc import peer_calls


class OffsetExchanges:
    """The exchanges with other brokers: `group_offsets.Exchanges`."""

    def __init__(self, peers: PeerBrokers) -> None:
        self._peers = peers

    def names(self) -> Sequence[str]:
        """Return the other brokers of the cluster."""
        return list(self._peers.links)

    def exchange(
        self, broker_name: str, what: Exchange, done: Callable[[Exchanged | LibraError], None]
    ) -> None:
        """Send an exchange to a broker."""
        own = [queue for queue in what.commits if queue.broker_name == broker_name]
        body = PeerOffsetsBody(
            broker_name=self._peers.view.own_name,
            group=what.group,
            commits=offsets_of(what.commits),
            queues=queues_of(what.queues),
            is_all=what.is_all,
            removed=queues_of(what.removed),
            is_deleted=what.is_deleted,
        )

        def answered(outcome: PeerOffsets | LibraError) -> None:
            if isinstance(outcome, LibraError):
                done(outcome)
                return
            codes = dict(zip(own, outcome.codes, strict=False))
            done(Exchanged(codes, {each.queue: each.offset for each in outcome.offsets}))

        self._peers.ask_broker(broker_name, peer_calls.exchange_offsets(body), answered)


def exchange_of(body: PeerOffsetsBody) -> Exchange:
    """Return the exchange that a request describes."""
    return Exchange(
        body.group,
        commits={each.queue: max(each.offset, 0) for each in body.commits},
        queues=[each.queue for each in body.queues],
        is_all=body.is_all,
        removed=[each.queue for each in body.removed],
        is_deleted=body.is_deleted,
    )
