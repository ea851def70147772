"""The transaction feature: puts together half messages, their ends, and the checks at producers."""

from typing import Final

from libramq.auth.authorizer import is_permitted
from libramq.auth.operation import Send
from libramq.broker.features.feature import Base, Feature
from libramq.broker.processor.messages.end_transaction import EndTransaction
from libramq.broker.transactions.checking import Checking, CheckRules
from libramq.broker.transactions.ending import Ending
from libramq.broker.transactions.transactions import Transactions
from libramq.groups.pending_notifications import TransactionCheck
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection, Principal
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.message import MessageExt

log = get_logger(__name__)

HOUR_MS: Final = 3_600_000


class TransactionFeature(Feature):
    """Serves the transactions of all producers."""

    def __init__(self, base: Base, producers: ProducerGroups[Connection]) -> None:
        config, files, store = base.config, base.files, base.store
        self._producers = producers
        self._authorizer = base.authorizer
        self._check_count = 0
        rules = CheckRules(
            interval_ms=config.transaction_check_interval_ms,
            timeout_ms=config.transaction_timeout_ms,
            times_max=config.transaction_check_max,
            kept_ms=config.file_reserved_hours * HOUR_MS,
        )
        self.transactions = Transactions(files, base.offsets)
        self.checking = Checking(
            store=store,
            offsets=base.offsets,
            transactions=self.transactions,
            rules=rules,
            kernel=base.kernel,
            ask=self._ask,
        )
        ending = Ending(store, files.log, self.transactions, rules, base.authorizer)
        self.requests = EndTransaction(ending, self.transactions, self.checking.loading, store)
        self.services = [self.requests]
        self.topic_listeners = [self.checking]

    def _ask(self, message: MessageExt) -> None:
        """Ask one of the group's producers, each in its turn."""
        group = message.properties.get(p.PRODUCER_GROUP, "")
        producers = [
            (each.peer, each.notify)
            for each in self._producers.members(group)
            if each.peer.is_open and each.notify is not None and self._may_send(each.principal, message)
        ]
        if not producers:
            log.warning("no producer can be asked about a transaction", group=group, id=message.message_id)
            return
        self._check_count += 1
        peer, notify = producers[self._check_count % len(producers)]
        notify(TransactionCheck(peer, group, message))

    def _may_send(self, principal: Principal, message: MessageExt) -> bool:
        """Return whether a producer may see a half message: anybody may join a group that produces."""
        return is_permitted(self._authorizer, Send(principal, message.properties.get(p.REAL_TOPIC, "")))
