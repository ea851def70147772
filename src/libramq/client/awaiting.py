"""Awaiting: how coroutines wait for callbacks, and for work that cancellation must not interrupt."""

import asyncio
from collections.abc import Callable, Coroutine
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


async def to_the_end(work: Coroutine[Any, Any, None], hurry: Callable[[], object]) -> None:
    """Wait for work that is done to its end, however often the waiter is cancelled.

    The first time it is told to hurry, and still waited for; after the second it goes on by itself.
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
