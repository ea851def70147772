"""The store of processed messages: keys, each claimed by a running handler, or done.

          claim                done
unknown ────────► claimed ────────────► done ───► unknown, after its retention time
                     └──► unknown: released after a failure, or its lease has expired
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

#: Ours: how soon a message that another handler has claimed is looked at again, at the latest.
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

    It may have `lease_ms: int`: for how long a claim holds. A message that is BUSY comes again after that
    time, or BUSY_MS_MAX if that is less.
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
