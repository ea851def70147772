"""RESUME_CHECK_HALF_MESSAGE: an operator has a transaction that was given up looked at again.

Upstream: AdminBrokerProcessor.resumeCheckHalfMessage. It takes any message there is; here only those that
were given up, since anything else would be delivered twice or not at all.
"""

from collections.abc import Mapping

from libramq.broker.transactions.transactions import Transactions
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.message.ids import decode_offset_id
from libramq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from libramq.remoting.admin_headers import ResumeCheckHeader
from libramq.rpc.outcome import SUCCESS, Outcome
from libramq.rpc.request import Processor, Request
from libramq.store.message_store import MessageStore


class ResumeCheck:
    """The processor of the request."""

    def __init__(self, store: MessageStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    def resume(self, request: Request) -> Outcome:
        """Store a half message that was given up as one that was never checked."""
        header: ResumeCheckHeader = request.header
        message = self._store.message_at(decode_offset_id(header.msg_id or "").physical_offset)
        if message is None or message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"no transaction that was given up has the id {header.msg_id}; they lie in"
                f" {TRANS_CHECK_MAX_TIME_TOPIC}, and the offset id is the one they have there",
            )
        self._transactions.resume(message, request.now)
        return SUCCESS
