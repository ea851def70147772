"""The alarm: one timer of the event loop for whatever is due next."""

import asyncio
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: timers are not finer, and what is always due does not keep the loop from everything else.
DELAY_MS_MIN: Final = 1
#: Ours: how soon what failed is tried again.
AGAIN_MS: Final = 1_000


class Alarm:
    """Calls `ring` at the earliest time that was asked for; then somebody has to ask again.

    What `ring` raises is logged, and it is called again a second later. Times are monotonic.
    """

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs], ring: Callable[[], None]) -> None:
        self._monotonic_ms = monotonic_ms
        self._ring = ring
        self._due_ms: MonotonicMs | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ring_by(self, due_ms: MonotonicMs | None) -> None:
        """Ring at that time at the latest; None: no need."""
        if due_ms is None or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self.cancel()
        self._due_ms = due_ms
        delay_ms = max(DELAY_MS_MIN, due_ms - self._monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._rung)

    def cancel(self) -> None:
        """Do not ring."""
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rung(self) -> None:
        self.cancel()
        try:
            self._ring()
        except Exception:
            log.exception("work that was due failed; tried again")
            self.ring_by(self._monotonic_ms() + AGAIN_MS)
