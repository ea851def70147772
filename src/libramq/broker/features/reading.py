"""Reading: messages that clients pull, query, or find by their time."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.messages.fetching import Fetching
from libramq.broker.messages.reading import Reading
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.broker.processor.messages.query_message import QueryMessage
from libramq.broker.processor.messages.queue_offset import QueueOffsets


class ReadingFeature(Feature):
    """Reads by offset: RocketMQ's, and those of protocols without long polling by group."""

    def __init__(self, base: Base, groups: GroupFeature) -> None:
        config = base.config
        self.reading = Reading(
            config,
            base.files,
            groups.consumers,
            requirements=base.requirements,
            filters=groups.filters,
            offsets=base.offsets,
            held=base.held,
            kernel=base.kernel,
            throughput=base.throughput,
        )
        self.fetching = Fetching(base.store, base.requirements, base.kernel)
        suggested = base.replication.suggested if config.slave_read_enable else None
        self.services = [
            PullMessage(self.reading, answer=base.responder.answer, suggested=suggested),
            QueueOffsets(base.store, base.authorizer),
            QueryMessage(base.store, base.files.key_index()),
        ]
        self.listeners = [self.reading, self.fetching]
