"""The queue listener: the user's hooks about queues and errors, called one by one on the user's loop.

    network thread ─► tell ─► hook, plain or coroutine function ─► heard ─► network thread

Upstream: consumer/MessageQueueListener.java; the three hooks are those of Kafka's ConsumerRebalanceListener.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from libramq.client.core import effects as fx
from libramq.client.handler_call import awaited, is_from_outside
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: Called with queues; a plain function or a coroutine function.
QueueHook = Callable[[tuple[MessageQueue, ...]], Any]
#: Called with an error of LibraMQ's.
ErrorHook = Callable[[LibraError], Any]
Change = fx.Assigned | fx.Revoked | fx.Lost
#: By what they are told of.
Hooks = Mapping[type[Change | fx.Trouble], Callable[[Any], Any] | None]


class QueueListener:
    """Hooks by what they are told of. heard: called with revoked queues when their hook has ended."""

    def __init__(
        self,
        hooks: Hooks,
        *,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[tuple[MessageQueue, ...]], None],
    ) -> None:
        self._hooks = {change: hook for change, hook in hooks.items() if hook is not None}
        self._loop = loop
        self._heard = heard
        self._waiting: deque[Change | fx.Trouble] = deque()
        self._task: asyncio.Task[None] | None = None

    def notify(self, change: Change | fx.Trouble) -> None:
        """Called on the network thread."""
        if type(change) not in self._hooks:
            return
        try:
            self._loop.call_soon_threadsafe(self._accept, change)
        except RuntimeError:
            log.warning("a listener was not called: the consumer's event loop is closed")
            self._finished(change)

    async def close(self) -> None:
        """End a hook that still runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _accept(self, change: Change | fx.Trouble) -> None:
        self._waiting.append(change)
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._call(self._waiting.popleft())
        finally:
            self._task = None

    async def _call(self, change: Change | fx.Trouble) -> None:
        try:
            about = change.error if isinstance(change, fx.Trouble) else change.queues
            await awaited(self._hooks[type(change)](about))
        except BaseException as error:  # SystemExit would end the user's loop.
            if is_from_outside(error):
                raise
            log.exception("a listener failed", kind=type(change).__name__)
        finally:
            self._finished(change)

    def _finished(self, change: Change | fx.Trouble) -> None:
        if isinstance(change, fx.Revoked):
            self._heard(change.queues)
