"""Sending: messages that clients send, reply with, or send back."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.transactions import TransactionFeature
from libramq.broker.messages.redelivery import Redelivery, SendingBack
from libramq.broker.messages.sending import Sending
from libramq.broker.processor.messages.reply_message import ReplyMessages
from libramq.broker.processor.messages.send_back import SendBack
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.kernel.engine import Hooks


class SendingFeature(Feature):
    """Everything that clients store."""

    def __init__(self, base: Base, groups: GroupFeature, transactions: TransactionFeature) -> None:
        config, machine, files = base.config, base.machine, base.files
        self.redelivery = Redelivery(base.topics, base.groups, groups.locks, machine.randomness)
        self.sending = Sending(
            config,
            machine,
            files,
            requirements=base.requirements,
            durability=base.replication.gate,
            announcement=base.registration,
            redelivery=self.redelivery,
            transactions=transactions.transactions,
        )
        sends, calls = SendMessage(self.sending), groups.calls
        sending_back = SendingBack(files.log, base.groups, self.redelivery, files.schedule, base.authorizer)
        address, stores = config.address, config.store_replies
        self.services = [
            sends,
            SendBack(sending_back, files.log, calls),
            ReplyMessages(sends, groups.producers, calls, address=address, stores=stores),
        ]
        self.hooks = Hooks(connection_ended=[self.sending.creations.connection_ended])
