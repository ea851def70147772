"""The parts for other brokers: their requests, and what brokers need that serve Kafka's clients together."""

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.cluster_topics import ClusterTopics
from libramq.broker.cluster.group_copies import GroupCopies
from libramq.broker.cluster.group_successors import GroupSuccessors
from libramq.broker.cluster.nodes import Nodes
from libramq.broker.cluster.offset_exchanges import OffsetExchanges
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.group_parts import GroupParts
from libramq.broker.groups.committing import Committing
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.broker.groups.group_removal import GroupRemoval
from libramq.broker.groups.topic_removal import TopicRemoval
from libramq.broker.processor.cluster.peer_groups import PeerGroupRequests
from libramq.broker.processor.cluster.peer_nodes import PeerNodeRequests
from libramq.broker.processor.cluster.peers import PeerRequests
from libramq.kernel.parts import Kernel
from libramq.rpc.question import signing


class NodeParts:
    """The parts, built from the bottom up."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        groups: GroupParts,
        committing: Committing,
        removal: TopicRemoval,
        kernel: Kernel,
    ) -> None:
        self._config = config
        self._tables = files.tables
        self._groups = groups
        topics, peers = files.tables.topics, groups.peers
        ask = signing(kernel.effects.ask, config.credentials)
        self.nodes = Nodes(topics, peers, kernel, ask, files.filesystem, config.store_path)
        self.topics = ClusterTopics(self.nodes, topics, removal, peers, kernel.clock, ask)
        self.group_removal = GroupRemoval(
            files.tables, committing.offsets, groups.coordination, removal, kernel.clock
        )
        others = OffsetExchanges(config.broker_name, peers, ask)
        self.offsets = GroupOffsets(
            files.tables, committing, self.group_removal, groups.coordination, kernel.clock, others
        )
        #: Before the services of Kafka's groups: these drop the groups that others coordinate now.
        self.copies = GroupCopies(peers.view, kernel.clock)
        self.successors = GroupSuccessors(config.broker_name, peers.view, kernel, ask)
        topics.observe(self._topic_changed)

    def requests(self, cluster: Cluster) -> list[PeerNodeRequests | PeerGroupRequests | PeerRequests]:
        """Return the services of other brokers' requests."""
        config, groups = self._config, self._groups
        signature = (config.credentials, config.address)
        return [
            PeerNodeRequests(cluster, self.nodes, self.offsets, self.topics, *signature),
            PeerGroupRequests(cluster, self.copies, *signature),
            PeerRequests(
                cluster=cluster,
                coordination=groups.coordination,
                consumers=groups.consumers,
                assigner=groups.assigner,
                credentials=config.credentials,
                address=config.address,
            ),
        ]

    def _topic_changed(self, topic: str) -> None:
        if topic not in self._tables.topics:
            self.offsets.forget_topic(topic)
