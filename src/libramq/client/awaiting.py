"""Awaiting: how coroutines wait for callbacks, and for work that a cancellation must not interrupt."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from libramq.errors import LibraError

T = TypeVar("T")

#: Work that continues without a waiter: the loop itself does not keep tasks alive.
_released: set[asyncio.Task[Any]] = set()


async def answer_of(ask: Callable[[Callable[[T | LibraError], None]], object]) -> T:
    """Make a request and return its answer; raises it if it is a LibraError."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answered(outcome: T | LibraError) -> None:
        if future.done():  # The waiting task was cancelled.
            return
        if isinstance(outcome, LibraError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    ask(answered)
    return await future


async def all_of(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently; a single one in the caller's task, as a new task starts a loop turn later."""
    if len(works) == 1:
        await works[0]
    else:
        await asyncio.gather(*works)


async def to_the_end(work: Coroutine[Any, Any, None], hurry: Callable[[], object]) -> None:
    """Wait for work that completes even if the waiter is cancelled.

    The first cancellation calls `hurry` and waits on; after a second one the work continues by itself.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            hurry()
            _released.add(task)
            task.add_done_callback(_released.discard)
            await asyncio.wait([task])
        raise


async def awaited(returned: object) -> object:
    """Return the final result of an awaitable, and anything else unchanged."""
    while inspect.isawaitable(returned):
        returned = await returned
    return returned


def current_task() -> asyncio.Task[object] | None:
    """Return the task that the caller runs in, if any."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # No loop runs on this thread.
        return None


def is_from_outside(error: BaseException) -> bool:
    """Return whether an exception came from outside: the task is cancelled, or the user pressed Ctrl-C."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
