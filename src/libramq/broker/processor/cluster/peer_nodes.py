"""PEER_NODE, PEER_TOPIC, PEER_OFFSETS: requests between brokers that serve Kafka's clients.

Ours; the contract is in docs/design/kafka-cluster.md.
"""

from collections.abc import Mapping

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.cluster_topics import ClusterTopics
from libramq.broker.cluster.nodes import Nodes, is_visible
from libramq.broker.cluster.offset_exchanges import exchange_of
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.catalog.topic_attributes import changed_attributes
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import encode_body
from libramq.message.names import is_valid_group
from libramq.remoting.body import nodes as bodies
from libramq.remoting.body.nodes import offsets_of
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Processor, Request


class PeerNodeRequests:
    """The processor of these requests; it refuses everyone but the cluster's brokers."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        offsets: GroupOffsets,
        topics: ClusterTopics,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._offsets = offsets
        self._topics = topics

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.PEER_NODE: self.node,
            RequestCode.PEER_TOPIC: self.topic,
            RequestCode.PEER_OFFSETS: self.offsets,
        }

    def node(self, request: Request) -> Outcome:
        """Return this broker as Kafka's clients see it."""
        body: bodies.PeerNodeBody = request.body
        self._cluster.require_peer(request.peer.address, body.broker_name)
        return Reply(body=encode_body(self._nodes.answer(body.version)))

    def topic(self, request: Request) -> Outcome:
        """Create, extend or delete a topic for a client of another broker."""
        body: bodies.PeerTopicBody = request.body
        self._cluster.require_peer(request.peer.address, body.broker_name)
        if not is_visible(body.topic):
            raise broker_error(
                ResponseCode.INVALID_PARAMETER, f"topic {body.topic} is not for Kafka's clients"
            )
        changes = {f"+{name}": value for name, value in body.attributes.items()}
        attributes = changed_attributes(None, changes)
        self._topics.apply(body.topic, body.queues, body.numbering.value(), attributes)
        return SUCCESS

    def offsets(self, request: Request) -> Outcome:
        """Commit, return and delete offsets of a group that another broker coordinates."""
        body: bodies.PeerOffsetsBody = request.body
        self._cluster.require_peer(request.peer.address, body.broker_name)
        if not is_valid_group(body.group):
            raise broker_error(ResponseCode.INVALID_PARAMETER, f"{body.group!r} is not the name of a group")
        exchanged = self._offsets.take(exchange_of(body), request.peer)
        codes = list(exchanged.codes.values())
        return Reply(body=encode_body(bodies.PeerOffsets(codes=codes, offsets=offsets_of(exchanged.offsets))))
