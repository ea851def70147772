"""The entrance: the handler for connections of another protocol than the engine's own.

They share everything with the other connections of their performer: turns, effects, timers, services.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from libramq.kernel.connection import Connection
from libramq.kernel.engine import Translator
from libramq.runtime.seams import Channel

if TYPE_CHECKING:
    from libramq.runtime.performer import Performer

#: Processes requests from a position on; returns where the next begin.
Receive = Callable[[Connection, Sequence[object], int], int]


class Entrance:
    """A `transport.server_connection.Handler`. receives: the translators of connections, by connection."""

    def __init__(
        self, performer: "Performer", receives: dict[Channel, Receive], translator: Translator
    ) -> None:
        self._performer = performer
        self._receives = receives
        self._receive = translator.receive
        self.received = performer.received
        self.writable = performer.writable
        self.closed = performer.closed

    def connected(self, connection: Channel) -> None:
        """Handle a new connection."""
        self._receives[connection] = self._receive
        self._performer.connected(connection)
