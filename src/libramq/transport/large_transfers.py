"""Large transfers: the size at which reads and writes are split into turns, and how much each turn moves.

**Reads.** One read brings up to 256 KiB, and a loop reads everything that a socket has: when twenty
connections sent 4 MiB each, another client's ping waited until all of that was copied, joined and processed.
Frames of 64 KiB took as long: a loop reads a socket up to 32 times before it polls the others. So
connections in the middle of a large frame, or of many requests, take turns, a few per round. The frame that
began first is read first: if all advanced together, all would be held nearly complete, and their sum is
bounded (`server.UnfinishedFrames`). Reading pauses while too many whole frames wait to be processed
(`server.WaitingFrames`).

**Writes.** The kernel takes 3 MiB in one system call, which lasts 15 ms if it has to find pages for them,
and every other client waits meanwhile. With pages at hand, 1 MiB takes 0.3 ms and should leave at once:
otherwise the next answers are read while most of it waits, and its client sits idle until all have come. So
a large write leaves in slices, a few per round, and the part that the socket refuses waits. A transport keeps
a whole buffer until its last byte has left, although the kernel takes all but 300 KB of 4 MiB for a client
that does not read: 200 such clients took 800 MB and were counted with 60.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns
from typing import Final, Protocol

#: Ours: frames of this size or more are large; most requests arrive in one read.
LARGE_FRAME_BYTES: Final = 64 * 1024
#: Ours: reads of this size or more are large: such a socket has more than its usual share of a round.
LARGE_READ_BYTES: Final = 64 * 1024
#: Ours: 512 KiB take 0.3 ms to read, and a round may complete as many frames.
READS_PER_ROUND: Final = 2


class Reading(Protocol):
    """A connection that waits until it may continue reading."""

    def read_on(self) -> None:
        """Read again; ignored if the connection has ended."""
        ...


class LargeReads:
    """Connections in the order in which their frames began.

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
        """Return the number of a large frame that begins now."""
        return next(self._numbers)

    def wait(self, connection: Reading, number: int) -> None:
        """Queue a connection to read again, after those whose frames began earlier."""
        heappush(self._waiting, (number, connection))
        self.resume()

    def resume(self) -> None:
        """Continue if there is room and connections are waiting."""
        if self._waiting and not self._is_scheduled and self._has_room():
            self._is_scheduled = True
            self._soon(self._next_round)

    def _next_round(self) -> None:
        self._is_scheduled = False
        if self._has_room():
            for _ in range(min(READS_PER_ROUND, len(self._waiting))):
                heappop(self._waiting)[1].read_on()
        self.resume()


#: Ours: smaller answers are written at once; a typical pull's has 256 KiB.
LARGE_BYTES: Final = 512 * 1024
#: Ours: a slice takes 0.1 to 1 ms.
SLICE_BYTES: Final = 256 * 1024
#: Ours: in one round, all connections together send slices back to back for at most this long.
AT_ONCE_US: Final = 1_000
#: Ours: this many connections send slices between two polls of the other sockets (as READS_PER_ROUND).
SLICES_PER_ROUND: Final = 2


def may_be_sliced(transport: asyncio.Transport) -> bool:
    """Return whether bytes may go to the socket directly: the transport's buffer is empty."""
    return not transport.get_write_buffer_size()


class LargeWrite:
    """The bytes that a connection still has to send, in order."""

    __slots__ = ("_pieces", "_sent_of_first", "size")

    def __init__(self, data: bytes) -> None:
        self._pieces = deque([memoryview(data)])
        self._sent_of_first = 0
        #: Unsent bytes.
        self.size = len(data)

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self._pieces.append(memoryview(data))
        self.size += len(data)

    def send(self, transport: asyncio.Transport, until_ns: int) -> bool:
        """Send slices until a time, at least one; return whether more can follow, as `send_slice` does."""
        while self.send_slice(transport):
            if perf_counter_ns() >= until_ns:
                return True
        return False

    def send_slice(self, transport: asyncio.Transport) -> bool:
        """Send a slice; return whether another can follow. A full socket leaves the rest to the transport."""
        descriptor = transport.get_extra_info("socket").fileno()
        room = SLICE_BYTES
        while self._pieces and room:
            piece = self._pieces[0]
            try:
                sent = os.write(descriptor, piece[:room])
            except OSError:  # The socket is full, or broken, which the transport will notice.
                self.hand_over(transport)
                break
            room -= sent
            self.size -= sent
            if sent < len(piece):
                self._pieces[0] = piece[sent:]
                self._sent_of_first += sent
            else:
                self._pieces.popleft()
                self._sent_of_first = 0
        return bool(self._pieces)

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Give the transport all unsent bytes: a copy, if most of the answer has left, to free the answer."""
        for piece in self._pieces:
            transport.write(bytes(piece) if self._sent_of_first > len(piece) else piece)
            self._sent_of_first = 0
        self._pieces.clear()
        self.size = 0


class Writing(Protocol):
    """A connection in the middle of a large write."""

    def write_on(self) -> None:
        """Send the next slice; ignored if the connection has ended."""
        ...


class LargeWrites:
    """Connections in the middle of large writes, which send their slices in turn.

    soon: calls a function in the loop's next round.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._waiting: deque[Writing] = deque()
        self._until_ns: int | None = None

    def until_ns(self) -> int:
        """Return when this round's slices must stop; the time is shared by all of the round's answers."""
        if self._until_ns is None:
            self._until_ns = perf_counter_ns() + AT_ONCE_US * 1_000
            self._soon(self._round_over)
        return self._until_ns

    def _round_over(self) -> None:
        self._until_ns = None

    def wait(self, connection: Writing) -> None:
        """Queue a connection to send its next slice."""
        if not self._waiting:
            self._soon(self._next_round)
        self._waiting.append(connection)

    def _next_round(self) -> None:
        now = [self._waiting.popleft() for _ in range(min(SLICES_PER_ROUND, len(self._waiting)))]
        if self._waiting:
            self._soon(self._next_round)
        for connection in now:
            connection.write_on()
