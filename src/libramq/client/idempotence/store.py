"""The store of what was handled: keys, each claimed by a handler at work, or done.

          claim                done
unknown ────────► claimed ────────────► done ───► unknown, when it is kept no longer
                     └──► unknown: released after a failure, or its lease ran out
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

#: Ours: longer than most handlers take. A claim of a process that died holds up its message so long.
LEASE_MS: Final = 30_000
#: BrokerConfig.fileReservedTime: brokers keep messages 72 hours, after which none can come again.
KEEP_MS: Final = 72 * 60 * 60 * 1000


class Claim(Enum):
    """The outcome of a claim. BUSY: another handler is at it, here or elsewhere."""

    NEW = "new"
    BUSY = "busy"
    DONE = "done"


class Store(Protocol):
    """Called from any thread. What it raises makes the handler fail, so that the messages come again."""

    #: Whether calls may wait for a disk or another machine; coroutines then make them on a thread.
    is_blocking: bool

    def claim(self, keys: Sequence[str], owner: str) -> list[Claim]:
        """Claim keys for an owner; no two get NEW for one key until it is released."""
        ...

    def done(self, keys: Sequence[str], owner: str) -> None:
        """The handler has succeeded."""
        ...

    def release(self, keys: Sequence[str], owner: str) -> None:
        """The handler has failed: give back what the owner has claimed."""
        ...
