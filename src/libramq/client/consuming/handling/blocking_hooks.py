"""The hooks of blocking clients: plain functions run on threads, where they may wait."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from libramq.client.awaiting import awaited
from libramq.client.network_thread import run_on_thread

#: The options that are called with queues; plain functions among them run on threads that may wait.
HOOKS: Final[tuple[Literal["on_assigned", "on_revoked", "on_lost", "on_error"], ...]] = (
    "on_assigned", "on_revoked", "on_lost", "on_error",
)  # fmt: skip


def on_thread(hook: Callable[..., Any], threads: set[int] | None = None) -> Callable[..., Any]:
    """Wrap a plain function so that it runs on a thread; a coroutine function is returned as it is.

    threads: has the thread's identifier while it runs.
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
