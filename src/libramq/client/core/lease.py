"""The lease: until when a member of a coordinated group may take itself for one.

It holds for one session, counted from when the question was asked that the coordinator answered last; so it
ends before the coordinator gives our queues to others, also in a process that was stopped meanwhile. Handlers
look at it on their own threads, at the time it is then: a process that wakes up begins nothing before it has
heard from the coordinator. Who is no member of a coordinated group has a lease without end.
Ours.
"""

from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs

#: The end of a lease that does not end.
FOREVER: Final = MonotonicMs(2**63)


class Lease:
    """Written by the core, read by any thread."""

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs]) -> None:
        self.monotonic_ms = monotonic_ms
        self._until_ms = FOREVER

    def holds(self) -> bool:
        """Return whether handlers may begin and offsets be committed."""
        return self.holds_at(self.monotonic_ms())

    def holds_at(self, now_ms: MonotonicMs) -> bool:
        """The same, at a time that was just looked at."""
        return now_ms < self._until_ms

    def renew(self, until_ms: MonotonicMs) -> None:
        """The coordinator has answered."""
        self._until_ms = until_ms

    def lift(self) -> None:
        """No coordinator decides about our queues."""
        self._until_ms = FOREVER
