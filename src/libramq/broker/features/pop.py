"""The POP feature: puts together popping, acknowledging, reviving and pops in order.

taking      positions: which messages are next
popping     check points: messages become invisible        acknowledging    … and are done
reviving    … or visible again, when they are due
"""

from functools import partial

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.pop.acknowledging import Acknowledging
from libramq.broker.pop.ordering import Ordering
from libramq.broker.pop.popping import Popping
from libramq.broker.pop.pops_at_slave import PopsAtSlave, TakingAtSlave
from libramq.broker.pop.reviving import Reviving
from libramq.broker.pop.taking import Taking
from libramq.broker.processor.messages.ack_message import AckMessage
from libramq.broker.processor.messages.pop_message import PopMessage
from libramq.errors import StoreError
from libramq.kernel.engine import Hooks
from libramq.kernel.parts import Phase
from libramq.kernel.work import Each
from libramq.logs import get_logger

log = get_logger(__name__)


class PopFeature(Feature):
    """Serves the pops of all groups."""

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
        offsets.observe_resets(self.popping.reset)
        offsets.observe_removal(ordering.group_removed)
        name, waits = config.broker_name, pop.journal.must_wait
        acking = Acknowledging(store, tables.topics, pop.journal, pop.in_flight, ordering)
        #: What a slave hands out while it acts; None at a master.
        self.at_slave: PopsAtSlave | None = None
        if slave is not None:
            self.at_slave = PopsAtSlave(
                files, self.popping, acking, kernel, may_serve=lambda: slave.may_serve_pops
            )
        pops = PopMessage(self.popping, answer=base.responder.answer, broker_name=name, waits_for_disk=waits)
        acks = AckMessage(acking, waits_for_disk=waits)
        self.services, self.batch_services = [pops, acks], [acks]
        self.listeners = [self.popping]
        # What a slave has to do also depends on time, on other brokers, and on its other parts.
        self.hooks = Hooks(settle=[self.settle] if slave is not None else [])

    def settle(self) -> None:
        """Commit what was popped, once that is on the disk; the rest after everybody else was served."""
        if self.at_slave is not None:
            self.at_slave.settle()
        if self.taking.settle():
            self._commits_rest.add((None,))
        elif self._positions.waiting:
            self._store.when_changed(self.settle)

    def close(self) -> None:
        """Commit everything that was popped: the log is flushed for that, waiting for the disk."""
        try:
            self._store.flush()
        except StoreError as error:
            log.error("what was popped is committed at the next start", reason=str(error))
        else:
            while self.taking.settle():
                pass

    def _topic_changed(self, topic: str) -> None:
        if topic not in self._topics and not self._store.config.is_copy:
            self.reviving.topic_deleted(topic)
            self._ordering.topic_deleted(topic)
            self.popping.topic_deleted(topic)
