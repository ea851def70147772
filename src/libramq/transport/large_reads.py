"""Large reads: connections in the middle of a large frame read on in turn, a few at each round of the loop.

One read brings up to 256 KiB, and a loop reads all that a socket has: where twenty connections sent 4 MiB
each, another client's ping waited until all of that was copied, put together and worked off.

The frame that was begun first is read first. If all advanced together, all would be held nearly whole, and
their sum is bounded (`unfinished`).
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

#: Ours: from where on a frame is large; most requests come with one read.
LARGE_FRAME_BYTES: Final = 64 * 1024
#: Ours: 512 KiB take 0.3 ms to read, and a round may see as many frames end.
READS_PER_ROUND: Final = 2


class Reading(Protocol):
    """A connection that waits until it may read on."""

    def read_on(self) -> None:
        """Read once more; nothing happens where the connection has ended."""
        ...


class LargeReads:
    """Connections in the order in which their frames were begun.

    soon: calls something at the loop's next round.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._waiting: list[tuple[int, Reading]] = []
        self._numbers = count()
        self._is_scheduled = False

    def begin(self) -> int:
        """Return the number of a large frame that was begun now."""
        return next(self._numbers)

    def wait(self, connection: Reading, number: int) -> None:
        """Have a connection read once more, after those whose frames were begun before."""
        heappush(self._waiting, (number, connection))
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self._next_round)

    def _next_round(self) -> None:
        self._is_scheduled = False
        for _ in range(min(READS_PER_ROUND, len(self._waiting))):
            heappop(self._waiting)[1].read_on()
        self._schedule()
