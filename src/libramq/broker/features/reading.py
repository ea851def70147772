"""Reading: messages that clients pull, query, or find by their time."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.messages.fetching import Fetching
from libramq.broker.messages.reading import Reading
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.broker.processor.messages.query_message import QueryMessage
from libramq.broker.processor.messages.queue_offset import QueueOffsets
from libramq.formats.tables import PERM_READ


class ReadingFeature(Feature):
    """Reads by offset: RocketMQ's, and those of protocols without long polling by group."""

    def __init__(self, base: Base, groups: GroupFeature) -> None:
        config, consumers = base.config, groups.consumers
        self.reading = Reading(
            store=base.store,
            requirements=base.requirements,
            rebalances=consumers.rebalances,
            filters=groups.filters,
            offsets=base.offsets,
            fences=base.fences,
            held=base.held,
            kernel=base.kernel,
            readable=bool(config.broker_permission & PERM_READ),
            long_polling=config.long_polling_enable,
            short_polling_ms=config.short_polling_time_ms,
            throughput=base.throughput,
            is_member=consumers.is_member_of,
        )
        self.fetching = Fetching(base.store, base.requirements, base.kernel)
        suggested = base.replication.suggested if config.slave_read_enable else None
        self.services = [
            PullMessage(self.reading, answer=base.responder.answer, suggested=suggested),
            QueueOffsets(base.store, base.authorizer),
            QueryMessage(base.store, base.files.key_index()),
        ]
        self.listeners = [self.reading, self.fetching]
