"""The waiting for messages: connects the fetch buffer, which the network thread fills, with the user's loop.

network thread ─► deliver ─► buffer ─► wake ─► the task that waits on the user's loop
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from libramq.client.consuming.fetching.fetch_buffer import FetchBuffer
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.ownership.owned_queue import Delivery


class FetchWaiting:
    """The receiver of messages for a program that fetches them."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Delivery, Ending], None],
        loop_closed: Callable[[], None],
    ) -> None:
        self.buffer = FetchBuffer(report, self._wake_soon)
        self._loop = loop
        self._loop_closed = loop_closed
        self._waiter: asyncio.Future[None] | None = None
        self._has_changed = False

    # Called on the network thread.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Take what was pulled."""
        self.buffer.put(deliveries)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: nobody waits for the program's code."""

    def kept_out(self) -> None:
        """Wake the program, which will look at the problem."""
        self._has_changed = True
        self._wake_soon()

    # Called by the program.

    def is_current(self) -> bool:
        """Return False: there are no handlers."""
        return False

    @property
    def is_awaited(self) -> bool:
        """Return whether a task waits for messages."""
        return self._waiter is not None

    def now(self) -> float:
        """Return the time of the user's loop, in seconds."""
        return self._loop.time()

    async def wait(self, until: float | None) -> bool:
        """Wait until something has arrived or changed; return False when the time is over."""
        self._waiter = waiter = self._loop.create_future()
        try:
            if self.buffer.has_arrivals or self._has_changed:  # Before it could see us wait.
                return True
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
            self._has_changed = False
        return True

    def close(self) -> None:
        """Wake the program: nothing more comes. Called on any thread."""
        self._has_changed = True
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waiter is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # It is closed.
            self._loop_closed()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            with contextlib.suppress(asyncio.InvalidStateError):  # Woken already.
                waiter.set_result(None)
