"""The checks of transactions: brokers' questions, answered by the user's function, several beside each other.

asked ─► waiting ─► running ─► answered, for the copy that was asked about last
                      └► overdue after CHECK_SECONDS: another one runs in its place

A check that hangs delays no others, and none is cancelled before the producer stops: its answer counts
whenever it comes.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.client.awaiting import awaited, is_from_outside
from libramq.client.network_thread import CANCEL_SECONDS, run_on_thread
from libramq.client.producing.transaction import CheckTransaction, TransactionState
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)

Done = Callable[[TransactionState], None]

#: TransactionMQProducer.checkRequestHoldMax: what waits for the function. Brokers ask again.
CHECKS_MAX: Final = 2_000
#: Ours: how many run at once; Java's client runs one (checkThreadPoolMaxSize).
CHECKS_AT_ONCE: Final = 10
#: Ours: half of Apache's transactionCheckInterval, after which a broker asks again.
CHECK_SECONDS: Final = 15.0
#: Ours: how many may be overdue; each may hold a thread. More are checked when one of them ends.
OVERDUE_MAX: Final = 100


class TransactionChecks:
    """Calls the function; a plain one on a thread. What it raises is logged and counts as UNKNOWN."""

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
