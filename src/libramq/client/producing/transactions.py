"""The transactions of a producer: stores their messages, and ends them when their work has ended."""

from collections.abc import Awaitable, Callable
from functools import partial

from libramq.client.awaiting import answer_of
from libramq.client.producing.half_messages import HalfMessages
from libramq.client.producing.send_result import SendResult, SendStatus
from libramq.client.producing.transaction import Transaction, TransactionState
from libramq.codes import ResponseCode
from libramq.errors import LibraError, LocalProtocolError, broker_error
from libramq.logs import get_logger
from libramq.message.message import Message

log = get_logger(__name__)


class Transactions:
    """Begins and ends transactions. can_be_checked: the producer can answer the brokers' checks."""

    def __init__(self, half_messages: HalfMessages, *, can_be_checked: bool, timeout_ms: int) -> None:
        self._half_messages = half_messages
        self._can_be_checked = can_be_checked
        self._timeout_ms = timeout_ms

    async def begin(self, message: Message, send: Callable[[], Awaitable[SendResult]]) -> Transaction:
        """Store a half message by `send`; see `Producer.transaction`."""
        if not self._can_be_checked:
            raise LocalProtocolError(
                "a producer with transactions needs Producer(check_transaction=…): brokers ask it how a "
                "transaction ended whose producer died"
            )
        transaction = Transaction(message, await send())
        status = transaction.result.status
        if status is not SendStatus.SEND_OK:
            transaction.rollback()
            await self.end(transaction)
            raise broker_error(
                ResponseCode[status.name],
                "the message was stored less safely than the broker promises, and is rolled back",
            )
        return transaction

    async def end(self, transaction: Transaction) -> None:
        """Commit or roll back; where that fails, the broker will ask."""
        state, result = transaction.state, transaction.result
        if state is TransactionState.UNKNOWN:
            return
        try:
            await answer_of(partial(self._half_messages.end, result, state, timeout_ms=self._timeout_ms))
        except LibraError as error:
            log_unknown_end(transaction, error)


def log_unknown_end(transaction: Transaction, error: LibraError) -> None:
    """Log that a broker may not have heard how a transaction ended."""
    log.warning(
        "the broker may not know how a transaction ended; if so, it asks check_transaction",
        state=transaction.state.value,
        topic=transaction.message.topic,
        message_id=transaction.result.message_id,
        reason=str(error),
    )
