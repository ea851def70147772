"""Large requests: how many are decoded and applied at once, by the memory that they are expected to take.

    it wants room ─► some in its lane? ─► it goes on
                     none              ─► it waits; its connection is not served meanwhile
    it ends       ─► those that fit go on, one of each connection in turn

A body is decoded by a thread and applied in steps, between which others are served. Twenty clients that
register 50,000 topics each took 713 MB so, because all of them were decoded before the first was applied.
There are two lanes, so that usual requests do not wait for huge ones.
"""

from collections import deque
from typing import Final

from libramq.kernel.connection import Connection
from libramq.kernel.work import UnderWay

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
    """The large requests under way, and those that wait for them."""

    def __init__(self) -> None:
        self._usual = _Lane(USUAL_LANE_BYTES)
        self._huge = _Lane(HUGE_LANE_BYTES)

    @property
    def taken_bytes(self) -> int:
        """Return what the requests under way are expected to take."""
        return self._usual.taken_bytes + self._huge.taken_bytes

    def take(self, work: UnderWay) -> bool:
        """Take room now, or make the request wait; return whether it may begin."""
        return self._lane(work).take(work)

    def free(self, work: UnderWay) -> list[UnderWay]:
        """Return the requests that may begin, now that one has ended."""
        return self._lane(work).free(work)

    def _lane(self, work: UnderWay) -> _Lane:
        return self._usual if work.size_bytes <= USUAL_BYTES_MAX else self._huge
