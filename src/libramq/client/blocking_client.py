"""The blocking client: an asynchronous one on a thread of its own, whose methods wait for their results.

A call that could only wait for itself, or for a thread that does not exist here, is refused.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, ClassVar, Self, TypeVar

from libramq.client.network_thread import NetworkThread
from libramq.errors import LocalProtocolError
from libramq.transport.asyncio_remotes import FORKED

T = TypeVar("T")


class BlockingClient:
    """An asynchronous client on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: NetworkThread | None = None
        self._change = threading.Lock()  # Held during start and stop.

    def start(self) -> None:
        """Start the client."""
        self._refuse("start", self._thread)
        with self._change:
            if self._thread is not None:
                raise LocalProtocolError(f"this {self._name} runs already")
            thread = self._thread = NetworkThread(f"libramq-sync-{self._name}")
            try:
                thread.run(self._start()).result()
            except BaseException:
                thread.stop()
                self._thread = None
                raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the client. In the child of a fork this does nothing: the client is the parent's."""
        thread = self._thread
        if thread is None or thread.is_parents:
            return
        self._refuse("stop", thread)
        with self._change:
            thread = self._thread
            if thread is None:
                return
            try:
                thread.run(self._stop()).result()
            finally:
                thread.stop()
                self._thread = None

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError

    def _wait(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a method on the thread and wait for its result. what: its name."""
        try:
            thread = self._running(what)
        except LocalProtocolError:
            work.close()
            raise
        try:
            return thread.run(work).result()
        except (CancelledError, asyncio.CancelledError):
            raise LocalProtocolError(
                f"this {self._name} was stopped before {what}() ended; whether it took effect is not known"
            ) from None

    def _running(self, what: str) -> NetworkThread:
        thread = self._thread
        if thread is None:
            raise LocalProtocolError(f"this {self._name} does not run; use `with` or start()")
        self._refuse(what, thread)
        return thread

    def _refuse(self, what: str, thread: NetworkThread | None) -> None:
        """Raise LocalProtocolError if the call would wait forever."""
        if thread is not None and thread.is_current:
            raise LocalProtocolError(
                f"{what}() on the {self._name}'s own thread would wait for itself forever; {self._advice}"
            )
        if thread is not None and thread.is_parents:
            raise LocalProtocolError(FORKED)

    _advice: ClassVar[str] = "call it on another thread"
