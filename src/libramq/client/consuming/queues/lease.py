"""The lease: until when a member of a coordinated group may start handlers and commit without having heard
from its coordinator.

It holds for one session, counted from the sending of the last request that the coordinator answered; so it
expires before the coordinator gives our queues to others, even if the process was stopped meanwhile. Handlers
check it on their own threads at the current time: a process that wakes up starts nothing before it has heard
from the coordinator. Outside coordinated groups the lease has no end.
Ours.
"""

from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs

#: The end of a lease without end.
FOREVER: Final = MonotonicMs(2**63)


class Lease:
    """The lease: written by the core, read by any thread."""

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs]) -> None:
        self.monotonic_ms = monotonic_ms
        self._until_ms = FOREVER

    @property
    def until_ms(self) -> MonotonicMs:
        """Return when it ends."""
        return self._until_ms

    def holds(self) -> bool:
        """Return whether handlers may begin and offsets be committed."""
        return self.holds_at(self.monotonic_ms())

    def holds_at(self, now_ms: MonotonicMs) -> bool:
        """Return whether the lease holds at a time that was just read."""
        return now_ms < self._until_ms

    def renew(self, until_ms: MonotonicMs) -> None:
        """Extend the lease after an answer of the coordinator."""
        self._until_ms = until_ms

    def lift(self) -> None:
        """Remove the end: no coordinator decides about our queues."""
        self._until_ms = FOREVER
