"""The lock of an owned queue, at the broker that stores it (orderly consumption).

A lock holds 60 s at the broker and is trusted 30 s here, counted from its request.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from libramq.clock import MonotonicMs

#: ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME.
LOCK_TRUSTED_MS: Final = 30_000


class LockStatus(Enum):
    """A lock, as far as its member knows."""

    NOT_NEEDED = "not needed"
    WANTED = "wanted"
    HELD = "held"
    IN_DOUBT = "in doubt"


@dataclass(frozen=True, slots=True)
class QueueLock:
    """A lock. address: where it was requested last, which may be in no route any more when it is returned."""

    status: LockStatus = LockStatus.NOT_NEEDED
    address: str = ""
    refusals: int = 0
    until_ms: MonotonicMs = MonotonicMs(0)

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the broker may have given it away."""
        return self.status is LockStatus.IN_DOUBT

    @property
    def is_held(self) -> bool:
        """Return whether no other member can read the queue, as far as locks are concerned."""
        return self.status in (LockStatus.HELD, LockStatus.NOT_NEEDED)

    def wanted(self) -> Self:
        """Return the lock of a queue that needs one."""
        return replace(self, status=LockStatus.WANTED)

    def requested(self, address: str) -> Self:
        """Return the lock after a request to a broker."""
        return replace(self, address=address)

    def granted(self, requested_ms: MonotonicMs) -> Self:
        """Return the lock after the broker has granted it, or renewed it; a doubt needs more than that."""
        status = self.status if self.is_in_doubt else LockStatus.HELD
        return replace(self, status=status, until_ms=requested_ms + LOCK_TRUSTED_MS)

    def confirmed(self) -> Self:
        """Return the lock when nobody else has read the queue meanwhile."""
        return replace(self, status=LockStatus.HELD)

    def refused(self) -> Self:
        """Return the lock after another refusal."""
        return replace(self, refusals=self.refusals + 1)

    def doubted(self) -> Self:
        """Return the lock when the broker may give it away."""
        return replace(self, status=LockStatus.IN_DOUBT)


def reserved(address: str) -> QueueLock:
    """Return the lock of a queue that was open under an epoch: brokers reserve it until it is locked."""
    return QueueLock(LockStatus.HELD, address)
