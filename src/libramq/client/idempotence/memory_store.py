"""The store in memory: for one process and its lifetime. The oldest keys are forgotten first."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from libramq.client.idempotence.store import ClaimResult
from libramq.errors import ConfigError

#: Ours: about 20 MB of keys.
CAPACITY: Final = 100_000


class MemoryStore:
    """Remembers up to `capacity` keys. Claims need no lease: they cannot outlive their handler."""

    is_blocking = False

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ConfigError(f"a store of {capacity} keys remembers nothing; give it at least 1")
        self._capacity = capacity
        self._claimed: dict[str, str] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._done)

    def claim(self, keys: Sequence[str], owner: str) -> list[ClaimResult]:
        """Claim keys for an owner."""
        with self._lock:
            return [self._claim(key, owner) for key in keys]

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
                if self._claimed.get(key) == owner:
                    del self._claimed[key]

    def _claim(self, key: str, owner: str) -> ClaimResult:
        if key in self._done:
            return ClaimResult.DONE
        return ClaimResult.NEW if self._claimed.setdefault(key, owner) == owner else ClaimResult.BUSY
