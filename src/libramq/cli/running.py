"""Running: the event loop of a command, and the signals that stop a server."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Service(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None:
        """Start; raises LibraError."""

    async def stop(self) -> None:
        """Stop gracefully."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result


class StopSignal:
    """SIGINT and SIGTERM as an awaitable event. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._arrive)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._arrived.wait()

    def _arrive(self) -> None:
        self._arrived.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # Python's handler would print a traceback and continue.
