"""A transaction: a message that is delivered only if the work that belongs to it was done.

    async with producer.transaction(Message("Orders", b"...")) as transaction:
        ...                                                   # The work; raising rolls the message back.

    stored, not delivered yet ─► the work ─┬─ done ─────────────► committed: delivered
                                           ├─ raised an error ──► rolled back: never delivered
                                           └─ interrupted, or the process died
                                                 └─► the broker asks its group: `check_transaction`

Upstream: client/producer/TransactionMQProducer.java, TransactionListener.java, LocalTransactionState.java.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from libramq.client.producing.send_result import SendResult
from libramq.message.message import Message, MessageExt


class TransactionState(Enum):
    """The state of the work. UNKNOWN: not decided yet; the broker asks again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


#: Finds out what became of the work that a message belongs to, perhaps done by another process.
CheckTransaction = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]


class Transaction:
    """One transaction, open while its block runs. It is committed at the end unless the block says otherwise.

    message: as it was sent. result: where it waits; `result.transaction_id` is also in every check.
    """

    def __init__(self, message: Message, result: SendResult) -> None:
        self.message = message
        self.result = result
        self.state = TransactionState.COMMIT

    def commit(self) -> None:
        """Commit when the block ends, which is the default."""
        self.state = TransactionState.COMMIT

    def rollback(self) -> None:
        """Roll back when the block ends."""
        self.state = TransactionState.ROLLBACK

    def leave_open(self) -> None:
        """Do neither: it is not known yet, and the broker asks `check_transaction` later."""
        self.state = TransactionState.UNKNOWN


@contextmanager
def deciding(transaction: Transaction) -> Iterator[None]:
    """Roll back if the block raises an error, and leave open if it is interrupted: it may be done in part."""
    try:
        yield
    except Exception:
        transaction.rollback()
        raise
    except BaseException:
        transaction.leave_open()
        raise
