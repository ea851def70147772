"""Large transfers: from which size reads and writes are done in turns, and how much each turn moves.

**Reads.** One read brings up to 256 KiB, and a loop reads everything that a socket has: when twenty
connections sent 4 MiB each, another client's ping waited until all of that was copied, joined and processed.
Frames of 64 KiB took as long: a loop reads a socket up to 32 times before it looks at the others. So
connections in the middle of a large frame, or of many requests, continue in turn, a few per round. The frame
that began first is read first. If all advanced together, all would be held nearly complete, and their sum is
bounded (`server.UnfinishedFrames`). None is read on while too many whole frames wait to be processed
(`server.WaitingFrames`).

**Writes.** A kernel takes 3 MiB in one system call that lasts 15 ms, where it has to find pages for them, and
every other client waits for that. Where it has them, 1 MiB takes 0.3 ms and leaves at once: otherwise the
next answers are read while most of it waits, and its client does nothing until they all come. So a large
write leaves in slices, a few per round; what the socket does not take waits. A transport keeps the whole of a
buffer until its last byte has left, but of 4 MiB that a client does not read the kernel takes all but 300 KB:
200 such clients took 800 MB, and counted 60.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns
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


#: Ours: smaller answers are written at once; a pull's usual one has 256 KiB.
LARGE_BYTES: Final = 512 * 1024
#: Ours: a slice takes 0.1 to 1 ms.
SLICE_BYTES: Final = 256 * 1024
#: Ours: slices follow each other at once until so much time has passed in a round, of all connections.
AT_ONCE_US: Final = 1_000
#: Ours: so many connections send slices between two looks at the other sockets (`LargeReads` reads as many).
SLICES_PER_ROUND: Final = 2


def may_be_sliced(transport: asyncio.Transport) -> bool:
    """Return whether bytes may go to the socket directly: none wait before them."""
    return not transport.get_write_buffer_size()


class LargeWrite:
    """The bytes that a connection still has to send, in order."""

    __slots__ = ("_pieces", "_sent_of_first", "size")

    def __init__(self, data: bytes) -> None:
        self._pieces = deque([memoryview(data)])
        self._sent_of_first = 0
        #: The number of bytes that have not left.
        self.size = len(data)

    def add(self, data: bytes) -> None:
        """Append bytes, which leave after all others."""
        self._pieces.append(memoryview(data))
        self.size += len(data)

    def send(self, transport: asyncio.Transport, until_ns: int) -> bool:
        """Send a slice, and others until a time; return whether more can follow, as `send_slice` does."""
        while self.send_slice(transport):
            if perf_counter_ns() >= until_ns:
                return True
        return False

    def send_slice(self, transport: asyncio.Transport) -> bool:
        """Send a slice; return whether another can follow: the transport gets what is not taken."""
        descriptor = transport.get_extra_info("socket").fileno()
        room = SLICE_BYTES
        while self._pieces and room:
            piece = self._pieces[0]
            try:
                sent = os.write(descriptor, piece[:room])
            except OSError:  # It takes no more, or is broken, which the transport finds out.
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
        """Give the transport everything that has not left; a copy of the rest where most of an answer has."""
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
        """Return until when slices may follow each other in this round: many answers leave in one."""
        if self._until_ns is None:
            self._until_ns = perf_counter_ns() + AT_ONCE_US * 1_000
            self._soon(self._round_over)
        return self._until_ns

    def _round_over(self) -> None:
        self._until_ns = None

    def wait(self, connection: Writing) -> None:
        """Make a connection send its next slice, after those that wait."""
        if not self._waiting:
            self._soon(self._next_round)
        self._waiting.append(connection)

    def _next_round(self) -> None:
        now = [self._waiting.popleft() for _ in range(min(SLICES_PER_ROUND, len(self._waiting)))]
        if self._waiting:
            self._soon(self._next_round)
        for connection in now:
            connection.write_on()
