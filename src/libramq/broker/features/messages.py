"""The features of messages: put together sending, reading, and the delivery of delayed messages."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.messages.delivery import LevelDelivery, TimerDelivery
from libramq.broker.messages.fetching import Fetching
from libramq.broker.messages.reading import Reading
from libramq.broker.messages.redelivery import Redelivery, SendingBack
from libramq.broker.messages.sending import Sending
from libramq.broker.processor.messages.pull_message import PullMessage
from libramq.broker.processor.messages.query_message import QueryMessage, QueueOffsets
from libramq.broker.processor.messages.reply_message import ReplyMessages
from libramq.broker.processor.messages.send_back import SendBack
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.broker.processor.messages.timer_requests import TimerRequests
from libramq.kernel.engine import Hooks
from libramq.message import names


class SendingFeature(Feature):
    """Stores what clients send: messages, messages sent back, and replies."""

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
            QueueOffsets(base.store, base.authorizer),
            QueryMessage(base.store, base.files.key_index()),
        ]
        self.listeners = [self.reading, self.fetching]


class DelayFeature(Feature):
    """Delivers messages when they are due; a master that asks its slaves first waits for their answers."""

    def __init__(self, base: Base) -> None:
        config, files, kernel = base.config, base.files, base.kernel
        is_held = config.asks_slaves
        self.levels = LevelDelivery(files.schedule, files.store, kernel, is_held=is_held)
        self.timers = TimerDelivery(files.timers, files.store, kernel, is_held=is_held)
        self.topic_listeners = [self.levels, self.timers]
        self.requests = TimerRequests(config, files)
        self.services = [self.requests]

    def close(self) -> None:
        """Finish what is being delivered."""
        self.timers.close()
