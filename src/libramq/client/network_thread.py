"""A thread with its own event loop, for work that must continue while the user's code blocks.

No call waits for its own thread, nor for a thread that does not exist here: deadlocks are refused.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar, cast

from libramq.errors import LocalProtocolError
from libramq.logs import get_logger
from libramq.transport.asyncio_remotes import FORKED

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: how long cancelled tasks may take to end; a user's handler may never end.
CANCEL_SECONDS: Final = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest available loop."""
    try:
        import uvloop  # Not for Windows nor PyPy.
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class NetworkThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        #: Whether it was started before a fork, in the parent process.
        self.is_parents = False
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _threads.add(self)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs on this thread, so that it must not wait for it."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; the future has its result. Raises LocalProtocolError."""
        if self.is_parents:
            work.close()
            raise LocalProtocolError(FORKED)
        with self._lock:
            if self._is_open:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise LocalProtocolError("this client has been stopped")

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the thread. Raises LocalProtocolError."""
        if self.is_parents:
            raise LocalProtocolError(FORKED)
        with self._lock:
            if self._is_open:
                self.loop.call_soon_threadsafe(function)
                return
        raise LocalProtocolError("this client has been stopped")

    def stop(self) -> None:
        """End the thread; called from another one. Does nothing in the child of a fork."""
        if self.is_parents:
            return
        with self._lock:
            if self._is_open:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def end(self) -> None:
        """End the thread after its current work; called on it."""
        self.loop.call_soon(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            with self._lock:  # Later calls are refused; earlier ones are completed below.
                self._is_open = False
            self.loop.run_until_complete(_cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self._is_open = False
            self.loop.close()


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # So that submitted coroutines become tasks.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CANCEL_SECONDS
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        if loop.time() >= deadline:
            log.warning("tasks ignore their cancellation and are abandoned", tasks=len(tasks))
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=deadline - loop.time())


async def run_on_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that may block, on its own daemon thread."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # The caller no longer waits.
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    def call() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except StopIteration as raised:  # No future takes it: its waiter would wait for ever.
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=call, name="libramq-hook", daemon=True).start()
    return await outcome


_threads: weakref.WeakSet[NetworkThread] = weakref.WeakSet()


def _forked() -> None:
    for thread in _threads:
        thread.is_parents = True


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
