"""Effects: everything that leaves an engine, through one door.

    Send     bytes for a connection
    Close    the end of a connection, with a reason that is logged
    Ask      a request to another process; its answer comes back as an event
    Run      work for a thread: a disk plan, the decoding of a large body; its result comes back as an event
    Proceed  work on the engine's own thread that takes longer than a turn, in steps between which others go
    Listen   begin to accept connections

An effect is a cheap value: a msgspec Struct is made in 0.1 µs, where a frozen dataclass takes 0.6 µs.
"""

import enum
from collections.abc import Callable, Generator
from typing import Any, Protocol

import msgspec

from libramq.kernel.connection import Connection


class Thread(enum.Enum):
    """Where work runs. What is in one row waits for nothing in another."""

    FLUSH = "flush"  # The commit log's flushes; producers wait for them.
    DISK = "disk"  # Tables, journals, consume queues; nobody waits.
    READ = "read"  # Stretches of files that are not in the page cache; consumers wait.
    COMPUTE = "compute"  # Encoding and decoding of large bodies.


class Question(Protocol):
    """A request to another process, in whichever protocol that speaks."""

    @property
    def address(self) -> str:
        """Where it goes, as "host:port"."""
        ...

    @property
    def timeout_ms(self) -> int:
        """How long the answer may take."""
        ...

    def command(self) -> Any:
        """Return the request."""
        ...

    def done(self, outcome: Any) -> None:
        """Take the answer, or the LibraError that came instead; called once."""
        ...


class Send(msgspec.Struct, frozen=True):
    """Send bytes to a connection; nothing happens where that has ended."""

    connection: Connection
    data: bytes


class Close(msgspec.Struct, frozen=True):
    """End a connection when what was sent before has left."""

    connection: Connection
    reason: str


class Ask(msgspec.Struct, frozen=True):
    """Make a request of another process."""

    question: Question


class Run(msgspec.Struct, frozen=True):
    """Run `work` on a thread; `done` gets its result, or the exception that it raised.

    connection: whose request it is for. A connection has a bounded number of them under way, and is served no
    further meanwhile.
    """

    thread: Thread
    work: Callable[[], Any]
    done: Callable[[Any], None]
    connection: Connection | None = None


class Proceed(msgspec.Struct, frozen=True):
    """Run steps to their end, a turn at a time; their connection is served no further meanwhile.

    They run to their end even where the connection ends before.
    """

    connection: Connection
    steps: Generator[None]


class Listen(msgspec.Struct, frozen=True):
    """Begin to accept connections; `done` is called once that is so."""

    done: Callable[[], None]


Effect = Send | Close | Ask | Run | Proceed | Listen


class Effects:
    """The door: effects in the order in which they were decided."""

    __slots__ = ("add", "pending")

    def __init__(self) -> None:
        self.pending: list[Effect] = []
        self.add = self.pending.append

    def send(self, connection: Connection, data: bytes) -> None:
        """Send bytes to a connection."""
        self.add(Send(connection, data))

    def close(self, connection: Connection, reason: str) -> None:
        """End a connection."""
        self.add(Close(connection, reason))

    def ask(self, question: Question) -> None:
        """Make a request of another process."""
        self.add(Ask(question))

    def run(
        self,
        thread: Thread,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        connection: Connection | None = None,
    ) -> None:
        """Run work on a thread, for a connection's request or for nobody."""
        self.add(Run(thread, work, done, connection))

    def proceed(self, connection: Connection, steps: Generator[None]) -> None:
        """Run steps for a connection's request, a turn at a time."""
        self.add(Proceed(connection, steps))

    def take(self) -> list[Effect]:
        """Take what has been decided since the last call."""
        taken = self.pending.copy()
        self.pending.clear()
        return taken
