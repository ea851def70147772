"""The broker: the list of its features over one base, their hooks, its access control, and the engine that
runs them.

    base        kernel · files · offsets · gates of replies                (`features.py`)
    features    each has the services, hooks and listeners of one room     (`features.py`)
    engine      events in, effects out

Nothing here uses sockets, tasks or threads: a performer runs the engine, on real ones or in the simulator.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain

from libramq.auth.access_control import AccessControl, DryRun
from libramq.auth.authorizer import ALLOW_ALL, Authenticator, Authorizer
from libramq.broker.cluster.name_server_list import Fetch
from libramq.broker.config import BrokerConfig
from libramq.broker.features import (
    AdministrationFeature,
    Base,
    ClusterFeature,
    DelayFeature,
    Feature,
    GroupFeature,
    PopFeature,
    ReadingFeature,
    SendingFeature,
    SlaveFeature,
    TransactionFeature,
    UpkeepFeature,
)  # fmt: skip
from libramq.broker.files.files import BrokerFiles
from libramq.broker.machine import Machine
from libramq.broker.messages.arrivals import Arrivals
from libramq.broker.processor.disk_waits import DiskWaits
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Phase
from libramq.remoting.credentials import is_signed_for
from libramq.rpc.endpoint import Endpoint, PeerChecks, Signatures
from libramq.rpc.request import Processors, served_by


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
        if config.authorization_enabled or not authorizer.permits_everything:
            # `%RETRY%G_T` is also the retry topic of a group "G_T", whose readers would get messages of T
            # that G popped.
            config = replace(config, enable_retry_topic_v2=True)
        self.authenticator = authenticator
        files = BrokerFiles(
            config, clock=machine.clock, filesystem=machine.filesystem, process_id=machine.process_id
        )
        try:
            if config.authentication_enabled:
                self.authenticator = self.access = access = self._access_control(config, files)
                authorizer = access if config.authorization_enabled else authorizer
            if config.authorization_dry_run and self.access is not None:
                self.authenticator = authorizer = DryRun(self.access, machine.clock)
            super().__init__(config, machine, files, authorizer, recorded, fetch_name_servers)
            self._features = self._build_features()
            self.engine = self._build_engine()
            self.replication.begin()
        except BaseException:
            files.store.close()
            raise

    def _signatures(self) -> Signatures | None:
        if self.authenticator is None:
            return None
        config = self.config
        return Signatures(
            self.authenticator,
            config.authentication_whitelist,
            config.authorization_whitelist,
            self.audit,
        )

    def _access_control(self, config: BrokerConfig, files: BrokerFiles) -> AccessControl:
        """Return the access control by the table of users, after creating the first user."""
        users, initial, brokers = files.tables.users, config.init_authentication_user, config.credentials
        if initial is not None:
            users.create_first(initial)
        return AccessControl(
            users,
            cluster=config.cluster_name,
            brokers=None if brokers is None else (brokers.access_key, brokers.secrets),
        )

    def start(self, started: Callable[[], None]) -> None:
        """Start to serve; `started` is called once name servers were informed, or could not be reached."""
        self.cluster.start_up.begin(started)

    def leave(self, left: Callable[[], None]) -> None:
        """Unregister from the name servers; `left` is called once all have answered or failed to."""
        self.registration.leave(left)

    def close(self) -> None:
        """Leave all files in the state of a clean stop; a failure of one part does not stop the others."""
        with ExitStack() as stack:
            for feature in reversed(self._features):  # Last in, first out.
                stack.callback(feature.close)

    def _build_features(self) -> Sequence[Feature]:
        """Return the features in the order of their hooks; they are closed in reverse."""
        self.members = GroupFeature(self)
        self.transactions = TransactionFeature(self, self.members.producers)
        self.sends = SendingFeature(self, self.members, self.transactions)
        self.pop = PopFeature(self, self.members, self.sends.redelivery)
        self.reads = ReadingFeature(self, self.members)
        delays = DelayFeature(self)
        self._slaves = SlaveFeature(self, self.transactions, delays, self.pop)
        self.cluster = ClusterFeature(self, self.members)
        self.upkeep = UpkeepFeature(self)
        administration = AdministrationFeature(self, self.members, self.reads, delays, self.upkeep)
        return (
            self.members, self.transactions, self.sends, self.reads, self.pop, delays, self._slaves,
            self.cluster, administration, self.upkeep,
        )  # fmt: skip

    def _build_engine(self) -> Engine:
        features, kernel, store = self._features, self.kernel, self.store
        processors = served_by(each for feature in features for each in feature.services)
        in_batches = [each for feature in features for each in feature.batch_services]
        batch_processors = {code: do for each in in_batches for code, do in each.batch_processors().items()}
        DiskWaits(store, self.tables.journals, self.responder.answer).serve(processors)
        self.processors = Processors(processors, batch_processors)
        arrivals = Arrivals(
            store,
            [each for feature in features for each in feature.listeners],
            [each for feature in features for each in feature.topic_listeners],
        )
        store.changed = partial(kernel.soon, Phase.ARRIVALS, arrivals.report)
        store.changed()
        credentials, at_slave = self.config.credentials, self._slaves.requests
        endpoint = Endpoint(
            clock=kernel.clock,
            authorizer=self.authorizer,
            responder=self.responder,
            processors=self.processors,
            answered=self.members.calls.answered,
            signatures=self._signatures(),
            at_slave=at_slave.outcome if at_slave is not None else None,
            peers=PeerChecks(
                is_signed=None
                if credentials is None
                else partial(is_signed_for, credentials=credentials, address=self.config.address),
                require=None if self.cluster.others is None else self.cluster.others.require_peer,
            ),
        )
        hooks = [Hooks(connection_ended=[kernel.purgatory.connection_ended])]
        hooks += [feature.hooks for feature in features]
        return Engine(kernel, endpoint, Hooks(*(tuple(chain(*each)) for each in zip(*hooks, strict=True))))
