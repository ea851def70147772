"""The store of processed messages: how long a running handler claims a key (lease), and how long and how many
done keys are remembered.

          claim                done
unknown ────────► claimed ────────────► done ───► unknown, after its retention time
                     └──► unknown: released after a failure, or its lease has expired
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from libramq.clock import Clock, MonotonicMs, SystemClock
from libramq.errors import ConfigError

#: Ours: the longest delay before a message that another handler has claimed is redelivered.
BUSY_MS_MAX: Final = 30_000
#: Ours: longer than most handlers take. A dead process's claim blocks its message for this long.
LEASE_MS: Final = 30_000
#: BrokerConfig.fileReservedTime: brokers keep messages 72 hours, after which none can be redelivered.
KEEP_MS: Final = 72 * 60 * 60 * 1000


class ClaimResult(Enum):
    """The outcome of a claim. BUSY: another handler is processing the message, here or elsewhere."""

    NEW = "new"
    BUSY = "busy"
    DONE = "done"


class Store(Protocol):
    """A store, called from any thread. If it raises, the handler fails and its messages are redelivered.

    It may have `lease_ms: int`: how long a claim holds. A BUSY message is redelivered after that time, or
    after BUSY_MS_MAX if that is less.
    """

    #: Whether calls may wait for a disk or another machine; coroutines then make them on a thread.
    is_blocking: bool

    def claim(self, keys: Sequence[str], owner: str) -> list[ClaimResult]:
        """Claim keys for an owner; no two owners get NEW for one key until it is released."""
        ...

    def done(self, keys: Sequence[str], owner: str) -> None:
        """Mark keys as done: the handler has succeeded."""
        ...

    def release(self, keys: Sequence[str], owner: str) -> None:
        """Release the owner's claims: the handler has failed."""
        ...


#: Ours: about 20 MB of keys.
CAPACITY: Final = 100_000
#: A PushConsumer's consume_timeout_ms: by then it has abandoned the handler.
MEMORY_LEASE_MS: Final = 15 * 60 * 1000


class MemoryStore:
    """Remembers up to `capacity` keys. lease_ms: how long a handler that does not return blocks others."""

    is_blocking = False

    def __init__(
        self, capacity: int = CAPACITY, *, lease_ms: int = MEMORY_LEASE_MS, clock: Clock | None = None
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"a store of {capacity} keys remembers nothing; give it at least 1")
        self._capacity = capacity
        self.lease_ms = lease_ms
        self._clock = clock or SystemClock()
        self._claimed: dict[str, tuple[str, MonotonicMs]] = {}  # The owner and the expiry.
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
