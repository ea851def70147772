"""Event loops for tests of the shells: scenarios run on asyncio's loop and on uvloop, as in production."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(loop: str, scenario: Callable[[], Coroutine[Any, Any, None]], *, seconds: float = 60) -> None:
    """Run a scenario to its end; it also fails on an unhandled exception in a callback."""
    unseen: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(seconds):
            await scenario()

    with warnings.catch_warnings(), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        try:
            runner.run(watched())
        except BaseException:
            # Transports that a failed scenario leaves open warn when the loop closes. Where warnings are
            # errors, uvloop then waits for these transports forever, and no signal ends that.
            warnings.simplefilter("ignore", ResourceWarning)
            raise
    assert unseen == []


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition without an event holds; the scenario's deadline applies."""
    pause_s = 0.001
    while not condition():
        await asyncio.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 0.02)  # A wait of seconds should use less processor time.


async def until_asked(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Poll a condition that requires a request until it holds."""
    while not await condition():  # noqa: ASYNC110 - Another process decides.
        await asyncio.sleep(0.005)
