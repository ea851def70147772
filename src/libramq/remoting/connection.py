"""One side of a remoting connection, without a socket: bytes in, commands out; replies paired with requests.

Both sides may send requests: each numbers its own, and a reply carries its request's number.
Upstream: remoting/netty/NettyRemotingAbstract.java (responseTable).
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.errors import LocalProtocolError
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import decode_frame, frame_end

T = TypeVar("T")

#: NettyClientConfig.clientAsyncSemaphoreValue.
PENDING_REQUESTS_MAX: Final = 65_535
#: Ours: frames whose rest is larger than this are received in place.
SMALL_READ_BYTES: Final = 64 * 1024


class FrameReader:
    """Cuts received data into commands; raises RemoteProtocolError at the first invalid byte."""

    __slots__ = ("_needed_bytes", "_partial", "partial_bytes")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed_bytes = 4
        #: How many bytes of an incomplete frame are held.
        self.partial_bytes = 0

    def receive(self, data: bytes) -> list[Command]:
        """Take received bytes; return the commands that are complete now."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed_bytes:
                self.partial_bytes = len(self._partial)
                return []
            if len(self._partial) > SMALL_READ_BYTES:
                return self._decode(memoryview(self._give_partial()))  # Bodies are copied out of it, once.
            data = self.take_partial()
        return self._decode(data)

    def _decode(self, data: bytes | memoryview) -> list[Command]:
        commands = []
        position, size = 0, len(data)
        while position < size and (decoded := decode_frame(data, position)) is not None:
            command, position = decoded
            commands.append(command)
        if position < size:
            end = frame_end(data, position)
            self._partial += data[position:]
            self._needed_bytes = 4 if end is None else end - position
            self.partial_bytes = size - position
        return commands

    @property
    def missing_bytes(self) -> int:
        """Return how many bytes of an incomplete frame are missing, as far as known; else 0."""
        return self._needed_bytes - len(self._partial) if self._partial else 0

    def take_partial(self) -> bytes:
        """Return the bytes of the incomplete frame, whose rest is received elsewhere."""
        return bytes(self._give_partial())

    def _give_partial(self) -> bytearray:
        partial, self._partial = self._partial, bytearray()
        self.partial_bytes = 0
        return partial


class FrameFiller:
    """A FrameReader for callers that can receive into given memory, where the frame is decoded.

    Receive up to `len(room)` bytes into `room`, then report how many came. A reply of a megabyte is copied
    once, out of memory that is reused for the next; joining pieces costs three copies and, as each is as
    large as a frame, newly allocated memory every time.
    """

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._small = memoryview(bytearray(SMALL_READ_BYTES))
        self._large = memoryview(b"")
        self._large_end = 0
        self.room = self._small

    def received(self, count: int) -> list[Command]:
        """Take the received bytes in `room`; return the commands that are complete now."""
        if self._large_end:
            self.room = self.room[count:]
            if self.room:
                return []
            decoded = decode_frame(self._large[: self._large_end], 0)
            assert decoded is not None, "a whole frame"
            self._large_end = 0
            self.room = self._small
            return [decoded[0]]
        commands = self._reader.receive(bytes(self._small[:count]))
        missing = self._reader.missing_bytes
        if missing > SMALL_READ_BYTES:
            partial = self._reader.take_partial()
            self._large_end = len(partial) + missing
            if self._large_end > len(self._large):
                self._large = memoryview(bytearray(self._large_end))
            self._large[: len(partial)] = partial
            self.room = self._large[len(partial) : self._large_end]
        return commands


class PendingRequests(Generic[T]):
    """Requests that wait for their replies, each with a deadline and whatever the shell needs to wake."""

    __slots__ = ("_next_opaque", "_waiting")

    def __init__(self) -> None:
        self._next_opaque = 0
        self._waiting: dict[int, tuple[MonotonicMs, T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self, request: Command) -> None:
        """Give a request the next number, unless it is one-way and needs none."""
        self._next_opaque = self._next_opaque + 1 & 0x7FFF_FFFF
        request.opaque = self._next_opaque

    def add(self, request: Command, waiter: T, *, deadline_ms: MonotonicMs) -> None:
        """Number a request and store its waiter until the deadline."""
        if request.flag & FLAG_ONEWAY:
            raise LocalProtocolError("a one-way request has no response to wait for")
        if len(self._waiting) >= PENDING_REQUESTS_MAX:
            raise LocalProtocolError(f"{PENDING_REQUESTS_MAX} requests are pending on one connection already")
        self.number(request)
        self._waiting[request.opaque] = (deadline_ms, waiter)

    def take(self, reply: Command) -> T | None:
        """Return the waiter of this reply; None if there is none (any more)."""
        found = self._waiting.pop(reply.opaque, None)
        return None if found is None else found[1]

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
        """Return the earliest deadline; None if no request waits."""
        return min((deadline_ms for deadline_ms, _ in self._waiting.values()), default=None)

    def drain(self) -> Iterator[T]:
        """Remove and return every waiter: the connection has ended."""
        waiting, self._waiting = self._waiting, {}
        for _, waiter in waiting.values():
            yield waiter
