"""Fakes for tests of several packages: a clock turned by hand, a peer that keeps what it is sent."""

from libramq.clock import MonotonicMs, WallMs
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameReader


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> WallMs:
        return self._wall_ms

    def monotonic_ms(self) -> MonotonicMs:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        self._wall_ms += milliseconds
        self._monotonic_ms += milliseconds

    def set_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._wall_ms += by_ms


class FakePeer:
    """The other end of a connection; `replies` are the commands written to it."""

    def __init__(self, address: str = "127.0.0.1:50000") -> None:
        self.address = address
        self.is_open = True
        self.close_reason: str | None = None
        self.replies: list[Command] = []
        self._reader = FrameReader()

    def write(self, data: bytes) -> None:
        self.replies.extend(self._reader.receive(data))

    def close(self, reason: str) -> None:
        self.is_open = False
        self.close_reason = reason
