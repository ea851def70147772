"""The store in memory: for one process and its lifetime. The oldest keys are forgotten first."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from libramq.client.idempotence.store import ClaimResult
from libramq.clock import Clock, MonotonicMs, SystemClock
from libramq.errors import ConfigError

#: Ours: about 20 MB of keys.
CAPACITY: Final = 100_000
#: A PushConsumer's consume_timeout_ms: by then it has abandoned the handler.
LEASE_MS: Final = 15 * 60 * 1000


class MemoryStore:
    """Remembers up to `capacity` keys. lease_ms: how long a handler that does not return blocks others."""

    is_blocking = False

    def __init__(
        self, capacity: int = CAPACITY, *, lease_ms: int = LEASE_MS, clock: Clock | None = None
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"a store of {capacity} keys remembers nothing; give it at least 1")
        self._capacity = capacity
        self.lease_ms = lease_ms
        self._clock = clock or SystemClock()
        self._claimed: dict[str, tuple[str, MonotonicMs]] = {}  # The owner, and until when.
        self._done: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._done)

    def claim(self, keys: Sequence[str], owner: str) -> list[ClaimResult]:
        """Claim keys for an owner."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            return [self._claim(key, owner, now_ms) for key in keys]

    def done(self, keys: Sequence[str], owner: str) -> None:
        """Mark keys as done: the handler has succeeded."""
        with self._lock:
            for key in keys:
                self._claimed.pop(key, None)
                self._done[key] = None
                self._done.move_to_end(key)
            while len(self._done) > self._capacity:
                self._done.popitem(last=False)

    def release(self, keys: Sequence[str], owner: str) -> None:
        """Release keys: the handler has failed."""
        with self._lock:
            for key in keys:
                if self._claimed.get(key, ("",))[0] == owner:
                    del self._claimed[key]

    def _claim(self, key: str, owner: str, now_ms: MonotonicMs) -> ClaimResult:
        if key in self._done:
            return ClaimResult.DONE
        claim = self._claimed.get(key)
        if claim is not None and claim[0] != owner and now_ms < claim[1]:
            return ClaimResult.BUSY
        self._claimed[key] = owner, now_ms + self.lease_ms
        return ClaimResult.NEW
