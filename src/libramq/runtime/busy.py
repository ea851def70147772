"""Busy connections: one with long work under way is served nothing else meanwhile; how much memory large
requests may take at once, and which waits for room.

Large requests wait for room, too: their expected memory bounds how many are decoded at once.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.work import UnderWay

#: Ours: how much work one connection may have under way. A large body is decoded before the next request is
#: looked at, so that requests take effect in order; 16 cold reads of the usual 256 KiB keep four threads
#: busy.
RUNS_MAX: Final[Mapping[Thread, int]] = {Thread.COMPUTE: 1, Thread.READ: 16}


class _Works:
    """ready: works of which steps may be taken, in their order. waits: works that wait for room."""

    __slots__ = ("ready", "runs", "waits")

    def __init__(self) -> None:
        self.runs: dict[Thread, int] = {}
        self.ready: deque[UnderWay] = deque()
        self.waits = 0


class Busy:
    """Work under way by connection."""

    def __init__(self) -> None:
        self._work: dict[Connection, _Works] = {}
        #: Whether anything is under way: seldom, and every request checks it.
        self.is_any = False

    def is_full(self, connection: Connection) -> bool:
        """Return whether a connection has to wait for its work under way."""
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
        """Add work after that which is ready; return whether none was."""
        ready = self._of(connection).ready
        ready.append(work)
        return len(ready) == 1

    def first(self, connection: Connection) -> UnderWay | None:
        """Return the work whose next step is to be taken, if there is any."""
        works = self._work.get(connection)
        return works.ready[0] if works is not None and works.ready else None

    def remove_first(self, connection: Connection) -> None:
        """Remove that work: it has ended, or waits."""
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
#: Ours: what the usual ones may take together, and the huge ones; a huge one may take more if it is alone.
USUAL_LANE_BYTES: Final = 16 * 1024 * 1024
HUGE_LANE_BYTES: Final = 32 * 1024 * 1024


class _Lane:
    """Requests of similar size, first come first served by connection."""

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
                self._waiting[connection] = waiting  # Behind those of the others.
            self.taken_bytes += first.size_bytes
            admitted.append(first)
        return admitted

    def _has_room(self, work: UnderWay) -> bool:
        return not self.taken_bytes or self.taken_bytes + work.size_bytes <= self._bytes_max


class LargeRequests:
    """The large requests under way, and those that wait for them.

        it wants room ─► some in its lane? ─► it goes on
                         none              ─► it waits; its connection is not served meanwhile
        it ends       ─► those that fit go on, one of each connection in turn

    A body is decoded by a thread and applied in steps, between which others are served. Twenty clients that
    register 50,000 topics each took 713 MB so, because all of them were decoded before the first was applied.
    There are two lanes, so that usual requests do not wait for huge ones.
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
