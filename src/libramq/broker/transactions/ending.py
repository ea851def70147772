"""The end of a transaction: whether a producer's commit or rollback of a half message is accepted, and what
it is answered.

Upstream: EndTransactionProcessor.java.
"""

from typing import NamedTuple

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Send
from libramq.broker.files.message_log import MessageLog
from libramq.broker.transactions import half
from libramq.broker.transactions.checking import CheckRules
from libramq.broker.transactions.transactions import Transactions
from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.connection import Principal
from libramq.message import properties as p
from libramq.store.message_store import MessageStore


class End(NamedTuple):
    """A producer's decision about a half message. answers_check: the broker has asked for it."""

    physical_offset: int
    queue_offset: int
    producer_group: str
    is_commit: bool
    answers_check: bool


class Ending:
    """Ends transactions for their producers."""

    def __init__(
        self,
        store: MessageStore,
        log: MessageLog,
        transactions: Transactions,
        rules: CheckRules,
        authorizer: Authorizer,
    ) -> None:
        self._store = store
        self._log = log
        self._transactions = transactions
        self._rules = rules
        self._authorizer = authorizer

    def end(self, end: End, principal: Principal, now: Now) -> int | None:
        """Commit or roll back; return the log's end that the answer waits for, 0 if for none.

        None: nothing is decided before `Loading` has read what had ended before the start. Raises BrokerError
        and ColdRead.
        """
        message = self._store.stored_message_at(end.physical_offset)
        if message is None or not half.is_half(message):
            raise broker_error(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        require_permission(self._authorizer, Send(principal, message.properties[p.REAL_TOPIC]))
        if not end.answers_check and self._rules.is_too_late(message, int(now.wall_ms)):
            raise broker_error(
                ResponseCode.ILLEGAL_OPERATION,
                "the message's CHECK_IMMUNITY_TIME_IN_SECONDS is over: answer the broker's check",
            )
        if message.properties.get(p.PRODUCER_GROUP) != end.producer_group:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if message.queue_offset != end.queue_offset:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if self._transactions.is_unread(message):
            return None
        stored = self._transactions.end(message, is_commit=end.is_commit, now=now)
        if not self._log.must_wait:
            return 0
        # It is repeated, perhaps since its answer waits for the disk, or for a slave: so does this one.
        return self._store.end if stored is None else stored.end
