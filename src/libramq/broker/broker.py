"""The broker: its parts, put together from the bottom up, and the engine that runs them.

    files       store · committed offsets · tables · delay levels
    kernel      effects · deadlines · purgatory
    gates       durability · registration                     what replies wait for
    groups      consumers · coordination · assigner · cluster
    services    each names the requests that it serves
    engine      events in, effects out

Nothing here uses sockets, tasks or threads: a performer runs the engine, on real ones or in the simulator.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from libramq import __version__
from libramq.auth.authenticator import Authenticator
from libramq.auth.authorizer import ALLOW_ALL, Authorizer
from libramq.broker.administration import (
    administration_services,
    broker_options,
    client_calls,
    replication_services,
    replies,
)
from libramq.broker.cluster.name_server_list import Fetch
from libramq.broker.cluster.slaves_progress import SlavesProgress
from libramq.broker.config import BrokerConfig
from libramq.broker.features.feature import Base
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.files.files import BrokerFiles, retention
from libramq.broker.files.old_files import OldFiles
from libramq.broker.files.persistence import Persistence
from libramq.broker.group_parts import GroupParts
from libramq.broker.groups.client_watch import ClientWatch
from libramq.broker.groups.committing import Committing
from libramq.broker.groups.opening import QueueOpening
from libramq.broker.groups.topic_removal import TopicRemoval
from libramq.broker.machine import Machine
from libramq.broker.messages.arrivals import Arrivals
from libramq.broker.messages.delivery import Delivery
from libramq.broker.messages.fetching import Fetching
from libramq.broker.messages.reading import Reading
from libramq.broker.messages.redelivery import Redelivery, SendingBack
from libramq.broker.messages.timer_delivery import TimerDelivery
from libramq.broker.metrics.runtime_info import RuntimeInfo
from libramq.broker.node_parts import NodeParts
from libramq.broker.pop_parts import PopParts
from libramq.broker.processor.administration.cleaning import CleaningRequests
from libramq.broker.processor.disk_waits import DiskWaits
from libramq.broker.processor.groups.client_management import ClientManagement
from libramq.broker.processor.groups.consumer_offset import ConsumerOffsetRequests
from libramq.broker.processor.groups.group_membership import GroupRequests
from libramq.broker.processor.groups.notices import send_notices
from libramq.broker.processor.groups.open_queue import OpenQueue
from libramq.broker.processor.groups.query_assignment import QueryAssignment
from libramq.broker.processor.groups.queue_lock import QueueLockRequests
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.broker.processor.messages.query_message import QueryMessage
from libramq.broker.processor.messages.queue_offset import QueueOffsets
from libramq.broker.processor.messages.send_back import SendBack
from libramq.broker.producing_parts import ProducingParts
from libramq.broker.start_up import StartUp
from libramq.catalog.requirements import Requirements
from libramq.codes import RequestCode
from libramq.formats.tables import PERM_READ
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Phase
from libramq.message.ids import UniqueIdGenerator
from libramq.rpc.endpoint import Endpoint
from libramq.rpc.request import BatchProcessor, Processor, Processors, served_by
from libramq.secret_bits import SecretBits


class Broker(Base):
    """All state and decisions of a broker.

    recorded: called with rebalance events before they are stored.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        *,
        authorizer: Authorizer = ALLOW_ALL,
        authenticator: Authenticator | None = None,
        recorded: Callable[[RebalanceEvent], None] | None = None,
        fetch_name_servers: Fetch | None = None,
    ) -> None:
        if not authorizer.permits_everything:
            # `%RETRY%G_T` is the retry topic of a group "G_T" too: its readers would read what G popped of T.
            config = replace(config, enable_retry_topic_v2=True)
        self.authenticator = authenticator
        files = BrokerFiles(
            config, clock=machine.clock, filesystem=machine.filesystem, process_id=machine.process_id
        )
        try:
            super().__init__(config, machine, files, authorizer, recorded, fetch_name_servers)
            self._build_groups(machine.secret_bits)
            self._build_timed_services()
            self.engine = self._build_engine(self._build_services(machine))
            self.replication.begin()
        except BaseException:
            files.store.close()
            raise

    def start(self, started: Callable[[], None]) -> None:
        """Start to serve; `started` is called once name servers were informed, or could not be reached."""
        self._start_up.begin(started)

    def leave(self, left: Callable[[], None]) -> None:
        """Unregister from the name servers; `left` is called once all have answered or failed to."""
        self.registration.leave(left)

    def close(self) -> None:
        """Leave all files in the state of a clean stop; a failure of one part does not stop the others."""
        with ExitStack() as stack:
            stack.callback(self.files.close)
            stack.callback(self._timer_delivery.close)
            stack.callback(self.offsets.write)
            stack.callback(self.pop.close)
            stack.callback(self.events.close)
            stack.callback(self.consumers.rebalances.catch_up)

    def processors(self) -> Mapping[int, Processor]:
        """Return the processor of each request that is served singly."""
        return self._processors

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the processors that take all neighbouring requests of one read together."""
        return self._batch_processors

    # Construction, from the bottom up.

    def _build_groups(self, secret_bits: SecretBits) -> None:
        tables, record = self.tables, self.events.record
        parts = self._group_parts = GroupParts(
            self.config, tables, self.offsets, self.kernel, self.name_servers, secret_bits, record=record
        )
        self.producers, self.consumers, self.locks = parts.producers, parts.consumers, parts.locks
        self.coordination, self.assigner, self.cluster = parts.coordination, parts.assigner, parts.cluster
        self.health, self.filters, self.foreign = parts.health, parts.filters, parts.foreign

    def _build_timed_services(self) -> None:
        kernel, is_held = self.kernel, self.config.asks_slaves
        version = f"LibraMQ {__version__}"
        self.runtime = RuntimeInfo(
            self.store,
            self.files.timers.timers,
            self.files.filesystem,
            destinations=self.files.destinations,
            version=version,
            kernel=kernel,
        )
        self._watch = ClientWatch(
            self.consumers, self.producers, self.health, kernel, notify=partial(send_notices, kernel.effects)
        )
        self._delivery = Delivery(self.schedule, self.store, kernel, is_held=is_held)
        self._timer_delivery = TimerDelivery(self.files.timers, self.store, kernel, is_held=is_held)
        self._persistence = Persistence(self.files, kernel)
        self._old_files = OldFiles(self.store, retention(self.config), kernel)
        self._start_up = StartUp(self.cluster, self.registration, kernel)

    def _build_services(self, machine: Machine) -> Sequence[Any]:
        randomness = machine.randomness
        unique_id = UniqueIdGenerator(
            self.config.broker_ip, machine.process_id, machine.clock, machine.randomness
        )
        requirements = self.requirements
        redelivery = self._redelivery = Redelivery(self.topics, self.groups, self.locks, randomness)
        files, kernel = self.files, self.kernel
        self.transactions = TransactionFeature(self, self.producers)
        producing = ProducingParts(
            self.config,
            self.files,
            self.transactions.transactions,
            requirements,
            redelivery,
            self.replication,
            self.kernel,
            unique_id=unique_id,
            randomness=randomness,
        )
        self.sending, self.creations = producing.sending, producing.creations
        self._sends = producing.sends
        self.pop = PopParts(
            self.config,
            self.files,
            self.offsets,
            redelivery,
            self.kernel,
            randomness,
            self.responder,
            self.filters,
            self.replication.slave,
        )
        self._slaves: SlavesProgress | None = None
        if self.config.asks_slaves:
            self._slaves = SlavesProgress(
                self.config, files, kernel, self.registration, self.transactions.checking, self.offsets
            )
            self._slaves.start((self._delivery, self._timer_delivery, self.pop.reviving))
        return [
            *self.pop.services,
            *producing.services,
            *self.transactions.services,
            *self._consuming(requirements),
            *self._group_services(),
            *self._administration(),
        ]

    def _consuming(self, requirements: Requirements) -> Sequence[Any]:
        """Build the parts that read messages, and keep the groups' offsets."""
        config = self.config
        self.reading = Reading(
            store=self.store,
            requirements=requirements,
            rebalances=self.consumers.rebalances,
            filters=self.filters,
            offsets=self.offsets,
            fences=self.fences,
            held=self.held,
            kernel=self.kernel,
            readable=bool(config.broker_permission & PERM_READ),
            long_polling=config.long_polling_enable,
            short_polling_ms=config.short_polling_time_ms,
            throughput=self.runtime.throughput,
            is_member=self.consumers.is_member_of,
        )
        self.fetching = Fetching(self.store, requirements, self.kernel)
        suggested = self.replication.suggested if config.slave_read_enable else None
        pulls = PullMessage(self.reading, answer=self.responder.answer, suggested=suggested)
        self.committing = Committing(
            offsets=self.offsets,
            fences=self.fences,
            requirements=requirements,
            committed=self.consumers.committed,
            is_slave=config.is_slave,
        )
        self.opening = QueueOpening(
            tables=self.tables,
            offsets=self.offsets,
            requirements=requirements,
            held=self.held,
            rebalances=self.consumers.rebalances,
            store=self.store,
        )
        return [
            pulls,
            ConsumerOffsetRequests(self.committing, is_member=self.consumers.is_member),
            QueueOffsets(self.store, self.authorizer),
            QueryMessage(self.store, self.files.key_index()),
        ]

    def _group_services(self) -> Sequence[Any]:
        topics, groups, answer = self.topics, self.groups, self.responder.answer
        self._clients = ClientManagement(
            filters=self.filters,
            consumers=self.consumers,
            producers=self.producers,
            topics=self.topics,
            groups=self.groups,
            gone=self.coordination.closed,
        )
        slave = self.replication.slave
        services: list[Any] = [
            self._clients,
            QueueLockRequests(locks=self.locks, clients=self.consumers, topics=topics, groups=groups),
            GroupRequests(self.coordination, self.opening, groups, topics, answer=answer),
            OpenQueue(self.opening, answer=answer),
            QueryAssignment(
                tables=self.tables,
                clients=self.consumers,
                queues=self.coordination.queues if slave is None else slave.routes.queues,
                assigner=self.assigner,
                answer=self.responder.answer,
            ),
        ]
        self.removal = TopicRemoval(
            self.topics, self.store, self.offsets, self.coordination, self.held, self.kernel
        )
        self.other_nodes = NodeParts(
            self.config, self.files, self._group_parts, self.committing, self.removal, self.kernel
        )
        if self.cluster is not None:  # A broker without name servers is alone.
            services += self.other_nodes.requests(self.cluster)
        return services

    def _administration(self) -> Sequence[Any]:
        services = administration_services(
            self.config,
            self.tables,
            self._group_parts,
            store=self.store,
            offsets=self.offsets,
            held=self.held,
            reading=self.reading,
            removal=self.removal,
            throughput=self.runtime.throughput,
            clock=self.kernel.clock,
        )
        slaves = replication_services(self.config, self.files, self.replication)
        cleaning = CleaningRequests(
            store=self.store,
            topics=self.topics,
            offsets=self.offsets,
            old_files=self._old_files,
            answer=self.responder.answer,
        )
        options = broker_options(self.config, self.tables, self.reading, self._old_files, self.kernel.clock)
        return [*services, *slaves, cleaning, options, self.runtime]

    def _build_engine(self, services: Sequence[Any]) -> Engine:
        self._processors, self._batch_processors = served_by(services)
        parts, store, auth = self._group_parts, self.store, self.authorizer
        answered = self._clients.answered
        self._calls = client_calls(self.tables, parts, store, auth, self.kernel, self.responder, answered)
        log = self.files.log
        sending_back = SendingBack(log, self.groups, self._redelivery, self.schedule, auth)
        send_back = SendBack(sending_back, log, self._calls)
        for late in (self._calls, send_back, replies(self.config, self._sends, self.producers, self._calls)):
            self._processors.update(late.processors())
        self.replication.refuse(
            self._processors, self._batch_processors, self.pop.at_slave, self.responder.answer
        )
        if self._slaves is not None:
            code = RequestCode.END_TRANSACTION
            self._processors[code] = self._slaves.after_stalls(self._processors[code])
        DiskWaits(self.store, self.tables.journals, self.responder.answer).serve(self._processors)
        kernel = self.kernel
        endpoint = Endpoint(
            clock=kernel.clock,
            authorizer=self.authorizer,
            responder=self.responder,
            processors=Processors(self._processors, self._batch_processors),
            answered=self._calls.answered,
            authenticator=self.authenticator,
        )
        return Engine(kernel, endpoint, self._hooks())

    def _hooks(self) -> Hooks:
        lost = [self.registration.lost]
        stalled = [self.coordination.stalled, self.replication.stalled]
        if self._slaves is not None:
            stalled.append(self._slaves.stalled)
        if self.cluster is not None:
            lost.append(self.cluster.lost)
            stalled.append(self.cluster.stalled)
        # What a slave has to do depends on time, and on what other brokers and its own parts say.
        slave = self.replication.slave
        settle = () if slave is None else (self.pop.settle, slave.settle, self._persistence.look)
        timed = (self._delivery, self._timer_delivery, self.transactions.checking)
        listeners = (self.offsets, self.reading, self.fetching, self.pop.popping)
        arrivals = Arrivals(self.store, listeners, timed)
        self.store.changed = partial(self.kernel.soon, Phase.ARRIVALS, arrivals.report)
        self.store.changed()
        return Hooks(
            connection_ended=(
                self.kernel.purgatory.connection_ended,
                self._calls.connection_ended,
                self.creations.connection_ended,
                self._watch.connection_ended,
                self.coordination.closed,
                self.replication.service.connection_ended,
            ),
            address_lost=lost,
            stalled=stalled,
            settle=settle,
            ticked=(self._persistence.look, self._old_files.look),
        )
