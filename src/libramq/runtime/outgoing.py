"""Outgoing bytes: a turn's output for each connection, in one write; how much one client, and all together,
may leave unread; and who then gets no notifications, is no longer served, or is disconnected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from libramq.kernel.connection import Connection
from libramq.logs import get_logger
from libramq.runtime.seams import Channel

log = get_logger(__name__)

#: Ours: together with one more reply per connection and the allocator's overhead, some 100 MB.
UNREAD_BYTES_HIGH: Final = 32 * 1024 * 1024
#: Ours: woken pulls are answered whether or not their client reads, and every client gets one reply, of up to
#: 4 MiB. Together with the store's newest messages in memory (16 MiB), it is less than 100 MB.
UNREAD_BYTES_MAX: Final = 56 * 1024 * 1024
#: Ours: a pull's usual reply (MessageStoreConfig.maxTransferBytesOnMessageInMemory, 256 KiB).
SHARE_BYTES: Final = 256 * 1024
#: Ours: the growth of the sum after which sizes are checked again.
STEP_BYTES: Final = 4 * 1024 * 1024


class Unread:
    """Unread sizes by connection.

        below UNREAD_BYTES_HIGH   all are served, each up to its own limit
        above                     a connection with more than its share unread is served when it has read
        above UNREAD_BYTES_MAX    nobody is served, and the connection with most unread is closed (unsolicited
                                  data cannot wait), unless most of it is being sent: the clients may read

    Without this, of forty clients that requested 4 MiB each at the same time the last ones were disconnected:
    as answers leave in slices, most of them were on their way at once.

    The memory of a connection being closed is freed once it has ended, which is after everything the loop has
    already queued. Until then its bytes count, and while there are too many no client is served: otherwise
    five hundred simultaneous clients were each sent 4 MiB before the first of them had ended.

    Sockets accept bytes without reporting it, so sizes are those of the last check, which is repeated when
    their sum has grown by a step. warn: logs the closed connections.
    """

    def __init__(self, warn: Callable[..., object] = log.warning) -> None:
        self._warn = warn
        self._sizes: dict[Channel, int] = {}
        self._ending: dict[Channel, int] = {}
        self.total_bytes = 0
        #: Whether the total, including connections that are about to end, is so large that nobody can be
        #: served.
        self.is_full = False
        self._look_again_at = UNREAD_BYTES_HIGH

    def note(self, connection: Channel) -> None:
        """Record a connection's unread size."""
        size = connection.unsent_bytes
        before = self._sizes.get(connection, 0)
        if size == before:
            return
        self.total_bytes += size - before
        if size:
            self._sizes[connection] = size
        else:
            del self._sizes[connection]
        if self.total_bytes > self._look_again_at:
            self.refresh()
        elif self.is_full:
            self._note_ending()

    def forget(self, connection: Channel) -> None:
        """Remove an ended connection."""
        self.total_bytes -= self._sizes.pop(connection, 0)
        if self._ending.pop(connection, 0):
            self._note_ending()

    def may_serve(self, unsent_bytes: int) -> bool:
        """Return whether a connection with this much unread may now be sent more replies."""
        return self.total_bytes <= UNREAD_BYTES_HIGH or unsent_bytes <= SHARE_BYTES

    def refresh(self) -> None:
        """Update all sizes, and close connections while there is too much unread data."""
        self._sizes = {each: size for each in self._sizes if (size := each.unsent_bytes)}
        self.total_bytes = sum(self._sizes.values())
        if self.total_bytes > UNREAD_BYTES_MAX:
            self._close_some()
        self._look_again_at = max(UNREAD_BYTES_HIGH, self.total_bytes + STEP_BYTES)
        self._note_ending()

    def _close_some(self) -> None:
        unread = {each: size - each.leaving_bytes for each, size in self._sizes.items()}
        unread_bytes = sum(unread.values())
        while self.total_bytes > UNREAD_BYTES_MAX and unread_bytes > UNREAD_BYTES_HIGH:
            largest = max(unread, key=unread.__getitem__)
            unread_bytes -= unread.pop(largest)
            self._warn(
                "connection dropped: the client does not read its responses",
                peer=largest.address,
                bytes=self.total_bytes,
            )
            self._ending[largest] = self._sizes.pop(largest)
            self.total_bytes -= self._ending[largest]
            largest.abort("all connections together have too much unread data, and this one has most")

    def _note_ending(self) -> None:
        self.is_full = self.total_bytes + sum(self._ending.values()) > UNREAD_BYTES_MAX


#: NettyServerConfig.writeBufferHighWaterMark is off upstream; above ours a client must read first.
UNSENT_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: a turn ends after the answer that reaches this size on a connection. The client decodes it while the
#: next one is read; with 1 MiB a consumer waited for several answers, and then the broker for it. Eight
#: answers of 32 messages of 1 KiB fit: with 128 KiB Java's drain took two turns, and 0.6 µs more a message.
TURN_BYTES_MAX: Final = 320 * 1024
#: Ours: larger than the usual response, whose write may be delayed; over all connections some 20 MB.
UNNOTED_BYTES_MAX: Final = 1024


#: Ours: a client with more unread is sent no `Offer`: some 500 notifications.
OFFERED_BEHIND_BYTES_MAX: Final = 64 * 1024


@dataclass(slots=True)
class _Pieces:
    """A turn's output for one connection."""

    pieces: list[bytes]
    size: int


class Outgoing:
    """Bytes by connection. unread: records what is written but unread."""

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._by_connection: dict[Connection, _Pieces] = {}
        #: Whether there is any output.
        self.is_any = False

    def add(self, connection: Connection, data: bytes) -> None:
        """Append bytes to the turn's output for a connection."""
        outgoing = self._by_connection.get(connection)
        if outgoing is None:
            self._by_connection[connection] = _Pieces([data], len(data))
            self.is_any = True
        else:
            outgoing.pieces.append(data)
            outgoing.size += len(data)

    def offer(self, connection: Connection, data: bytes) -> None:
        """Append bytes to the turn's output for a connection, unless its client has too much unread."""
        channel: Any = connection
        outgoing = self._by_connection.get(connection)
        unread_bytes = channel.unsent_bytes + (outgoing.size if outgoing is not None else 0)
        if unread_bytes <= OFFERED_BEHIND_BYTES_MAX:
            self.add(connection, data)

    def has_room(self, connection: Channel) -> bool:
        """Return whether a turn may send a connection another reply, within the limit for all connections."""
        outgoing = self._by_connection.get(connection)
        size = outgoing.size if outgoing is not None else 0
        unsent_bytes = connection.unsent_bytes + size
        return (
            size < TURN_BYTES_MAX
            and unsent_bytes < UNSENT_BYTES_HIGH
            and self._unread.may_serve(unsent_bytes)
        )

    def flush(self) -> None:
        """Write the turn's output for each connection."""
        if not self._by_connection:
            return
        flushed, self._by_connection = self._by_connection, {}
        self.is_any = False
        for connection, outgoing in flushed.items():
            channel: Any = connection  # To engines, connections are opaque handles.
            pieces = outgoing.pieces
            channel.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if channel.unsent_bytes > UNNOTED_BYTES_MAX or self._unread.total_bytes:
                self._unread.note(channel)
