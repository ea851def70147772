"""The queue listener: calls the user's hooks for queues and errors, one by one on the user's loop.

        network thread ─► notify ─► hook, plain or coroutine function ─► hook_done ─► network thread

Upstream: consumer/MessageQueueListener.java; the three hooks are those of Kafka's ConsumerRebalanceListener.
"""

import asyncio
import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from libramq.client.awaiting import awaited, current_task, is_from_outside
from libramq.client.consuming import effects as fx
from libramq.client.network_thread import CANCEL_SECONDS, run_on_thread
from libramq.logs import get_logger

log = get_logger(__name__)


#: The options that are hooks. Blocking consumers run plain functions among them on threads, which may wait.
HOOKS: Final[tuple[Literal["on_assigned", "on_revoked", "on_lost", "on_error"], ...]] = (
    "on_assigned", "on_revoked", "on_lost", "on_error",
)  # fmt: skip


def on_thread(hook: Callable[..., Any], threads: set[int] | None = None) -> Callable[..., Any]:
    """Wrap a plain function so that it runs on a thread; return a coroutine function unchanged.

    threads: contains the thread's identifier while the function runs.
    """
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        return hook
    running = set() if threads is None else threads

    def run(*arguments: Any) -> Any:
        running.add(threading.get_ident())
        try:
            return hook(*arguments)
        finally:
            running.discard(threading.get_ident())

    @functools.wraps(hook)
    async def call(*arguments: Any) -> Any:
        return await awaited(await run_on_thread(run, *arguments))

    return call


#: Ours: a hook that takes longer is logged: nothing else would explain why its queues are not read.
SLOW_SECONDS: Final = 10.0

#: The hooks, by the change they are called for.
Hooks = Mapping[type[fx.QueueChange | fx.Trouble], Callable[[Any], Any] | None]


class QueueListener:
    """Calls the hooks. hook_done: called with a change of queues when its hook has returned."""

    def __init__(
        self,
        hooks: Hooks,
        *,
        loop: asyncio.AbstractEventLoop,
        hook_done: Callable[[fx.QueueChange], None],
    ) -> None:
        self._hooks = {change: hook for change, hook in hooks.items() if hook is not None}
        self._loop = loop
        self._hook_done = hook_done
        self._waiting: deque[fx.QueueChange | fx.Trouble] = deque()
        #: The task that calls hooks; None while there are none to call.
        self.task: asyncio.Task[None] | None = None
        self._current: fx.QueueChange | fx.Trouble | None = None
        self._is_closed = False

    def notify(self, change: fx.QueueChange | fx.Trouble) -> None:
        """Call the hook for a change; called on the network thread."""
        if type(change) not in self._hooks:
            return
        try:
            self._loop.call_soon_threadsafe(self._accept, change)
        except RuntimeError:
            log.warning("a listener was not called: the consumer's event loop is closed")
            self._finished(change)

    def let_others_go_first(self) -> None:
        """Call the next hooks while the calling one continues: it is about to wait for them."""
        if self.task is not None and current_task() is self.task:
            self.task = None
            self._finish_current()
            self._go_on()

    async def close(self) -> None:
        """Cancel a hook that still runs."""
        self._is_closed = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=CANCEL_SECONDS)

    def _accept(self, change: fx.QueueChange | fx.Trouble) -> None:
        self._waiting.append(change)
        self._go_on()

    def _go_on(self) -> None:
        if self.task is None and self._waiting and not self._is_closed:
            self.task = self._loop.create_task(self._work())
            self.task.add_done_callback(self._ended)

    async def _work(self) -> None:
        while self._waiting and self.task is asyncio.current_task():
            self._current = change = self._waiting.popleft()
            try:
                await call_hook(self._hooks[type(change)], change)
            finally:
                if self._current is change:
                    self._finish_current()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # Only Ctrl-C, which the loop has raised already.
        if self.task is task:  # A cancelled hook does not stop the others.
            self.task = None
            self._go_on()

    def _finish_current(self) -> None:
        change, self._current = self._current, None
        if change is not None:
            self._finished(change)

    def _finished(self, change: fx.QueueChange | fx.Trouble) -> None:
        if not isinstance(change, fx.Trouble):
            self._hook_done(change)


async def call_hook(hook: Callable[[Any], Any], change: fx.QueueChange | fx.Trouble) -> None:
    """Call a hook for a change; log its exception, or that it takes long."""
    slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, _log_slow, hook, change)
    try:
        about = change.error if isinstance(change, fx.Trouble) else change.queues
        await awaited(hook(about))
    except BaseException as error:  # SystemExit would end the user's loop.
        if is_from_outside(error):
            raise
        log.exception("a listener failed", kind=type(change).__name__)
    finally:
        slow.cancel()


def _log_slow(hook: Callable[[Any], Any], change: fx.QueueChange | fx.Trouble) -> None:
    queues = () if isinstance(change, fx.Trouble) else change.queues
    log.warning(
        "a listener has not returned yet; the other hooks wait for it, and so do its queues",
        listener=getattr(hook, "__qualname__", repr(hook)),
        kind=type(change).__name__,
        queues=", ".join(map(str, queues)),
    )
