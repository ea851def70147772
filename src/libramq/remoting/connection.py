"""One side of a remoting connection without a socket: bytes in, commands out; which reply belongs to which
request, and when a request has timed out.

Both sides may send requests: each numbers its own, and a reply carries its request's number.
Upstream: remoting/netty/NettyRemotingAbstract.java (responseTable).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.errors import LocalProtocolError
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import decode_frame, frame_end

T = TypeVar("T")

#: NettyClientConfig.clientAsyncSemaphoreValue.
PENDING_REQUESTS_MAX: Final = 65_535
#: Ours: frames with more than this outstanding are received in place.
SMALL_READ_BYTES: Final = 64 * 1024
#: Ours: the buffer of a connection until a read has filled it; most connections never read more at once.
FIRST_READ_BYTES: Final = 4 * 1024
#: Ours: buffers for large frames kept for reuse.
SPARES_MAX: Final = 4
#: Ours: the largest buffer kept: enough for the reply to the largest pull, 4 MiB with its header.
SPARE_BYTES_MAX: Final = 5 * 1024 * 1024


class FrameReader:
    """Splits received data into commands; raises RemoteProtocolError at the first invalid byte."""

    __slots__ = ("_needed_bytes", "_partial", "partial_bytes")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed_bytes = 4
        #: The number of bytes held of an incomplete frame.
        self.partial_bytes = 0

    def receive(self, data: bytes) -> list[Command]:
        """Take received bytes; return the commands that are now complete."""
        whole: bytes | memoryview = data
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed_bytes:
                self.partial_bytes = len(self._partial)
                return []
            if len(self._partial) > SMALL_READ_BYTES:
                whole = memoryview(self._give_partial())  # Bodies are copied out of it once.
            else:
                whole = self.take_partial()
        commands = []
        position, size = 0, len(whole)
        while position < size and (decoded := decode_frame(whole, position)) is not None:
            command, position = decoded
            commands.append(command)
        if position < size:
            end = frame_end(whole, position)
            self._partial += whole[position:]
            self._needed_bytes = 4 if end is None else end - position
            self.partial_bytes = size - position
        return commands

    def take_partial(self) -> bytes:
        """Return the bytes of the incomplete frame, whose rest will be received elsewhere."""
        return bytes(self._give_partial())

    def _give_partial(self) -> bytearray:
        partial, self._partial = self._partial, bytearray()
        self.partial_bytes = 0
        return partial


class SpareMemory:
    """Free buffers for large frames, shared by all connections of the process and any thread."""

    def __init__(self) -> None:
        self._spare: deque[memoryview] = deque(maxlen=SPARES_MAX)

    @property
    def sizes(self) -> list[int]:
        """Return the sizes of the free buffers."""
        return [len(each) for each in self._spare]

    def take(self, size: int) -> memoryview:
        """Return a buffer of at least that size."""
        try:
            found = self._spare.pop()
        except IndexError:
            return memoryview(bytearray(size))
        return found if len(found) >= size else memoryview(bytearray(size))

    def give_back(self, memory: memoryview) -> None:
        """Keep a buffer whose frame was decoded, unless it is very large."""
        if len(memory) <= SPARE_BYTES_MAX:
            self._spare.append(memory)


SPARE: Final = SpareMemory()


class FrameFiller:
    """A FrameReader for callers that can receive into its buffer, in which frames are decoded.

    Receive up to `len(room)` bytes into `room`, then report their number. Each body is copied once, out of a
    reused buffer; joining pieces would cost three copies and new allocations of a frame's size every time. A
    read ends with a large frame, so nothing behind it has to be moved.

        memory   │ beginning of a frame │ room │
    """

    def __init__(self) -> None:
        self._small = self._memory = self.room = memoryview(bytearray(FIRST_READ_BYTES))
        self._end = 0
        self._needed_bytes = 4

    def received(self, count: int) -> list[Command]:
        """Take the bytes received into `room`; return the commands that are now complete."""
        end = self._end + count
        is_full = count == len(self.room)
        if end < self._needed_bytes:
            self._end = end
            self.room = self.room[count:]
            return []
        whole, commands, position = self._memory[:end], [], 0
        while position < end and (decoded := decode_frame(whole, position)) is not None:
            command, position = decoded
            commands.append(command)
        if position == end and self._memory is self._small and not is_full:  # Most reads end here.
            self._end, self._needed_bytes, self.room = 0, 4, self._small
        else:
            self._begin(whole[position:], is_full=is_full)
        return commands

    def receive(self, data: bytes) -> list[Command]:
        """Take bytes received elsewhere; return the commands that are now complete."""
        commands: list[Command] = []
        position = 0
        while position < len(data):
            count = min(len(self.room), len(data) - position)
            self.room[:count] = data[position : position + count]
            position += count
            commands += self.received(count)
        return commands

    def _begin(self, rest: memoryview, *, is_full: bool) -> None:
        """Keep the beginning of a frame, and make room for the rest. is_full: the read may have had more."""
        frame_bytes = frame_end(rest, 0)
        self._needed_bytes = needed = 4 if frame_bytes is None else frame_bytes
        before, self._end = self._memory, len(rest)
        if needed > SMALL_READ_BYTES:
            self._memory, size = SPARE.take(needed), needed
        else:
            size = len(self._small)
            if size < SMALL_READ_BYTES and (is_full or needed > size):
                size = SMALL_READ_BYTES
                self._small = memoryview(bytearray(size))
            self._memory = self._small
        self._memory[: len(rest)] = rest
        self.room = self._memory[len(rest) : size]
        if len(before) > SMALL_READ_BYTES:
            SPARE.give_back(before)


#: Ours: replies are accepted late for this many requests on a connection; a member has one at a time.
LATE_REQUESTS_MAX: Final = 16


class PendingRequests(Generic[T]):
    """Requests awaiting their replies, each with a deadline and a waiter for the shell to wake."""

    __slots__ = ("_late", "_next_opaque", "_waiting")

    def __init__(self) -> None:
        self._next_opaque = 0
        self._waiting: dict[int, tuple[MonotonicMs, T]] = {}
        self._late: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self, request: Command) -> None:
        """Number a one-way request."""
        self._next_opaque = request.opaque = self._next_opaque + 1 & 0x7FFF_FFFF

    def add(self, request: Command, waiter: T, *, deadline_ms: MonotonicMs, takes_late: bool = False) -> None:
        """Number a request and store its waiter until the deadline.

        takes_late: the waiter gets the reply even after the deadline, unless many requests follow.
        """
        if request.flag & FLAG_ONEWAY:
            raise LocalProtocolError("a one-way request has no response to wait for")
        if len(self._waiting) >= PENDING_REQUESTS_MAX:
            raise LocalProtocolError(f"{PENDING_REQUESTS_MAX} requests are pending on one connection already")
        self._next_opaque = request.opaque = self._next_opaque + 1 & 0x7FFF_FFFF
        self._waiting[request.opaque] = (deadline_ms, waiter)
        if takes_late:
            self._late[request.opaque] = waiter
            if len(self._late) > LATE_REQUESTS_MAX:
                del self._late[next(iter(self._late))]

    def take(self, reply: Command) -> T | None:
        """Return the waiter of this reply, or None if there is none any more."""
        found = self._waiting.pop(reply.opaque, None)
        late = self._late.pop(reply.opaque, None) if self._late else None
        return late if found is None else found[1]

    def discard(self, opaque: int) -> None:
        """Drop a request whose waiter gave up."""
        self._waiting.pop(opaque, None)

    def expire(self, now_ms: MonotonicMs) -> list[T]:
        """Remove and return the waiters whose deadline has passed."""
        late = [opaque for opaque, (deadline_ms, _) in self._waiting.items() if deadline_ms <= now_ms]
        return [self._waiting.pop(opaque)[1] for opaque in late]

    def extend(self, now_ms: MonotonicMs, more_ms: int) -> None:
        """Give requests whose deadline has passed more time from now."""
        extended_ms = now_ms + more_ms
        for opaque, (deadline_ms, waiter) in self._waiting.items():
            if deadline_ms <= now_ms:
                self._waiting[opaque] = extended_ms, waiter

    @property
    def next_deadline_ms(self) -> MonotonicMs | None:
        """Return the earliest deadline, or None if no request waits."""
        return min((deadline_ms for deadline_ms, _ in self._waiting.values()), default=None)

    def drain(self) -> Iterator[T]:
        """Remove and return every waiter: the connection has ended."""
        waiting, self._waiting = self._waiting, {}
        self._late.clear()
        for _, waiter in waiting.values():
            yield waiter
