"""A thread with an event loop of its own, for what must go on while the user's code blocks."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest loop there is."""
    try:
        import uvloop  # Not for Windows nor PyPy.
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class NetworkThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; the future says how it ended."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """End the thread; called from any other one."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def end(self) -> None:
        """End the thread after what runs now; called on it."""
        self.loop.call_soon(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
