"""The cluster features: put together registration, the other brokers, Kafka's view of them, and this broker's
slaves or master.
"""

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.kafka.group_copies import GroupCopies, GroupLoad
from libramq.broker.cluster.kafka.group_successors import GroupSuccessors
from libramq.broker.cluster.kafka.nodes import Nodes
from libramq.broker.cluster.kafka.offsets import OffsetExchanges
from libramq.broker.cluster.kafka.topics import ClusterTopics
from libramq.broker.cluster.registration import StartUp
from libramq.broker.cluster.returning_master import ReturningMaster
from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.messages import DelayFeature
from libramq.broker.features.pop import PopFeature
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.broker.groups.removal import GroupRemoval
from libramq.broker.processor.cluster.peers import PeerNodeRequests, PeerRequests
from libramq.broker.processor.cluster.slave_requests import (
    HAInfoRequests,
    HAStatusRequests,
    SlaveRequests,
    SlaveTables,
)
from libramq.kernel.engine import Hooks


class ClusterFeature(Feature):
    """Communicates with the other brokers.

    others: None without name servers, and at a slave, which coordinates nothing.
    """

    def __init__(self, base: Base, groups: GroupFeature) -> None:
        config, kernel, topics, tables = base.config, base.kernel, base.topics, base.tables
        self._groups, self._topics, peers = groups, topics, groups.peers
        self.others: Cluster | None = None
        if config.namesrv_addr and not config.is_slave:
            self.others = Cluster(
                peers=peers,
                name_servers=base.name_servers,
                coordination=groups.coordination,
                consumers=groups.consumers,
                assigner=groups.assigner,
                topics=self._watched_topics,
            )
        self.nodes = Nodes(topics, peers, kernel, base.files.filesystem, config.store_path)
        self.topics = ClusterTopics(self.nodes, topics, groups.removal, peers, kernel.clock)
        self.group_removal = GroupRemoval(
            tables, base.offsets, groups.coordination, groups.removal, kernel.clock
        )
        self.offsets = GroupOffsets(
            tables,
            groups.committing,
            self.group_removal,
            groups.coordination,
            kernel.clock,
            OffsetExchanges(peers),
        )
        #: Built before the services of Kafka's groups, which drop the groups that others coordinate now.
        self.copies = GroupCopies(peers.view, kernel.clock)
        self.successors = GroupSuccessors(config.broker_name, peers.view, kernel, peers.ask)
        self.load = GroupLoad(peers)
        topics.observe(self._topic_changed)
        view = peers.view if self.others is not None else None
        self.start_up = StartUp(view, base.registration, kernel)
        self.hooks = Hooks(address_lost=[base.registration.lost])
        if self.others is not None:
            self._serve(base, self.others)

    def _serve(self, base: Base, cluster: Cluster) -> None:
        groups = self._groups
        self.services = [
            PeerNodeRequests(cluster, self.nodes, self.offsets, self.topics, self.copies, self.successors),
            PeerRequests(
                cluster=cluster,
                coordination=groups.coordination,
                consumers=groups.consumers,
                assigner=groups.assigner,
            ),
        ]
        self.hooks = Hooks(address_lost=[base.registration.lost, cluster.lost], stalled=[cluster.stalled])

    def _watched_topics(self) -> list[str]:
        """Return the topics whose queues at other brokers matter here."""
        groups = self._groups
        parts = (groups.coordination.coordinator, groups.assigner, groups.health)
        return sorted(groups.consumers.server_assigned_topics().union(*(part.topics() for part in parts)))

    def _topic_changed(self, topic: str) -> None:
        if topic not in self._topics:
            self.offsets.forget_topic(topic)


class SlaveFeature(Feature):
    """Serves a master's slaves, or limits what a slave serves."""

    def __init__(
        self, base: Base, transactions: TransactionFeature, delays: DelayFeature, pop: PopFeature
    ) -> None:
        config, files, replication = base.config, base.files, base.replication
        stalled = [replication.stalled]
        if config.asks_slaves:
            checking, registration = transactions.checking, base.registration
            progress = ReturningMaster(config, files, base.kernel, registration, checking, base.offsets)
            progress.start((delays.levels, delays.timers, pop.reviving))
            stalled.append(progress.stalled)
            transactions.requests.before_end = progress.look_for_stall
        slave = replication.slave
        #: What a slave answers itself; None in a master.
        self.requests: SlaveRequests | None = None
        if slave is not None and pop.at_slave is not None:
            self.requests = SlaveRequests(
                slave,
                pop.at_slave,
                base.groups,
                files.tables.request_modes,
                is_readable=config.slave_read_enable,
                answer=base.responder.answer,
            )
        self.services = [
            SlaveTables(files, slave),
            HAStatusRequests(files.store, replication.service),
            HAInfoRequests(config, files.store, slave),
        ]
        self.hooks = Hooks(
            connection_ended=[replication.service.connection_ended],
            stalled=stalled,
            settle=[slave.settle] if slave is not None else [],
        )
