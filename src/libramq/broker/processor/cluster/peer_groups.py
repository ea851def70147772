"""PEER_GROUPS: a coordinator passes groups of Kafka's clients on to the broker that coordinates them next.

Ours; the contract is in docs/design/kafka-cluster.md.
"""

from collections.abc import Mapping

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.group_copies import GroupCopies
from libramq.codes import RequestCode
from libramq.remoting.body.groups import PeerGroupsBody
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Processor, Request


class PeerGroupRequests:
    """The processor of this request; it refuses everyone but the cluster's brokers."""

    def __init__(self, cluster: Cluster, copies: GroupCopies) -> None:
        self._cluster = cluster
        self._copies = copies

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.PEER_GROUPS: self.groups}

    def groups(self, request: Request) -> Outcome:
        """Keep copies of groups that this broker coordinates next."""
        body: PeerGroupsBody = request.body
        self._cluster.require_peer(request.peer.address, body.broker_name)
        return Reply(ext={"lbKnown": "1" if self._copies.take(body) else "0"})
