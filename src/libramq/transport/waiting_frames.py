"""Waiting frames: how much a server holds of requests that arrived whole and wait to be processed.

A connection whose requests wait is not read, so it holds one frame and what the same read brought besides.
Over all connections that is bounded: without room, no large frame is read on (`large_reads`), until requests
are processed or their connections end. Small requests of other connections are read and served meanwhile.

Requests that wait for a thread or for their turn make room in the end. Those whose client does not read its
answers may wait for ever, and would keep everybody else's large frames out: they end (`stuck`).
"""

from typing import Final, Generic, Protocol, TypeVar

#: Ours: sixteen messages of maxMessageSize. Netty has no such bound.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
#: Ours: how long there may be no room before a connection that does not read its answers is closed for it.
STUCK_MS: Final = 1_000


class Sender(Protocol):
    """A connection whose requests wait."""

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes of its answers have not left yet."""
        ...

    @property
    def leaving_bytes(self) -> int:
        """Return how many of these are being sent, whether the client reads or not."""
        ...


S = TypeVar("S", bound=Sender)


class WaitingFrames(Generic[S]):
    """The bytes of the requests that wait, by connection."""

    def __init__(self) -> None:
        self._held: dict[S, int] = {}
        self.total_bytes = 0

    @property
    def has_room(self) -> bool:
        """Return whether large frames may be read on."""
        return self.total_bytes < WAITING_BYTES_MAX

    def add(self, connection: S, size: int) -> None:
        """Record whole frames of a connection that is not served now."""
        self._held[connection] = self._held.get(connection, 0) + size
        self.total_bytes += size

    def forget(self, connection: S) -> None:
        """Drop a connection's frames: they are processed, or their connection has ended."""
        self.total_bytes -= self._held.pop(connection, 0)

    def stuck(self) -> S | None:
        """Return the connection with the most unread answers, if any client has left some unread."""
        unread = {each: each.unsent_bytes - each.leaving_bytes for each in self._held}
        worst = max(unread, key=unread.__getitem__, default=None)
        return worst if worst is not None and unread[worst] else None
