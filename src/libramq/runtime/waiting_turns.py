"""Waiting turns: the connections that are served again after the others' turns, one after the other.

put off  ─► must its client read first? ─► `Performer.writable` is called when it has
         ─► have all too much unread?    ─► crowded, checked again after CROWDED_MS
         ─► enqueued                     ─► its turn comes, on a timer without delay
"""

from collections.abc import Callable
from typing import Final

from libramq.runtime.outgoing import UNSENT_BYTES_HIGH
from libramq.runtime.seams import Channel, Timer, Timers
from libramq.runtime.unread import Unread

#: Ours: how soon connections are checked again that wait because all together have too much unread.
CROWDED_MS: Final = 20


class WaitingTurns:
    """Connections in the order of their turns.

    take_turn: serves a connection in its turn. has_backlog: returns whether a connection still waits for one.
    """

    def __init__(
        self,
        timers: Timers,
        unread: Unread,
        *,
        take_turn: Callable[[Channel], None],
        has_backlog: Callable[[Channel], bool],
    ) -> None:
        self._timers = timers
        self._unread = unread
        self._take_turn = take_turn
        self._has_backlog = has_backlog
        self._enqueued: dict[Channel, None] = {}
        #: Connections whose turn ended early, until its output is written.
        self.waiting_for_output: list[Channel] = []
        self._crowded: list[Channel] = []
        self._is_stopped = False
        #: The timer of the next turn, for tests that run turns one by one.
        self.timer: Timer | None = None

    def enqueue(self, connection: Channel) -> None:
        """Queue a connection for a turn, after those that wait."""
        self._enqueued[connection] = None
        self._set_timer()

    def put_off(self, connection: Channel) -> None:
        """Make a connection wait whose turn ended early, until the turn's output is written."""
        self.waiting_for_output.append(connection)

    def enqueue_put_off(self) -> None:
        """Enqueue the connections whose turn ended early, except those whose client must read first."""
        put_off, self.waiting_for_output = self.waiting_for_output, []
        for connection in put_off:
            if not self._has_backlog(connection) or connection.unsent_bytes > UNSENT_BYTES_HIGH:
                continue
            if not self._unread.is_full and self._unread.may_serve(connection.unsent_bytes):
                self.enqueue(connection)
            else:
                if not self._crowded:
                    self._timers.after(CROWDED_MS, self._look_at_crowded)
                self._crowded.append(connection)

    def stop(self) -> None:
        """Give no more turns."""
        self._is_stopped = True
        if self.timer is not None:
            self.timer.cancel()

    def _set_timer(self) -> None:
        if self.timer is None and self._enqueued and not self._is_stopped:
            self.timer = self._timers.after(0, self.next_turn)

    def next_turn(self) -> None:
        """Serve the connection that has waited longest."""
        self.timer = None
        connection = next(iter(self._enqueued))
        del self._enqueued[connection]
        self._take_turn(connection)
        self._set_timer()

    def _look_at_crowded(self) -> None:
        """Find the connections that may be served again after the limit on unread bytes was exceeded."""
        self._unread.refresh()
        crowded, self._crowded = self._crowded, []
        if not self._is_stopped:
            self.waiting_for_output += crowded
            self.enqueue_put_off()
