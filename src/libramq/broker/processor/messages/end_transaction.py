"""END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE: whether a producer may commit or roll back a half message, and
the answer; how an operator resumes checks of a discarded one.

Upstream resumes the checks of any message; here only discarded ones are accepted, because others would be
delivered twice or not at all.

Upstream: EndTransactionProcessor.java, AdminBrokerProcessor.
"""

from collections.abc import Callable

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Send
from libramq.broker.files.files import BrokerFiles
from libramq.broker.transactions import half
from libramq.broker.transactions.checking import CheckRules
from libramq.broker.transactions.known_transactions import Loading
from libramq.broker.transactions.transactions import Transactions
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message import properties as p
from libramq.message.ids import decode_offset_id
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from libramq.remoting.headers import EndTransactionHeader, ResumeCheckHeader
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, ReplyWhenDurable
from libramq.rpc.request import Request, serves


class EndTransaction:
    """The processor of commits, rollbacks and resumed transactions."""

    def __init__(
        self,
        files: BrokerFiles,
        transactions: Transactions,
        loading: Loading,
        rules: CheckRules,
        authorizer: Authorizer,
    ) -> None:
        self._store, self._log = files.store, files.log
        self._transactions = transactions
        self._loading = loading
        self._rules = rules
        self._authorizer = authorizer
        #: Called with the time of each request that ends a transaction, before the transaction is ended.
        self.before_end: Callable[[MonotonicMs], None] = lambda _: None

    @serves(RequestCode.END_TRANSACTION)
    def handle(self, request: Request) -> Outcome:
        """Commit or roll back a half message; as in upstream, "not known yet" gets no answer."""
        self.before_end(request.monotonic_ms)
        return self._decide(request)

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume(self, request: Request) -> Outcome:
        """Store a discarded half message as one that was never checked."""
        header: ResumeCheckHeader = request.header
        message = self._store.message_at(decode_offset_id(header.msg_id or "").physical_offset)
        if message is None or message.topic != names.TRANS_CHECK_MAX_TIME_TOPIC:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"no transaction that was given up has the id {header.msg_id}; they lie in"
                f" {names.TRANS_CHECK_MAX_TIME_TOPIC}, and the offset id is the one they have there",
            )
        self._transactions.resume(message, request.now)
        return SUCCESS

    def _decide(self, request: Request) -> Outcome:
        header: EndTransactionHeader = request.header
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return HOLD
        message = self._store.stored_message_at(header.commit_log_offset)
        if message is None or not half.is_half(message):
            raise broker_error(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        require_permission(self._authorizer, Send(request.principal, message.properties[p.REAL_TOPIC]))
        if not header.from_transaction_check and self._rules.is_too_late(message, int(request.now.wall_ms)):
            raise broker_error(
                ResponseCode.ILLEGAL_OPERATION,
                "the message's CHECK_IMMUNITY_TIME_IN_SECONDS is over: answer the broker's check",
            )
        if message.properties.get(p.PRODUCER_GROUP) != header.producer_group:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if message.queue_offset != header.tran_state_table_offset:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if self._transactions.is_unread(message):
            return self._read_on(request)
        is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
        stored = self._transactions.end(message, is_commit=is_commit, now=request.now)
        if not self._log.must_wait:
            return SUCCESS
        # The request may be repeated because its first answer still waits for the disk or a slave; so does
        # this answer.
        return ReplyWhenDurable(self._store.end if stored is None else stored.end, SUCCESS)

    def _read_on(self, request: Request) -> Work[Outcome]:
        """Load transactions that ended before the start, then decide: Java's producer does not ask again."""
        while not self._loading.is_done:
            yield from self._store.reading(self._loading.read_on)
            yield None
        return self._decide(request)
