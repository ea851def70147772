"""The parts of a broker that deal with groups: consumers, coordinator, assigner, and the other brokers."""

from collections.abc import Callable, Sequence

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.broker.config import BrokerConfig
from libramq.broker.files.tables import Tables
from libramq.broker.groups.assigner import Assigner
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.group_health import GroupHealth
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.pull_filters import PullFilters
from libramq.groups.cluster_view import ClusterView
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.rpc.question import signing
from libramq.secret_bits import SecretBits


class GroupParts:
    """The parts, built from the bottom up. record: takes rebalance events."""

    def __init__(
        self,
        config: BrokerConfig,
        tables: Tables,
        offsets: OffsetCommits,
        kernel: Kernel,
        name_servers: Sequence[str],
        secret_bits: SecretBits,
        *,
        record: Callable[[RebalanceEvent], None],
    ) -> None:
        clock, name = kernel.clock, config.broker_name
        self.producers: ProducerGroups[Connection] = ProducerGroups()
        self.locks = QueueLocks(grace_ms=config.orderly_lock_grace_ms)
        self.consumers = ConsumerClients(
            broker_name=name,
            tables=tables,
            offsets=offsets,
            locks=self.locks,
            kernel=kernel,
            record=record,
        )
        self.foreign = self.consumers.foreign
        self.filters = PullFilters(
            self.consumers,
            tables.filters,
            clock=clock,
            is_enabled=config.enable_property_filter,
            for_retries=config.filter_support_retry,
        )
        view = ClusterView(name, config.address, is_alone_for_good=not config.namesrv_addr)
        peers = self.peers = self._open_peers(config, view, kernel)
        self.coordination = Coordination(
            tables=tables,
            consumers=self.consumers,
            locks=self.locks,
            kernel=kernel,
            secret_bits=secret_bits,
            peers=peers,
        )
        queues = self.coordination.queues
        self.health = GroupHealth(self.consumers, here=tables.topics.queues, queues=queues, clock=clock)
        self.assigner = Assigner(
            consumers=self.consumers,
            queues=queues,
            kernel=kernel,
            view=view,
            peers=peers,
        )
        tables.topics.observe(self.assigner.topic_changed)  # After the coordinator, which observes itself.
        self.cluster = self._open_cluster(config, peers, name_servers)

    def _open_peers(self, config: BrokerConfig, view: ClusterView, kernel: Kernel) -> PeerBrokers:
        return PeerBrokers(
            broker_name=config.broker_name,
            view=view,
            consumers=self.consumers,
            kernel=kernel,
            ask=signing(kernel.effects.ask, config.credentials),
        )

    def _open_cluster(
        self, config: BrokerConfig, peers: PeerBrokers, name_servers: Sequence[str]
    ) -> Cluster | None:
        if not config.namesrv_addr or config.is_slave:  # A slave coordinates nothing.
            return None
        return Cluster(
            peers=peers,
            name_servers=name_servers,
            coordination=self.coordination,
            consumers=self.consumers,
            assigner=self.assigner,
            topics=self._watched_topics,
        )

    def _watched_topics(self) -> list[str]:
        """Return the topics whose queues at other brokers matter here."""
        parts = (self.coordination, self.assigner, self.health)
        return sorted(self.consumers.server_assigned_topics().union(*(part.topics() for part in parts)))
