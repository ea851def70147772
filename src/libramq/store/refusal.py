"""The refusal: why the store accepts no messages, and for how long.

After a full disk appends are retried after a while; a failed fsync is final.
"""

from typing import Final

from libramq.clock import Clock, MonotonicMs
from libramq.errors import SyncFailed
from libramq.logs import get_logger

log = get_logger(__name__)

REFUSAL_MS: Final = 1_000  # Ours: how long appends are refused after the disk was full.
LOG_MS: Final = 60_000  # Ours: how often that is logged, as the log may be on the same disk.


class Refusal:
    """reason: None while messages are accepted."""

    def __init__(self, clock: Clock) -> None:
        self.reason: str | None = None
        self.is_final = False
        self._clock = clock
        self._since_ms = MonotonicMs(0)
        self._logged_ms: MonotonicMs | None = None

    def begin(self, reason: str) -> None:
        """Refuse for a while."""
        self.reason = reason
        self._since_ms = now_ms = self._clock.monotonic_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= LOG_MS:
            self._logged_ms = now_ms
            log.error("messages are refused, and tried again each second", reason=reason)

    def fail(self, error: SyncFailed) -> None:
        """Refuse for good: the kernel may have dropped the pages, so nothing counts as durable again."""
        self.is_final = True
        self.reason = f"{error}; restart the broker"

    def is_over(self) -> bool:
        """Return whether appends may be tried (again)."""
        if self.reason is None:
            return True
        if self.is_final or self._clock.monotonic_ms() - self._since_ms < REFUSAL_MS:
            return False
        self.reason = None
        return True
