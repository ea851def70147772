"""A feature: the interface by which a room adds services, hooks and listeners to a broker; and the base that
all features get.
"""

from collections.abc import Callable, Sequence

from libramq.auth.access_control import AccessControl
from libramq.auth.authorizer import Authorizer
from libramq.broker.cluster.name_server_list import Fetch, NameServerList
from libramq.broker.cluster.registration import Registration
from libramq.broker.cluster.replication import Replication
from libramq.broker.config import BrokerConfig
from libramq.broker.files.event_logs import AuditLog, EventLog
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.pull import Pull
from libramq.broker.machine import Machine
from libramq.broker.messages.arrivals import Listener, TopicListener
from libramq.broker.messages.durability import Durability
from libramq.broker.messages.throughput import Throughput
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.engine import Hooks
from libramq.kernel.parts import Kernel
from libramq.rpc.request import BatchService
from libramq.rpc.responder import Responder
from libramq.waits import HeldPulls


class Feature:
    """A feature sets those of these that it has.

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
        """Leave its files in the state of a clean stop."""


class Base:
    """Holds the kernel, the files, and what replies wait for.

    access: None while clients are not authenticated; it is there before the rest.
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
