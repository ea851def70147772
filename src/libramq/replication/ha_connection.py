"""The connection of one slave, as seen by its master: limits the data in flight, and decides when the slave
is in sync or too slow.

    first report ─► sending from there ─► block, block, … ─► report ─► block, …

At most `WINDOW_BYTES` are sent beyond the last report, so that a slow slave costs the master no memory. A
slave is in sync while it keeps up, and readers and producers wait for it.
Upstream: store/ha/DefaultHAConnection.java.
"""

import ipaddress
from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline

#: Ours: the data in flight to a slave, which reports after each read.
WINDOW_BYTES: Final = 4 * 1024 * 1024
#: FlowMonitor.java: the period over which the rate is measured.
RATE_MS: Final = 1_000
#: MessageStoreConfig.haMaxGapNotInSync.
GAP_BYTES_MAX: Final = 256 * 1024 * 1024
#: Ours: a slave that lacks data the log had this long ago is not in sync, because consumers would wait for
#: it. The gap in bytes alone does not reveal a slow slave. Kafka's replica.lag.time.max.ms is 30 s.
LAG_MS_MAX: Final = 20_000


class HAConnection:
    """One slave. sent: the end of the log that was sent; acknowledged: the end that the slave has.

    first: the slave has no message before this offset. machine: the host it runs on, which two connections
    may share. look: due when a heartbeat must be sent or the slave has been silent too long. is_warming: a
    thread is reading the next bytes; is_warm: it has read them.
    """

    def __init__(
        self,
        connection: Connection,
        begin: int,
        now_ms: MonotonicMs,
        look: Deadline,
        *,
        first: int = 0,
        log_end: int = 0,
    ) -> None:
        self.connection = connection
        self.machine = _machine(connection.address)
        self.first = first
        self._target, self._target_ms, self._caught_up_ms = log_end, now_ms, now_ms
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
        """Return the number of log bytes sent in the last full second."""
        elapsed_ms = now_ms - self._rate_began_ms
        if elapsed_ms >= RATE_MS:
            self._rate = (self.sent - self._rate_began_sent) * 1000 // elapsed_ms
            self._rate_began_ms, self._rate_began_sent = now_ms, self.sent
        return self._rate

    def report(self, offset: int, now_ms: MonotonicMs, log_end: int) -> bool:
        """Apply a report; return False if the slave claims bytes that were not sent."""
        if not self.acknowledged <= offset <= self.sent:
            return False
        if offset > self.acknowledged or offset == self.sent:
            self.progressed_ms = now_ms
        self.acknowledged = offset
        if offset >= self._target:
            self._caught_up_ms = self._target_ms
            self._target, self._target_ms = log_end, now_ms
        return True

    def stalled(self, stall_ms: int) -> None:
        """Extend the slave's deadlines by the time that this process was stalled."""
        self.progressed_ms = self.progressed_ms + stall_ms
        self._target_ms = self._target_ms + stall_ms
        self._caught_up_ms = self._caught_up_ms + stall_ms

    def is_in_sync(self, log_end: int, now_ms: MonotonicMs) -> bool:
        """Return whether the slave keeps up with the log."""
        lag_ms = now_ms - self._caught_up_ms
        missing_bytes = log_end - self.acknowledged
        return not missing_bytes or (missing_bytes <= GAP_BYTES_MAX and lag_ms <= LAG_MS_MAX)

    @property
    def room(self) -> int:
        """Return the number of bytes that may be sent before the slave must report."""
        return WINDOW_BYTES - (self.sent - self.acknowledged)


def _machine(address: str) -> str:
    """Return the host of "host:port"; on this machine every process counts as a separate slave."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    return address if is_here else host
