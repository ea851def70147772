"""PEER_GROUPS: a coordinator passes groups of Kafka's clients on to the broker that coordinates them next.

Ours; the contract is in docs/design/kafka-cluster.md.
"""

from collections.abc import Mapping

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.group_copies import GroupCopies
from libramq.broker.processor.cluster.peers import signed
from libramq.codes import RequestCode
from libramq.formats.document import decode_body
from libramq.remoting.body.groups import PeerGroupsBody
from libramq.remoting.credentials import Credentials
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Processor, Request


class PeerGroupRequests:
    """The processor of this request; it refuses everyone but the cluster's brokers."""

    def __init__(
        self, cluster: Cluster, copies: GroupCopies, credentials: Credentials | None, address: str
    ) -> None:
        self._cluster = cluster
        self._copies = copies
        self._credentials = credentials
        self._address = address

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        processors: dict[int, Processor] = {RequestCode.PEER_GROUPS: self.groups}
        return signed(processors, self._credentials, self._address)

    def groups(self, request: Request) -> Outcome:
        """Keep copies of groups that this broker coordinates next."""
        body = decode_body(request.command.body, PeerGroupsBody)
        self._cluster.require_peer(request.peer.address, body.broker_name)
        return Reply(ext={"lbKnown": "1" if self._copies.take(body) else "0"})
