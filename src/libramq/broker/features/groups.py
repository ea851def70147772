"""The group feature: puts together producers, consumers, the coordinator, the fences and the committed
offsets.
"""

from functools import partial

from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.broker.features.feature import Base, Feature
from libramq.broker.groups.assigner import Assigner
from libramq.broker.groups.client_watch import ClientWatch
from libramq.broker.groups.committing import Committing
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.group_health import GroupHealth, Stalls
from libramq.broker.groups.group_retries import GroupRetries
from libramq.broker.groups.heartbeats import Heartbeats
from libramq.broker.groups.opening import QueueOpening
from libramq.broker.groups.pull import PullFilters
from libramq.broker.groups.removal import TopicRemoval
from libramq.broker.processor.client_calls import ClientCalls
from libramq.broker.processor.groups.client_management import ClientManagement
from libramq.broker.processor.groups.consumer_offset import ConsumerOffsetRequests
from libramq.broker.processor.groups.group_membership import GroupBegin, GroupRequests, OpenQueue
from libramq.broker.processor.groups.query_assignment import QueryAssignment
from libramq.broker.processor.groups.queue_lock import QueueLockRequests
from libramq.groups.cluster_view import ClusterView
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.kernel.connection import Connection
from libramq.kernel.engine import Hooks
from libramq.rpc.question import signing


class GroupFeature(Feature):
    """Keeps the groups that have members here, and those that this broker coordinates."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._build_members(base)
        self._build_coordination(base)
        self._build_queues(base)
        self._build_services(base)
        self.listeners = [base.offsets]

    def close(self) -> None:
        """Store the events of rebalances that are not over."""
        try:
            self.consumers.rebalances.catch_up()
        finally:
            self._base.events.close()
            if self._base.audit_log is not None:
                self._base.audit_log.close()

    def _build_members(self, base: Base) -> None:
        config = base.config
        self.producers: ProducerGroups[Connection] = ProducerGroups()
        self.locks = QueueLocks(grace_ms=config.orderly_lock_grace_ms)
        self.consumers = ConsumerClients(
            tables=base.tables,
            offsets=base.offsets,
            locks=self.locks,
            kernel=base.kernel,
            record=base.events.record,
        )
        self.filters = PullFilters(config, self.consumers, base.tables.filters, base.kernel.clock)

    def _build_coordination(self, base: Base) -> None:
        config, kernel, topics = base.config, base.kernel, base.topics
        view = ClusterView(config.broker_name, config.address, is_alone_for_good=not config.namesrv_addr)
        self.peers = PeerBrokers(
            view=view,
            consumers=self.consumers,
            kernel=kernel,
            ask=signing(kernel.effects.ask, config.credentials),
        )
        self.coordination = Coordination(
            tables=base.tables,
            consumers=self.consumers,
            locks=self.locks,
            kernel=kernel,
            secret_bits=base.machine.secret_bits,
            peers=self.peers,
        )
        queues = self.coordination.queues
        self.retries = GroupRetries(
            base.store, base.schedule, base.files.pop.in_flight, base.tables.ordered, kernel.clock
        )
        self.health = GroupHealth(
            self.consumers,
            here=topics.queues,
            queues=queues,
            profiles=self.coordination.profiles,
            locks=self.locks,
            stalls=Stalls(base.store, topics, base.offsets, kernel.clock),
        )
        self.assigner = Assigner(
            consumers=self.consumers, queues=queues, kernel=kernel, view=view, peers=self.peers
        )
        topics.observe(self.assigner.topic_changed)  # After the coordinator, which observes itself.
        topics.observe(lambda topic: None if topic in topics else self.retries.topic_deleted(topic))

    def _build_queues(self, base: Base) -> None:
        """Build what commits, opens and removes a group's queues here."""
        consumers, offsets = self.consumers, base.offsets
        self.committing = Committing(
            offsets=offsets,
            fences=base.fences,
            requirements=base.tables.requirements,
            committed=consumers.committed,
            is_slave=base.config.is_slave,
        )
        self.opening = QueueOpening(base.files, offsets, base.held, consumers.rebalances)
        self.removal = TopicRemoval(base.files, offsets, self.coordination, base.held, base.kernel)

    def _build_services(self, base: Base) -> None:
        tables, consumers, coordination = base.tables, self.consumers, self.coordination
        answer, slave = base.responder.answer, base.replication.slave
        watch = ClientWatch(consumers, self.producers, self.health, self.retries, base.kernel)
        if base.access is not None and not base.config.authorization_dry_run:
            tables.users.observe(partial(watch.users_changed, base.access.may_be_sent_to))
        self.heartbeats = Heartbeats(
            consumers, self.producers, tables, self.filters, left=coordination.closed
        )
        clients = ClientManagement(self.heartbeats, consumers, self.filters, base.kernel.effects)
        self.calls = ClientCalls(
            consumers, base.files, base.authorizer, base.kernel, base.responder, otherwise=clients.answered
        )
        offsets = ConsumerOffsetRequests(self.committing, is_member=consumers.is_member)
        self.batch_services = [offsets]
        self.services = [
            clients,
            self.calls,
            QueueLockRequests(self.locks, consumers, tables),
            GroupRequests(coordination, self.opening, tables, answer=answer),
            GroupBegin(base.files, self.committing, consumers),
            OpenQueue(self.opening, answer=answer),
            offsets,
            QueryAssignment(
                tables=tables,
                clients=consumers,
                queues=coordination.queues if slave is None else slave.routes.queues,
                assigner=self.assigner,
                answer=answer,
            ),
        ]
        ended = (self.calls.connection_ended, watch.connection_ended, coordination.closed)
        self.hooks = Hooks(connection_ended=ended, stalled=[coordination.stalled])
