"""The connection of one slave, as its master sees it: what was sent, and what the slave reports to have.

    first report ─► sending from there ─► block, block, … ─► report ─► block, …

At most `WINDOW_BYTES` beyond the last report are sent, so that a slow slave costs the master no memory.
Upstream: store/ha/DefaultHAConnection.java.
"""

from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline

#: Ours: how much may be in flight to a slave; it reports after each read.
WINDOW_BYTES: Final = 4 * 1024 * 1024
#: FlowMonitor.java: the period over which the rate is measured.
RATE_MS: Final = 1_000


class HAConnection:
    """One slave. sent: everything before this offset was sent; acknowledged: the slave has it.

    look: when a heartbeat is due, or the slave has been silent too long. is_warming: the next bytes are being
    read on a thread; is_warm: they have been.
    """

    __slots__ = (
        "_rate",
        "_rate_began_ms",
        "_rate_began_sent",
        "acknowledged",
        "connection",
        "is_warm",
        "is_warming",
        "look",
        "progressed_ms",
        "sent",
        "sent_ms",
    )

    def __init__(self, connection: Connection, begin: int, now_ms: MonotonicMs, look: Deadline) -> None:
        self.connection = connection
        self.sent = self.acknowledged = begin
        self.sent_ms = self.progressed_ms = now_ms
        self.look = look
        self.is_warming = self.is_warm = False
        self._rate = 0
        self._rate_began_ms, self._rate_began_sent = now_ms, begin

    def note_sent(self, size: int, now_ms: MonotonicMs) -> None:
        """Count bytes of the log that were sent."""
        self.bytes_per_second(now_ms)
        self.sent += size
        self.sent_ms = now_ms

    def bytes_per_second(self, now_ms: MonotonicMs) -> int:
        """Return how many bytes of the log were sent in the last whole second."""
        elapsed_ms = now_ms - self._rate_began_ms
        if elapsed_ms >= RATE_MS:
            self._rate = (self.sent - self._rate_began_sent) * 1000 // elapsed_ms
            self._rate_began_ms, self._rate_began_sent = now_ms, self.sent
        return self._rate

    def report(self, offset: int, now_ms: MonotonicMs) -> bool:
        """Apply a report; return False if the slave claims bytes that were not sent."""
        if not self.acknowledged <= offset <= self.sent:
            return False
        if offset > self.acknowledged or offset == self.sent:
            self.progressed_ms = now_ms
        self.acknowledged = offset
        return True

    @property
    def room(self) -> int:
        """Return how many bytes may be sent before the slave must report."""
        return WINDOW_BYTES - (self.sent - self.acknowledged)
