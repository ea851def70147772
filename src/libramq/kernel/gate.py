"""The gate: an outside condition that replies wait for, such as the disk or the name servers."""

import enum
from typing import Protocol

from libramq.clock import MonotonicMs
from libramq.kernel.purgatory import Parked


class Missing(enum.Enum):
    """The reason why a gate did not open."""

    ANSWER = "answer"  # Of the party that was waited for: unknown.
    DISK = "disk"  # It has failed, and the store accepts no more messages.
    SLAVE = "slave"  # No slave confirmed in time.
    NO_SLAVE = "no slave"  # There was none to wait for.


class Gated(Parked):
    """Replies of one connection that wait at a gate."""

    __slots__ = ()

    def succeed(self) -> None:
        """Reply: the condition holds."""
        raise NotImplementedError

    def fail(self, missing: Missing = Missing.ANSWER) -> None:
        """Answer that the awaited condition was not met in time."""
        raise NotImplementedError

    def expire(self, now_ms: MonotonicMs) -> None:
        """Reply: the time is up."""
        self.fail()


class Gate(Protocol):
    """An outside condition that replies wait for."""

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until the gate opens; may let them through at once."""
        ...
