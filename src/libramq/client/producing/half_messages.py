"""Half messages: those of open transactions, ended by us or at the request of a broker.

Upstream: DefaultMQProducerImpl.endTransaction and checkTransactionState, ClientRemotingProcessor.java.
"""

from collections.abc import Callable
from typing import Final

from libramq.client.producing.master_requests import MasterRequests
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.transaction import TransactionState
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, RemoteProtocolError
from libramq.logs import get_logger
from libramq.message.ids import decode_offset_id
from libramq.message.message import MessageExt
from libramq.message.record import decode_records
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader, decode_header
from libramq.rpc.broker_calls import end_transaction
from libramq.transport.remotes import Remotes

log = get_logger(__name__)

#: Finds out what became of a message's transaction, and calls back with it.
Check = Callable[[MessageExt, Callable[[TransactionState], None]], None]

_FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
}


class HalfMessages:
    """Ends transactions of a producer group. check: None refuses the brokers' checks."""

    def __init__(self, remotes: Remotes, requests: MasterRequests, group: str, check: Check | None) -> None:
        self._remotes = remotes
        self._requests = requests
        self._group = group
        self._check = check

    def end(
        self,
        result: SendResult,
        state: TransactionState,
        ended: Callable[[LibraError | None], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Commit or roll back; `ended` is called once. After an error it is not known whether it was."""
        try:
            physical_offset = decode_offset_id(result.offset_message_id).physical_offset
        except RemoteProtocolError as error:
            ended(error)
            return
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=_FLAGS[state],
            topic=result.queue.topic,
            msg_id=result.message_id,
            transaction_id=result.transaction_id or result.message_id,
        )
        broker_name = result.queue.broker_name
        self._requests.ask(broker_name, end_transaction(header), ended, timeout_ms=timeout_ms)

    def request_received(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        """Handle a broker's request: CHECK_TRANSACTION_STATE, which gets no answer but a request of ours."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE or self._check is None:
            remark = f"this producer does not serve request {request.code}"
            answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        try:
            header = decode_header(request, CheckTransactionStateHeader)
            (message,) = decode_records(request.body)
        except (LibraError, ValueError) as error:  # ValueError: not exactly one message.
            log.warning("a broker's check of a transaction cannot be read", broker=address, reason=str(error))
            return
        self._check(message, lambda state: self._answer(address, header, message, state))

    def _answer(
        self,
        address: str,
        header: CheckTransactionStateHeader,
        message: MessageExt,
        state: TransactionState,
    ) -> None:
        if state is TransactionState.UNKNOWN:  # The broker asks again by itself.
            return
        answer = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_FLAGS[state],
            topic=message.topic,
            from_transaction_check=True,
            msg_id=header.msg_id,
            transaction_id=header.transaction_id,
        )
        self._remotes.send_oneway(address, end_transaction(answer, oneway=True).command())
