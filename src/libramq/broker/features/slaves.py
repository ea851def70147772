"""Slaves: what a master does for its slaves, and what a slave does instead of its master."""

from libramq.broker.cluster.slaves_progress import SlavesProgress
from libramq.broker.features.delays import DelayFeature
from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.pop import PopFeature
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.processor.cluster.ha_info import HAInfoRequests
from libramq.broker.processor.cluster.ha_status import HAStatusRequests
from libramq.broker.processor.cluster.slave_requests import SlaveRequests
from libramq.broker.processor.cluster.slave_tables import SlaveTables
from libramq.codes import RequestCode
from libramq.kernel.engine import Hooks
from libramq.rpc.request import Processor


class SlaveFeature(Feature):
    """A master's slaves, or this slave."""

    def __init__(
        self, base: Base, transactions: TransactionFeature, delays: DelayFeature, pop: PopFeature
    ) -> None:
        config, files, replication = base.config, base.files, base.replication
        self._progress: SlavesProgress | None = None
        stalled = [replication.stalled]
        if config.asks_slaves:
            checking, registration = transactions.checking, base.registration
            self._progress = SlavesProgress(config, files, base.kernel, registration, checking, base.offsets)
            self._progress.start((delays.levels, delays.timers, pop.reviving))
            stalled.append(self._progress.stalled)
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
            SlaveTables(
                files.ledger, files.store.deletions, files.tables.request_modes, files.delay_answer, slave
            ),
            HAStatusRequests(files.store, replication.service),
            HAInfoRequests(config, files.store, slave),
        ]
        self.hooks = Hooks(
            connection_ended=[replication.service.connection_ended],
            stalled=stalled,
            settle=[slave.settle] if slave is not None else [],
        )

    def guard(self, processors: dict[int, Processor]) -> None:
        """Put questions to slaves before the end of a transaction."""
        if self._progress is not None:
            code = RequestCode.END_TRANSACTION
            processors[code] = self._progress.after_stalls(processors[code])
