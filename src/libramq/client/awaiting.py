"""Awaiting: how coroutines wait for what is answered by a call."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from libramq.errors import LibraError

T = TypeVar("T")


async def answer_of(ask: Callable[[Callable[[T | LibraError], None]], object]) -> T:
    """Ask, and wait for the answer; raises it when it is a LibraError."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def answered(outcome: T | LibraError) -> None:
        if future.done():  # Whoever waited has been cancelled.
            return
        if isinstance(outcome, LibraError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    ask(answered)
    return await future
