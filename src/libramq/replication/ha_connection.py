"""The connection of one slave, as its master sees it: what was sent, and what the slave says that it has.

    first report ─► sending from there ─► block, block, … ─► report ─► block, …

No more is sent than `WINDOW_BYTES` beyond the last report, so that a slow slave costs the master no memory.
Upstream: store/ha/DefaultHAConnection.java.
"""

from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline

#: Ours: what may be under way to a slave; it reports after each read.
WINDOW_BYTES: Final = 4 * 1024 * 1024


class HAConnection:
    """One slave. sent: everything before this offset was sent; acknowledged: the slave has it.

    look: when a heartbeat is due, or the slave has been silent for too long. is_warming: what comes next is
    being read on a thread; is_warm: it has been.
    """

    __slots__ = (
        "acknowledged",
        "connection",
        "is_warm",
        "is_warming",
        "look",
        "reported_ms",
        "sent",
        "sent_ms",
    )

    def __init__(self, connection: Connection, begin: int, now_ms: MonotonicMs, look: Deadline) -> None:
        self.connection = connection
        self.sent = self.acknowledged = begin
        self.sent_ms = self.reported_ms = now_ms
        self.look = look
        self.is_warming = self.is_warm = False

    def report(self, offset: int, now_ms: MonotonicMs) -> bool:
        """Take a report; False where the slave claims to have what it was not sent."""
        self.reported_ms = now_ms
        if not self.acknowledged <= offset <= self.sent:
            return False
        self.acknowledged = offset
        return True

    @property
    def room(self) -> int:
        """How many bytes may be sent before the slave must report."""
        return WINDOW_BYTES - (self.sent - self.acknowledged)
