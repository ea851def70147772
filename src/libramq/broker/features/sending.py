"""Sending: messages that clients send, reply with, or send back."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.messages.creation_rate import CreationRate
from libramq.broker.messages.redelivery import Redelivery, SendingBack
from libramq.broker.messages.sending import Sending
from libramq.broker.messages.stored_properties import BrokerProperties
from libramq.broker.processor.messages.reply_message import ReplyMessages
from libramq.broker.processor.messages.send_back import SendBack
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.kernel.engine import Hooks
from libramq.message.ids import UniqueIdGenerator
from libramq.store.retention.disk_space import DiskSpace


class SendingFeature(Feature):
    """Everything that clients store."""

    def __init__(self, base: Base, groups: GroupFeature, transactions: TransactionFeature) -> None:
        config, machine, files = base.config, base.machine, base.files
        self.redelivery = Redelivery(base.topics, base.groups, groups.locks, machine.randomness)
        self.creations = CreationRate(machine.clock.monotonic_ms())
        properties = BrokerProperties(
            cluster=config.cluster_name, region=config.region_id, trace_on=config.trace_on
        )
        self.sending = Sending(
            topics=base.topics,
            requirements=base.requirements,
            creations=self.creations,
            log=files.log,
            durability=base.replication.gate,
            announcement=base.registration,
            disk_space=DiskSpace(
                files.filesystem, base.store.config.disks, config.disk_space_warning_level_ratio
            ),
            properties=properties,
            unique_id=UniqueIdGenerator(
                config.broker_ip, machine.process_id, machine.clock, machine.randomness
            ),
            redelivery=self.redelivery,
            schedule=files.schedule,
            timers=files.timers.timers,
            transactions=None if config.reject_transaction_message else transactions.transactions,
            randomness=machine.randomness,
            message_bytes_max=config.max_message_size,
        )
        sends, calls = SendMessage(self.sending, properties), groups.calls
        sending_back = SendingBack(files.log, base.groups, self.redelivery, files.schedule, base.authorizer)
        address, stores = config.address, config.store_replies
        self.services = [
            sends,
            SendBack(sending_back, files.log, calls),
            ReplyMessages(sends, groups.producers, calls, address=address, stores=stores),
        ]
        self.hooks = Hooks(connection_ended=[self.creations.connection_ended])
