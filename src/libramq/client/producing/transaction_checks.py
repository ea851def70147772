"""The checks of transactions: brokers' questions, answered one after the other by the user's function."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Final

from libramq.client.awaiting import awaited, is_from_outside
from libramq.client.network_thread import run_on_thread
from libramq.client.producing.transaction import CheckTransaction, TransactionState
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)

#: TransactionMQProducer.checkRequestHoldMax: what waits for the function. Brokers ask again.
CHECKS_MAX: Final = 2_000


class TransactionChecks:
    """Calls the function; a plain one on a thread. What it raises is logged and counts as UNKNOWN."""

    def __init__(self, check: CheckTransaction) -> None:
        self._check = check
        self._waiting: dict[str, tuple[MessageExt, Callable[[TransactionState], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def ask(self, message: MessageExt, done: Callable[[TransactionState], None]) -> None:
        """Check a message, unless it waits already."""
        key = message.offset_id
        if key in self._waiting or len(self._waiting) >= CHECKS_MAX:
            return
        self._waiting[key] = (message, done)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel the check under way and drop the others."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                message, done = self._waiting[key]
                try:
                    done(await self._state(message))
                finally:
                    self._waiting.pop(key, None)
        finally:
            self._task = None

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
