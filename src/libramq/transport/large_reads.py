"""Large reads: connections in the middle of a large frame, or of many requests, continue in turn, a few per
round of the loop.

One read brings up to 256 KiB, and a loop reads everything that a socket has: when twenty connections sent 4
MiB each, another client's ping waited until all of that was copied, joined and processed. Frames of 64 KiB
took as long: a loop reads a socket up to 32 times before it looks at the others.

The frame that began first is read first. If all advanced together, all would be held nearly complete, and
their sum is bounded (`unfinished`). None is read on while too many whole frames wait to be processed
(`waiting_frames`).
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

#: Ours: the size from which a frame is large; most requests arrive in one read.
LARGE_FRAME_BYTES: Final = 64 * 1024
#: Ours: the size from which a read is large; the socket has more than a loop's usual share of it.
LARGE_READ_BYTES: Final = 64 * 1024
#: Ours: 512 KiB take 0.3 ms to read, and a round may complete as many frames.
READS_PER_ROUND: Final = 2


class Reading(Protocol):
    """A connection that waits until it may continue reading."""

    def read_on(self) -> None:
        """Read again; ignored if the connection has ended."""
        ...


class LargeReads:
    """Connections in the order in which their frames were begun.

    soon: calls a function in the loop's next round. has_room: returns whether another frame may be completed;
    without room, nothing is read until `resume`.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        *,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._soon = soon
        self._has_room = has_room
        self._waiting: list[tuple[int, Reading]] = []
        self._numbers = count()
        self._is_scheduled = False

    def begin(self) -> int:
        """Return the number of a large frame that began now."""
        return next(self._numbers)

    def wait(self, connection: Reading, number: int) -> None:
        """Make a connection read again, after those whose frames began before."""
        heappush(self._waiting, (number, connection))
        self.resume()

    def resume(self) -> None:
        """Continue if there is room, and connections wait for it."""
        if self._waiting and not self._is_scheduled and self._has_room():
            self._is_scheduled = True
            self._soon(self._next_round)

    def _next_round(self) -> None:
        self._is_scheduled = False
        if self._has_room():
            for _ in range(min(READS_PER_ROUND, len(self._waiting))):
                heappop(self._waiting)[1].read_on()
        self.resume()
