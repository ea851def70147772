"""The three seams between an engine and the outside: the interfaces of network, timers and threads, real or
simulated.

The network has two parts: `Remotes` asks questions, `Dialer` makes connections for streams of bytes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from libramq.errors import RemoteError
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread


class Channel(Connection, Protocol):
    """A connection as a performer sees it: it can be written to, and reports how much has not left yet."""

    @property
    def unsent_bytes(self) -> int:
        """Return the number of written bytes that have not left yet."""
        ...

    @property
    def leaving_bytes(self) -> int:
        """Return how many of these are being sent, regardless of whether the client reads."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; never waits, never raises for a connection that has ended."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection after all written data has left; the reason is logged."""
        ...

    def abort(self, reason: str) -> None:
        """Close the connection now, dropping data that has not left yet."""
        ...

    def pause_reading(self) -> None:
        """Stop reading for now."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...


class Remotes(Protocol):
    """Our own connections, by address."""

    def send(self, address: str, request: Any, done: Callable[[Any], None], *, timeout_ms: int = ...) -> None:
        """Send a request; `done` is called exactly once, with the answer or a RemoteError."""
        ...


class Link(Protocol):
    """A connection that a dialer made."""

    def write(self, data: bytes) -> None:
        """Send bytes; never waits, never raises for a connection that has ended."""
        ...

    def close(self) -> None:
        """Close the connection after all written data has left."""
        ...

    def abort(self) -> None:
        """Close the connection now, dropping data that has not left yet."""
        ...


class Dialed(Protocol):
    """The observer of a connection attempt: opened, then ended; or refused."""

    def opened(self, link: Link) -> None:
        """Use the connection from now on."""
        ...

    def received(self, data: bytes) -> None:
        """Handle the bytes of one read."""
        ...

    def ended(self, reason: str) -> None:
        """Handle the end of the connection, whichever side closed it."""
        ...

    def refused(self, error: RemoteError) -> None:
        """Handle a failed attempt."""
        ...


@runtime_checkable
class Filled(Protocol):
    """An observer with its own buffer, into which a dialer may receive instead of calling `received`."""

    #: The buffer for the next bytes; it always has room.
    room: memoryview

    def filled(self, nbytes: int) -> None:
        """Handle the bytes of one read, which are in `room`."""
        ...


class Dialer(Protocol):
    """Makes connections."""

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect; `dialed` gets the result."""
        ...


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class Timers(Protocol):
    """Time."""

    def after(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        """Call a function later."""
        ...

    def soon(self, action: Callable[[], None]) -> None:
        """Call a function after the events that are ready now."""
        ...

    def elapsed_us(self) -> int:
        """Return the microseconds since a fixed moment, for measuring turns."""
        ...


class Threads(Protocol):
    """Threads for work that may wait for a disk or take long."""

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work; `done` gets its result or its exception, on the engine's own thread."""
        ...

    def run_brief(self, work: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        """Run work on the engine's own thread if it is fast; return whether `done` was called."""
        ...


class Seams(NamedTuple):
    """The seams of one engine.

    threads: None for an engine without work for them. dialer: None for one that makes no connections for
    streams of bytes.
    """

    remotes: Remotes
    timers: Timers
    threads: Threads | None = None
    dialer: Dialer | None = None
