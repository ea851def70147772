"""The transactions of a producer: when one is committed, rolled back or left open, and how brokers' checks of
open ones are answered.

    async with producer.transaction(Message("Orders", b"...")) as transaction:
        ...                                                   # The work; raising rolls the message back.

    stored, not delivered yet ─► the work ─┬─ done ─────────────► committed: delivered
                                           ├─ raised an error ──► rolled back: never delivered
                                           └─ interrupted, or the process died
                                                 └─► the broker asks its group: `check_transaction`

Upstream: client/producer/TransactionMQProducer.java, TransactionListener.java, LocalTransactionState.java,
DefaultMQProducerImpl.endTransaction and checkTransactionState, ClientRemotingProcessor.java.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Final

from libramq.client.awaiting import awaited, is_from_outside
from libramq.client.network_thread import CANCEL_SECONDS, run_on_thread
from libramq.client.producing.send_result import SendResult
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.message import Message, MessageExt
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

log = get_logger(__name__)


class TransactionState(Enum):
    """The state of the work. UNKNOWN: not decided yet; the broker asks again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


#: Returns the outcome of the work that a message belongs to, perhaps done by another process.
CheckTransaction = Callable[[MessageExt], TransactionState | Awaitable[TransactionState]]


class Transaction:
    """One transaction, open while its block runs; then it is committed unless the block decides otherwise.

    message: as it was sent. result: where it is stored; `result.transaction_id` is also in every check.
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
        """Leave the outcome undecided: the broker asks `check_transaction` later."""
        self.state = TransactionState.UNKNOWN


@contextmanager
def deciding(transaction: Transaction) -> Iterator[None]:
    """Roll back if the block raises an error; leave it open if interrupted, as it may be partly done."""
    try:
        yield
    except Exception:
        transaction.rollback()
        raise
    except BaseException:
        transaction.leave_open()
        raise


#: Called with the outcome of a transaction.
Done = Callable[[TransactionState], None]
#: Finds the outcome of a message's transaction, and calls back with it.
Check = Callable[[MessageExt, Done], None]

#: The end of a transaction, as requests have it (commitOrRollback).
STATE_FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
}


def log_unknown_end(transaction: Transaction, error: LibraError) -> None:
    """Log that a broker may not know the outcome of a transaction."""
    log.warning(
        "the broker may not know how a transaction ended; if so, it asks check_transaction",
        state=transaction.state.value,
        topic=transaction.message.topic,
        message_id=transaction.result.message_id,
        reason=str(error),
    )


#: TransactionMQProducer.checkRequestHoldMax: how many checks wait for the function. Brokers ask again.
CHECKS_MAX: Final = 2_000
#: Ours: how many checks run at once; Java's client runs one (checkThreadPoolMaxSize).
CHECKS_AT_ONCE: Final = 10
#: Ours: when a check is overdue: half of Apache's transactionCheckInterval, after which a broker asks again.
CHECK_SECONDS: Final = 15.0
#: Ours: how many checks may be overdue; each may hold a thread. Others begin when one of them ends.
OVERDUE_MAX: Final = 100


class TransactionChecks:
    """Answers the brokers' checks with the user's function, several at a time.

        asked ─► waiting ─► running ─► answered, for the copy that was asked about last
                              └► overdue after CHECK_SECONDS: another one runs in its place

    A plain function runs on a thread. Its exceptions are logged and count as UNKNOWN. A check that hangs does
    not delay others, and is not cancelled before the producer stops: its answer counts whenever it comes.
    """

    def __init__(self, check: CheckTransaction) -> None:
        self._check = check
        #: The callbacks of waiting and running checks. A half message moves with each check: the last one
        #: counts.
        self._done: dict[str, Done] = {}
        self._waiting: deque[MessageExt] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._overdue: set[asyncio.Task[None]] = set()

    def ask(self, message: MessageExt, done: Done) -> None:
        """Check a message, unless its check waits or runs already."""
        is_new = message.message_id not in self._done
        if is_new and len(self._done) >= CHECKS_MAX:
            return
        self._done[message.message_id] = done
        if is_new:
            self._waiting.append(message)
            self._begin()

    async def stop(self) -> None:
        """Cancel running checks and drop the others."""
        self._waiting.clear()
        self._done.clear()
        tasks = [*self._running, *self._overdue]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
            if left:
                log.warning("check_transaction ignores its cancellation and is abandoned", checks=len(left))

    def _begin(self) -> None:
        while self._waiting and len(self._running) < CHECKS_AT_ONCE and len(self._overdue) < OVERDUE_MAX:
            message = self._waiting.popleft()
            task = asyncio.create_task(self._run(message))
            self._running.add(task)
            timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._time_is_over, task, message)
            task.add_done_callback(partial(self._ended, timer))

    def _time_is_over(self, task: asyncio.Task[None], message: MessageExt) -> None:
        log.warning(
            "check_transaction has not returned in time; other transactions are checked meanwhile",
            seconds=CHECK_SECONDS,
            topic=message.topic,
            message_id=message.message_id,
        )
        self._running.discard(task)
        self._overdue.add(task)
        self._begin()

    def _ended(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        self._running.discard(task)
        self._overdue.discard(task)
        self._begin()

    async def _run(self, message: MessageExt) -> None:
        try:
            state = await self._state(message)
        finally:
            done = self._done.pop(message.message_id, None)
        if done is not None:  # None if the producer has stopped.
            done(state)

    async def _state(self, message: MessageExt) -> TransactionState:
        about = {"topic": message.topic, "message_id": message.message_id}
        try:
            if inspect.iscoroutinefunction(self._check):
                state = await self._check(message)
            else:
                state = await awaited(await run_on_thread(self._check, message))
        except BaseException as error:
            if is_from_outside(error):
                raise
            log.exception("check_transaction failed; the broker asks again later", **about)
            return TransactionState.UNKNOWN
        if not isinstance(state, TransactionState):
            log.error(
                "check_transaction must return TransactionState.COMMIT, ROLLBACK or UNKNOWN; "
                "the broker asks again later",
                returned=repr(state)[:80],
                **about,
            )
            return TransactionState.UNKNOWN
        return state
