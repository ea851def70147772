"""A share of the process's network thread, on which all of its consumers run: a thousand take one thread.

The thread starts with the first share and ends with the last.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from libramq.client.network_thread import STOPPED, NetworkThread
from libramq.errors import LocalProtocolError

T = TypeVar("T")

THREAD_NAME: Final = "libramq-network"


class SharedThread:
    """The thread of this process, and how many share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: NetworkThread | None = None
        self.shares = 0


_shared = SharedThread()


def _forked() -> None:
    """Begin again in the child, where the thread does not exist and the lock may be held for ever."""
    global _shared  # noqa: PLW0603
    _shared = SharedThread()


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)


class NetworkShare:
    """One client's share of the thread: what it runs ends with it, whatever the others do."""

    def __init__(self) -> None:
        self._shared = shared = _shared
        with shared.lock:
            if shared.thread is None:
                thread = NetworkThread(THREAD_NAME)
                thread.start()
                shared.thread = thread
            shared.shares += 1
            self._thread = shared.thread
        self._is_open = True
        self._running: set[Future[Any]] = set()

    @property
    def is_parents(self) -> bool:
        """Return whether it was made before a fork, in the parent process."""
        return self._thread.is_parents

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; the future has its result. Raises LocalProtocolError."""
        if not self._is_open:
            work.close()
            raise LocalProtocolError(STOPPED)
        future = self._thread.run(work)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        if not self._is_open:  # It was closed just now, and may not have seen this.
            future.cancel()
            raise LocalProtocolError(STOPPED)
        return future

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the thread. Raises LocalProtocolError."""
        if not self._is_open:
            raise LocalProtocolError(STOPPED)
        self._thread.call_soon(lambda: self._is_open and function())

    def stop(self) -> None:
        """Cancel what runs, and give the share back; called from another thread."""
        if self.is_parents or not self._close():
            return
        for future in tuple(self._running):
            future.cancel()
        if self._give_back():
            self._thread.stop()
        else:
            with contextlib.suppress(LocalProtocolError):  # The others have stopped too: it ends.
                self._thread.run(_cancellations()).result()

    def end(self) -> None:
        """Give the share back after the current work; called on the thread."""
        if self._close() and self._give_back():
            self._thread.end()

    def _close(self) -> bool:
        with self._shared.lock:
            was_open, self._is_open = self._is_open, False
        return was_open

    def _give_back(self) -> bool:
        """Return whether it was the last one, so that the thread is to end."""
        with self._shared.lock:
            self._shared.shares -= 1
            if self._shared.shares:
                return False
            self._shared.thread = None
            return True


async def _cancellations() -> None:
    """Let cancelled tasks of this turn, and what they await, end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
