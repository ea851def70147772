"""Outgoing bytes: a turn's output for each connection, sent by one write each when the turn is settled."""

from dataclasses import dataclass
from typing import Any, Final

from libramq.kernel.connection import Connection
from libramq.runtime.seams import Channel
from libramq.runtime.unread import Unread

#: NettyServerConfig.writeBufferHighWaterMark is off upstream; above ours a client must read first.
UNSENT_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: a turn ends with the answer with which it sends so much to a connection. The client decodes it while
#: the next one is read; with 1 MiB a consumer waited for several answers, and then the broker for it. Eight
#: answers of 32 messages of 1 KiB fit: with 128 KiB Java's drain took two turns, and 0.6 µs more a message.
TURN_BYTES_MAX: Final = 320 * 1024
#: Ours: larger than the usual response, which may be written a moment later; over all connections some 20 MB.
UNNOTED_BYTES_MAX: Final = 1024


#: Ours: a client with more than this unread gets nothing that is only offered: some 500 notifications.
OFFERED_BEHIND_BYTES_MAX: Final = 64 * 1024


@dataclass(slots=True)
class _Pieces:
    """The output of a turn for one connection."""

    pieces: list[bytes]
    size: int


class Outgoing:
    """Bytes by connection. unread: records what is written and not read."""

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
        """Return whether a turn may send a connection another reply, within the limit of all connections."""
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
            channel: Any = connection  # Engines know connections as opaque handles only.
            pieces = outgoing.pieces
            channel.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if channel.unsent_bytes > UNNOTED_BYTES_MAX or self._unread.total_bytes:
                self._unread.note(channel)
