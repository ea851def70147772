"""The features of a broker, one for each room. Each combines the services of its room with their hooks and
listeners, over a common base; they decide nothing, and `broker.py` lists them.
"""

from collections.abc import Callable, Sequence
from functools import partial

from libramq import __version__
from libramq.auth.access_control import AccessControl
from libramq.auth.authorizer import Authorizer, is_permitted
from libramq.auth.operation import Send
from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.kafka.group_copies import GroupCopies, GroupLoad, GroupSuccessors
from libramq.broker.cluster.kafka.nodes import Nodes
from libramq.broker.cluster.kafka.offsets import OffsetExchanges
from libramq.broker.cluster.kafka.topics import ClusterTopics
from libramq.broker.cluster.name_server_list import Fetch, NameServerList
from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.broker.cluster.registration import Registration, StartUp
from libramq.broker.cluster.replication import Replication
from libramq.broker.cluster.returning_master import ReturningMaster
from libramq.broker.config import BrokerConfig
from libramq.broker.files.event_logs import AuditLog, EventLog
from libramq.broker.files.files import BrokerFiles, retention
from libramq.broker.files.old_files import OldFiles
from libramq.broker.files.persistence import Persistence
from libramq.broker.groups.assigner import Assigner
from libramq.broker.groups.client_watch import ClientWatch
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.group_health import GroupHealth, Stalls
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.broker.groups.group_retries import GroupRetries
from libramq.broker.groups.heartbeats import Heartbeats
from libramq.broker.groups.offset_commits import Committing, OffsetCommits
from libramq.broker.groups.opening import QueueOpening
from libramq.broker.groups.pull import Pull, PullFilters
from libramq.broker.groups.removal import Removal
from libramq.broker.machine import Machine
from libramq.broker.messages.arrivals import Listener, TopicListener
from libramq.broker.messages.delivery import LevelDelivery, TimerDelivery
from libramq.broker.messages.durability import Durability
from libramq.broker.messages.fetching import Fetching
from libramq.broker.messages.reading import Reading
from libramq.broker.messages.redelivery import Redelivery, SendingBack
from libramq.broker.messages.sending import Sending
from libramq.broker.messages.throughput import HOUR_MS, Throughput
from libramq.broker.pop.acknowledging import Acknowledging
from libramq.broker.pop.ordering import Ordering
from libramq.broker.pop.popping import Popping
from libramq.broker.pop.pops_at_slave import PopsAtSlave, TakingAtSlave
from libramq.broker.pop.reviving import Reviving
from libramq.broker.pop.taking import Taking
from libramq.broker.processor.administration.broker_options import BrokerOptions
from libramq.broker.processor.administration.cleaning import CleaningRequests
from libramq.broker.processor.administration.runtime_info import RuntimeInfo
from libramq.broker.processor.administration.statistics import Statistics
from libramq.broker.processor.administration.topic_admin import TopicAdministration, UnreadQueues
from libramq.broker.processor.administration.users import UserAdministration
from libramq.broker.processor.client_calls import ClientCalls
from libramq.broker.processor.cluster.peers import PeerNodeRequests, PeerRequests
from libramq.broker.processor.cluster.slave_requests import Replicas, SlaveRequests
from libramq.broker.processor.groups.client_management import ClientManagement
from libramq.broker.processor.groups.consumer_offset import ConsumerOffsetRequests
from libramq.broker.processor.groups.group_admin import GroupAdministration
from libramq.broker.processor.groups.group_membership import GroupBegin, GroupRequests
from libramq.broker.processor.groups.offset_admin import ForeignMembers, OffsetAdministration
from libramq.broker.processor.groups.query_assignment import QueryAssignment
from libramq.broker.processor.groups.queue_lock import QueueLockRequests
from libramq.broker.processor.messages.ack_message import AckMessage
from libramq.broker.processor.messages.end_transaction import EndTransaction
from libramq.broker.processor.messages.pop_message import PopMessage
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.broker.processor.messages.query_message import QueryMessage
from libramq.broker.processor.messages.reply_message import ReplyMessages
from libramq.broker.processor.messages.send_back import SendBack
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.broker.processor.messages.timer_requests import TimerRequests
from libramq.broker.transactions.checking import Checking, CheckRules
from libramq.broker.transactions.transactions import Transactions
from libramq.errors import StoreError
from libramq.groups.cluster_view import ClusterView
from libramq.groups.pending_notifications import TransactionCheck
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.connection import Connection
from libramq.kernel.engine import Hooks
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.work import Each
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.rpc.question import signing
from libramq.rpc.request import BatchService
from libramq.rpc.responder import Responder
from libramq.waits.held_pulls import HeldPulls

log = get_logger(__name__)


class Feature:
    """A feature; subclasses set the attributes that they have.

    services     serve requests singly, batch_services those of one read together
    hooks        are called when connections end, as time passes, and after stalls
    listeners    are called with new messages of every topic, topic_listeners with those of one topic
    """

    services: Sequence[object] = ()
    batch_services: Sequence[BatchService] = ()
    hooks: Hooks = Hooks()
    listeners: Sequence[Listener] = ()
    topic_listeners: Sequence[TopicListener] = ()

    def close(self) -> None:
        """Leave the feature's files in the state of a clean stop."""


class Base:
    """Holds the kernel, the files, and the gates of replies.

    access: None while clients are not authenticated; set before everything else.
    recorded: called with rebalance events before they are stored. fetch: reads name servers from a page.
    """

    access: AccessControl | None = None

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        files: BrokerFiles,
        authorizer: Authorizer,
        recorded: Callable[[RebalanceEvent], None] | None,
        fetch: Fetch | None,
    ) -> None:
        self.config, self.machine, self.files, self.authorizer = config, machine, files, authorizer
        self.kernel = kernel = Kernel(machine.clock)
        self.purgatory = kernel.purgatory
        self.store, self.ledger, self.schedule = files.store, files.ledger, files.schedule
        self.tables, self.topics, self.groups = files.tables, files.tables.topics, files.tables.groups
        self.fences, self.progress = files.tables.fences, files.progress
        self.offsets = OffsetCommits(
            files.ledger, files.store, files.tables.journals, files.at_slave, files.beginnings, kernel
        )
        self.events = EventLog(files.store, kernel, recorded)
        self.name_servers = NameServerList(config, kernel, fetch)
        self.audit_log = AuditLog(config.broker_name, files.store, kernel) if config.is_audited else None
        self.audit = self.audit_log.audit if self.audit_log is not None else None
        self.durability = Durability(files.store, files.filesystem, kernel, files.tables.journals)
        self.registration = Registration(config, self.topics, self.name_servers, kernel)
        self.replication = Replication(
            config, files, self.offsets, self.durability, self.registration, kernel
        )
        self.responder = Responder(
            kernel.effects, durability=self.replication.gate, announcement=self.registration
        )
        self.throughput = Throughput(files.store, kernel)
        self.held: HeldPulls[Pull] = HeldPulls(kernel.purgatory)


class GroupFeature(Feature):
    """Keeps the groups with members here, and those coordinated by this broker."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._build_members(base)
        self._build_coordination(base)
        self._build_queues(base)
        self._build_services(base)
        self.listeners = [base.offsets]

    def close(self) -> None:
        """Store the events of unfinished rebalances."""
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
        topics.observe(self.assigner.topic_changed)  # After the coordinator, which observes them itself.
        topics.observe(lambda topic: None if topic in topics else self.retries.topic_deleted(topic))

    def _build_queues(self, base: Base) -> None:
        """Build the services that commit, open and remove a group's queues here."""
        consumers, offsets = self.consumers, base.offsets
        self.committing = Committing(
            offsets=offsets,
            fences=base.fences,
            requirements=base.tables.requirements,
            committed=consumers.committed,
            is_slave=base.config.is_slave,
        )
        self.opening = QueueOpening(base.files, offsets, base.held, consumers.rebalances)
        self.removal = Removal(base.files, offsets, self.coordination, base.held, base.kernel)

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


class TransactionFeature(Feature):
    """Serves the transactions of all producers."""

    def __init__(self, base: Base, producers: ProducerGroups[Connection]) -> None:
        config, files, store = base.config, base.files, base.store
        self._producers = producers
        self._authorizer = base.authorizer
        self._check_count = 0
        rules = CheckRules(
            interval_ms=config.transaction_check_interval_ms,
            timeout_ms=config.transaction_timeout_ms,
            times_max=config.transaction_check_max,
            kept_ms=config.file_reserved_hours * HOUR_MS,
        )
        self.transactions = Transactions(files, base.offsets)
        self.checking = Checking(
            store=store,
            offsets=base.offsets,
            transactions=self.transactions,
            rules=rules,
            kernel=base.kernel,
            ask=self._ask,
        )
        self.requests = EndTransaction(
            files, self.transactions, self.checking.loading, rules, base.authorizer
        )
        self.services = [self.requests]
        self.topic_listeners = [self.checking]

    def _ask(self, message: MessageExt) -> None:
        """Ask one of the group's producers, in turn."""
        group = message.properties.get(p.PRODUCER_GROUP, "")
        topic = message.properties.get(p.REAL_TOPIC, "")
        producers = [
            (each.peer, each.notify)
            for each in self._producers.members(group)
            if each.peer.is_open
            and each.notify is not None
            # Any client may join a producer group; only those that may send to the topic may see its half
            # messages.
            and is_permitted(self._authorizer, Send(each.principal, topic))
        ]
        if not producers:
            log.warning("no producer can be asked about a transaction", group=group, id=message.message_id)
            return
        self._check_count += 1
        peer, notify = producers[self._check_count % len(producers)]
        notify(TransactionCheck(peer, group, message))


class SendingFeature(Feature):
    """Stores messages from clients: sends, messages sent back, and replies."""

    def __init__(self, base: Base, groups: GroupFeature, transactions: TransactionFeature) -> None:
        config, machine, files = base.config, base.machine, base.files
        self.redelivery = Redelivery(base.topics, base.groups, groups.locks, machine.randomness)
        self.sending = Sending(
            config,
            machine,
            files,
            durability=base.replication.gate,
            redelivery=self.redelivery,
            transactions=transactions.transactions,
        )
        sends, calls = SendMessage(self.sending), groups.calls
        sending_back = SendingBack(files, self.redelivery, base.authorizer)
        address, stores = config.address, config.store_replies
        self.batch_services = [sends]
        self.services = [
            SendBack(sending_back, files.log, calls),
            ReplyMessages(
                sends,
                groups.producers,
                calls,
                base.authorizer,
                topic=names.reply_topic(config.cluster_name),
                address=address,
                stores=stores,
            ),
        ]
        self.hooks = Hooks(connection_ended=[self.sending.creations.connection_ended])


class ReadingFeature(Feature):
    """Serves reads by offset: pulls of groups, and fetches, which belong to no group."""

    def __init__(self, base: Base, groups: GroupFeature) -> None:
        config = base.config
        self.reading = Reading(
            config,
            base.files,
            groups.consumers,
            filters=groups.filters,
            offsets=base.offsets,
            held=base.held,
            kernel=base.kernel,
            throughput=base.throughput,
        )
        base.tables.users.observe(self.reading.end_held)
        self.fetching = Fetching(base.store, base.tables.requirements, base.kernel)
        base.tables.users.observe(self.fetching.end_held)
        suggested = base.replication.suggested if config.slave_read_enable else None
        self.services = [
            PullMessage(self.reading, answer=base.responder.answer, suggested=suggested),
            QueryMessage(base.store, base.files.key_index(), base.authorizer),
        ]
        self.listeners = [self.reading, self.fetching]


class DelayFeature(Feature):
    """Delivers due messages; a master that asks its slaves first waits for their answers."""

    def __init__(self, base: Base) -> None:
        config, files, kernel = base.config, base.files, base.kernel
        is_held = config.asks_slaves
        self.levels = LevelDelivery(files.schedule, files.store, kernel, is_held=is_held)
        self.timers = TimerDelivery(files.timers, files.store, kernel, is_held=is_held)
        self.topic_listeners = [self.levels, self.timers]
        self.requests = TimerRequests(config, files)
        self.services = [self.requests]

    def close(self) -> None:
        """Finish the delivery under way."""
        self.timers.close()


class PopFeature(Feature):
    """Serves the pops of all groups.

    taking      positions: which messages are next
    popping     check points: messages become invisible        acknowledging    … and are done
    reviving    … or visible again, when they are due
    """

    def __init__(self, base: Base, groups: GroupFeature, redelivery: Redelivery) -> None:
        config, files, kernel, offsets = base.config, base.files, base.kernel, base.offsets
        pop, store, tables, slave = files.pop, files.store, files.tables, base.replication.slave
        self._store, self._positions = store, pop.positions
        self._commits_rest: Each[None] = Each(kernel.work, lambda _: self.settle())
        ordering = Ordering(tables.ordered, offsets, kernel)
        self.taking = (Taking if slave is None else TakingAtSlave)(
            files,
            offsets,
            is_blocked=ordering.is_blocked,
            moved=partial(kernel.soon, Phase.JOURNAL, self.settle),
            clock=kernel.clock,
            randomness=base.machine.randomness,
        )
        self.popping = Popping(config, files, kernel, self.taking, ordering, groups.filters)
        self.reviving = Reviving(config, files, redelivery, kernel)
        self._topics, self._ordering = tables.topics, ordering
        tables.topics.observe(self._topic_changed)
        tables.users.observe(self.popping.end_held)
        offsets.on_reset = self.popping.reset
        offsets.observe_removal(ordering.group_removed)
        name, waits = config.broker_name, pop.journal.must_wait
        acking = Acknowledging(store, tables.topics, pop.journal, pop.in_flight, ordering)
        #: The deliveries of a slave while it acts; None at a master.
        self.at_slave: PopsAtSlave | None = None
        if slave is not None:
            self.at_slave = PopsAtSlave(
                files, self.popping, acking, kernel, may_serve=lambda: slave.may_serve_pops
            )
        pops = PopMessage(self.popping, answer=base.responder.answer, broker_name=name, waits_for_disk=waits)
        acks = AckMessage(acking, waits_for_disk=waits)
        self.services, self.batch_services = [pops, acks], [acks]
        self.listeners = [self.popping]
        # A slave's work also depends on time, on other brokers, and on its other parts.
        self.hooks = Hooks(settle=[self.settle] if slave is not None else [])

    def settle(self) -> None:
        """Commit pops that are on the disk, some at a time; the rest follows after other work."""
        if self.at_slave is not None:
            self.at_slave.settle()
        if self.taking.settle():
            self._commits_rest.add((None,))
        elif self._positions.waiting:
            self._store.when_changed(self.settle)

    def close(self) -> None:
        """Commit all pops; for that the log is flushed, which waits for the disk."""
        try:
            self._store.flush()
        except StoreError as error:
            log.error("pops are committed at the next start", reason=str(error))
        else:
            while self.taking.settle():
                pass

    def _topic_changed(self, topic: str) -> None:
        if topic not in self._topics and not self._store.config.is_copy:
            self.reviving.topic_deleted(topic)
            self._ordering.topic_deleted(topic)
            self.popping.topic_deleted(topic)


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
        self.offsets = GroupOffsets(
            tables,
            groups.committing,
            groups.removal,
            groups.coordination,
            kernel.clock,
            OffsetExchanges(peers),
        )
        #: Built before the services of Kafka's groups, which drop groups that others coordinate now.
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
    """Serves a master's slaves, or limits the services of a slave."""

    def __init__(
        self, base: Base, transactions: TransactionFeature, delays: DelayFeature, pop: PopFeature
    ) -> None:
        config, files, replication = base.config, base.files, base.replication
        stalled = [replication.stalled]
        if config.asks_slaves:
            checking, registration = transactions.checking, base.registration
            progress = ReturningMaster(config, files, base.kernel, registration, checking, base.offsets)
            progress.start((delays.levels.rounds, delays.timers.rounds, pop.reviving.rounds))
            stalled.append(progress.stalled)
            transactions.requests.before_end = progress.look_for_stall
        slave = replication.slave
        #: The requests that a slave answers itself; None in a master.
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
        self.services = [Replicas(config, files, replication.service, slave)]
        self.hooks = Hooks(
            connection_ended=[replication.service.connection_ended],
            stalled=stalled,
            settle=[slave.settle] if slave is not None else [],
        )


class UpkeepFeature(Feature):
    """Keeps the files of all features, and is closed last."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.old_files = OldFiles(base.store, retention(base.config), base.kernel)
        persistence = Persistence(base.files, base.kernel)
        requests = CleaningRequests(base.files, base.offsets, self.old_files, base.responder.answer)
        self.services = [requests]
        # A slave's files also depend on other brokers.
        settle = [persistence.look] if base.config.is_slave else []
        self.hooks = Hooks(settle=settle, ticked=[persistence.look, self.old_files.look])

    def close(self) -> None:
        """Write everything, and close the store."""
        try:
            if self._base.store.lost is None:
                self._base.offsets.write()
        finally:
            self._base.files.close()


class AdministrationFeature(Feature):
    """Serves operators' requests."""

    def __init__(
        self,
        base: Base,
        groups: GroupFeature,
        reading: ReadingFeature,
        delays: DelayFeature,
        upkeep: UpkeepFeature,
    ) -> None:
        self._base, self._reading, self._old_files = base, reading.reading, upkeep.old_files
        self._timers = delays.requests
        config, kernel, throughput = base.config, base.kernel, base.throughput
        files, offsets = base.files, base.offsets
        consumers, producers, coordination = groups.consumers, groups.producers, groups.coordination
        foreign = ForeignMembers(consumers, groups.peers.view, groups.peers.ask, base.responder.answer)
        unread = UnreadQueues(base.store, offsets, consumers, may_abandon=config.abandon_unread_queues)
        self.services = [
            UserAdministration(files.tables.users, base.access, config),
            RuntimeInfo(files, throughput, f"LibraMQ {__version__}", kernel),
            BrokerOptions(config, self._changed, kernel.clock.wall_ms()),
            TopicAdministration(
                topics=base.topics,
                clients=consumers,
                removal=groups.removal,
                unread=unread,
                address=config.address,
            ),
            GroupAdministration(
                groups=base.groups, offsets=offsets, coordination=coordination, held=base.held
            ),
            OffsetAdministration(
                files=files,
                offsets=offsets,
                clients=consumers,
                foreign=foreign,
                coordination=coordination,
                reading=reading.reading,
            ),
            Statistics(
                files=files,
                offsets=offsets,
                consumers=consumers,
                producers=producers,
                health=groups.health,
                throughput=throughput,
                instances=coordination.instances,
                address=config.address,
            ),
        ]

    def _changed(self, config: BrokerConfig) -> None:
        """Apply changed options to the parts that use them."""
        self._base.groups.creates_on_use = config.auto_create_subscription_group
        self._reading.poll(long=config.long_polling_enable, short_ms=config.short_polling_time_ms)
        self._old_files.retention = retention(config)
        self._timers.recall_enabled = config.recall_message_enable
