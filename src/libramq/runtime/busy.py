"""Busy connections: a thread works for them, steps are under way, or a large request waits for room.

They are not served meanwhile.
"""

from collections import deque
from collections.abc import Generator, Mapping
from typing import Final

from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread

#: Ours: how much work one connection may have under way. A large body is decoded before the next request is
#: looked at, so that requests take effect in order; 16 cold reads of the usual 256 KiB keep four threads
#: busy.
RUNS_MAX: Final[Mapping[Thread, int]] = {Thread.COMPUTE: 1, Thread.READ: 16}


class _Work:
    __slots__ = ("runs", "steps", "waits")

    def __init__(self) -> None:
        self.runs: dict[Thread, int] = {}
        self.steps: deque[Generator[None]] = deque()
        self.waits = 0


class Busy:
    """Work under way by connection."""

    def __init__(self) -> None:
        self._work: dict[Connection, _Work] = {}
        #: Whether anything is under way: seldom, and every request checks it.
        self.is_any = False

    def is_full(self, connection: Connection) -> bool:
        """Return whether a connection has to wait for its work under way."""
        work = self._work.get(connection)
        if work is None:
            return False
        return bool(work.steps or work.waits) or any(
            count >= RUNS_MAX.get(thread, count + 1) for thread, count in work.runs.items()
        )

    def began(self, connection: Connection, thread: Thread) -> None:
        """Note that a thread works for a connection."""
        runs = self._of(connection).runs
        runs[thread] = runs.get(thread, 0) + 1

    def ended(self, connection: Connection, thread: Thread) -> None:
        """Note that a thread has finished its work for a connection."""
        self._work[connection].runs[thread] -= 1
        self._clean(connection)

    def wait(self, connection: Connection) -> None:
        """Note that a large request waits for room."""
        self._of(connection).waits += 1

    def admitted(self, connection: Connection) -> None:
        """Note that a large request has got its room."""
        self._work[connection].waits -= 1
        self._clean(connection)

    def add_steps(self, connection: Connection, steps: Generator[None]) -> bool:
        """Add steps after those under way; return whether none was under way."""
        waiting = self._of(connection).steps
        waiting.append(steps)
        return len(waiting) == 1

    def steps(self, connection: Connection) -> Generator[None] | None:
        """Return a connection's current steps."""
        work = self._work.get(connection)
        return work.steps[0] if work is not None and work.steps else None

    def stepped(self, connection: Connection) -> None:
        """Remove a connection's first steps, which have ended."""
        self._work[connection].steps.popleft()
        self._clean(connection)

    def _of(self, connection: Connection) -> _Work:
        self.is_any = True
        return self._work.setdefault(connection, _Work())

    def _clean(self, connection: Connection) -> None:
        work = self._work[connection]
        if not work.steps and not work.waits and not any(work.runs.values()):
            del self._work[connection]
            self.is_any = bool(self._work)
