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

from libramq.client.awaiting import answer_of, awaited, is_from_outside
from libramq.client.network_thread import CANCEL_SECONDS, run_on_thread
from libramq.client.producing.send_result import SendResult, SendStatus
from libramq.client.producing.sender import MasterRequests
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import InvalidState, LibraError, RemoteProtocolError, broker_error
from libramq.logs import get_logger
from libramq.message.ids import decode_offset_id
from libramq.message.message import Message, MessageExt
from libramq.message.record import decode_records
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader, decode_header
from libramq.rpc.broker_calls import end_transaction
from libramq.transport.remotes import Remotes

log = get_logger(__name__)


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


#: Called with what became of a transaction.
Done = Callable[[TransactionState], None]
#: Finds out what became of a message's transaction, and calls back with it.
Check = Callable[[MessageExt, Done], None]

_FLAGS: Final = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
}


class HalfMessages:
    """Ends transactions of a producer group, also when a broker asks. check: None refuses its questions."""

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
        self._remotes.send(address, end_transaction(answer, oneway=True).command(), None)


class Transactions:
    """Begins and ends transactions. can_be_checked: the producer can answer the brokers' checks."""

    def __init__(self, half_messages: HalfMessages, *, can_be_checked: bool, timeout_ms: int) -> None:
        self._half_messages = half_messages
        self._can_be_checked = can_be_checked
        self._timeout_ms = timeout_ms

    async def begin(self, message: Message, send: Callable[[], Awaitable[SendResult]]) -> Transaction:
        """Store a half message by `send`; see `Producer.transaction`."""
        if not self._can_be_checked:
            raise InvalidState(
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


#: TransactionMQProducer.checkRequestHoldMax: what waits for the function. Brokers ask again.
CHECKS_MAX: Final = 2_000
#: Ours: how many run at once; Java's client runs one (checkThreadPoolMaxSize).
CHECKS_AT_ONCE: Final = 10
#: Ours: half of Apache's transactionCheckInterval, after which a broker asks again.
CHECK_SECONDS: Final = 15.0
#: Ours: how many may be overdue; each may hold a thread. More are checked when one of them ends.
OVERDUE_MAX: Final = 100


class TransactionChecks:
    """Answers the brokers by the user's function, for several transactions at a time.

        asked ─► waiting ─► running ─► answered, for the copy that was asked about last
                              └► overdue after CHECK_SECONDS: another one runs in its place

    A plain function runs on a thread. What it raises is logged and counts as UNKNOWN. A check that hangs
    delays no others, and none is cancelled before the producer stops: its answer counts whenever it comes.
    """

    def __init__(self, check: CheckTransaction) -> None:
        self._check = check
        #: Of what waits or runs. A half message changes its place with each question: the last one counts.
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
        """Cancel the checks under way and drop the others."""
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
        if done is not None:  # The producer runs.
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
