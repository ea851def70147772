"""The gate: something outside that answers wait for, as the disk or the name servers."""

from typing import Protocol

from libramq.clock import MonotonicMs
from libramq.kernel.purgatory import Parked


class Gated(Parked):
    """Answers of one connection that wait at a gate."""

    __slots__ = ()

    def succeed(self) -> None:
        """Answer: what was waited for has come."""
        raise NotImplementedError

    def fail(self) -> None:
        """Answer: what was waited for has not come."""
        raise NotImplementedError

    def expire(self, now_ms: MonotonicMs) -> None:
        """Answer: the time is up."""
        self.fail()


class Gate(Protocol):
    """Something outside that answers wait for."""

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park answers until the gate opens; may let them through at once."""
        ...
