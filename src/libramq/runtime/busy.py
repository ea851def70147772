"""Busy connections: one with long work in progress is not served otherwise; how much memory large requests
may take at once, and which of them wait for room.

The expected memory of large requests bounds how many of them are decoded at once.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.work import UnderWay

#: Ours: the work one connection may have in progress. A large body is decoded before the next request is
#: examined, so that requests take effect in order; 16 cold reads of the usual 256 KiB keep four threads busy.
RUNS_MAX: Final[Mapping[Thread, int]] = {Thread.COMPUTE: 1, Thread.READ: 16}


class _Works:
    """ready: works whose next steps may be taken, in order. waits: the number of works that wait for room."""

    __slots__ = ("ready", "runs", "waits")

    def __init__(self) -> None:
        self.runs: dict[Thread, int] = {}
        self.ready: deque[UnderWay] = deque()
        self.waits = 0


class Busy:
    """Work in progress, by connection."""

    def __init__(self) -> None:
        self._work: dict[Connection, _Works] = {}
        #: Whether anything is in progress, which is rare; every request checks it.
        self.is_any = False

    def is_full(self, connection: Connection) -> bool:
        """Return whether a connection has to wait for its work in progress."""
        work = self._work.get(connection)
        if work is None:
            return False
        return bool(work.ready or work.waits) or any(
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

    def add(self, connection: Connection, work: UnderWay) -> bool:
        """Add work after the ready ones; return whether there were none."""
        ready = self._of(connection).ready
        ready.append(work)
        return len(ready) == 1

    def first(self, connection: Connection) -> UnderWay | None:
        """Return the work whose next step is due, if any."""
        works = self._work.get(connection)
        return works.ready[0] if works is not None and works.ready else None

    def remove_first(self, connection: Connection) -> None:
        """Remove the first ready work: it has ended, or waits."""
        self._work[connection].ready.popleft()
        self._clean(connection)

    def _of(self, connection: Connection) -> _Works:
        self.is_any = True
        return self._work.setdefault(connection, _Works())

    def _clean(self, connection: Connection) -> None:
        work = self._work[connection]
        if not work.ready and not work.waits and not any(work.runs.values()):
            del self._work[connection]
            self.is_any = bool(self._work)


#: Ours: a heartbeat of some 500 subscriptions, or the registration of 1,000 topics.
USUAL_BYTES_MAX: Final = 1024 * 1024
#: Ours: the memory that usual requests may take together.
USUAL_LANE_BYTES: Final = 16 * 1024 * 1024
#: Ours: the memory that huge requests may take together; a huge request alone may take more.
HUGE_LANE_BYTES: Final = 32 * 1024 * 1024


class _Lane:
    """Requests of similar size; connections take turns."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[Connection | None, deque[UnderWay]] = {}
        self.taken_bytes = 0

    def take(self, work: UnderWay) -> bool:
        """Take room now, or make the request wait; return whether it may begin."""
        if self._waiting or not self._has_room(work):
            self._waiting.setdefault(work.connection, deque()).append(work)
            return False
        self.taken_bytes += work.size_bytes
        return True

    def free(self, work: UnderWay) -> list[UnderWay]:
        """Return the requests that may begin, now that one has ended."""
        self.taken_bytes -= work.size_bytes
        admitted: list[UnderWay] = []
        while self._waiting:
            connection = next(iter(self._waiting))
            if not self._has_room(self._waiting[connection][0]):
                break
            waiting = self._waiting.pop(connection)
            first = waiting.popleft()
            if waiting:
                self._waiting[connection] = waiting  # After those of other connections.
            self.taken_bytes += first.size_bytes
            admitted.append(first)
        return admitted

    def _has_room(self, work: UnderWay) -> bool:
        return not self.taken_bytes or self.taken_bytes + work.size_bytes <= self._bytes_max


class LargeRequests:
    """The large requests in progress, and those waiting for them.

        it wants room ─► some in its lane? ─► it continues
                         none              ─► it waits; its connection is not served meanwhile
        it ends       ─► those that fit continue, one of each connection in turn

    A body is decoded by a thread and applied in steps, interleaved with other requests. Without a limit,
    twenty clients that registered 50,000 topics each took 713 MB, because all bodies were decoded before the
    first was applied. There are two lanes, so that usual requests do not wait for huge ones.
    """

    def __init__(self) -> None:
        self._usual = _Lane(USUAL_LANE_BYTES)
        self._huge = _Lane(HUGE_LANE_BYTES)

    def take(self, work: UnderWay) -> bool:
        """Take room now, or make the request wait; return whether it may begin."""
        return self._lane(work).take(work)

    def free(self, work: UnderWay) -> list[UnderWay]:
        """Return the requests that may begin, now that one has ended."""
        return self._lane(work).free(work)

    def _lane(self, work: UnderWay) -> _Lane:
        return self._usual if work.size_bytes <= USUAL_BYTES_MAX else self._huge
