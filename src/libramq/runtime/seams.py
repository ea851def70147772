"""The three seams between an engine and the world: network, timers, threads. Each is real or simulated."""

from collections.abc import Callable
from typing import Any, Protocol

from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread


class Channel(Connection, Protocol):
    """A connection as a performer sees it: it writes, and knows how much has not left yet."""

    @property
    def unsent_bytes(self) -> int:
        """How many bytes that were written have not left."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; never waits, never raises for a connection that has ended."""
        ...

    def close(self, reason: str) -> None:
        """End the connection when what was written has left; the reason is logged."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection now, whatever has not left yet."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...


class Remotes(Protocol):
    """Connections that we make, by address."""

    def send(self, address: str, request: Any, done: Callable[[Any], None], *, timeout_ms: int = ...) -> None:
        """Make a request; `done` is called exactly once, with the answer or a RemoteError."""
        ...


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Do not call it."""
        ...


class Timers(Protocol):
    """Time, from outside."""

    def after(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        """Call something later."""
        ...

    def elapsed_us(self) -> int:
        """Microseconds since a fixed moment, to measure turns with."""
        ...


class Threads(Protocol):
    """Where work runs that may wait for a disk or take long."""

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work; `done` gets its result or its exception, on the engine's own thread."""
        ...
