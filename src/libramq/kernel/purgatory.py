"""The purgatory: every answer that cannot be given yet, behind one interface and one accounting.

    a held pull · a send whose record is not durable · a topic the name servers do not know yet · a poll

What is parked says what it costs, until when it waits and what happens then. An index beside the purgatory
may find it sooner (`HeldPulls` by queue, `Durability` by offset); whoever does, takes it out with `release`
before answering, so that it is answered once. It goes with its connection.

Upstream of the name: Kafka's DelayedOperationPurgatory.
"""

from functools import partial
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline, Deadlines

#: Ours: one held pull a queue and consumer; a million would be some 300 MB.
PARKED_MAX: Final = 200_000
#: Ours: a client with more queues than that looks again and again instead.
PARKED_PER_CONNECTION_MAX: Final = 20_000
#: Ours: what replies that wait for a disk or a name server may hold in all.
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024


class Parked:
    """An answer that waits. Subclasses say what happens at the deadline, and when it is taken out.

    cost_bytes: the memory that it holds while it waits.
    """

    __slots__ = ("_deadline", "connection", "cost_bytes", "is_parked")

    def __init__(self, connection: Connection, *, cost_bytes: int = 0) -> None:
        self.connection = connection
        self.cost_bytes = cost_bytes
        self.is_parked = False
        self._deadline: Deadline | None = None

    def expire(self, now_ms: MonotonicMs) -> None:
        """Answer: the deadline has come. It has been taken out already."""
        raise NotImplementedError

    def unlink(self) -> None:
        """Leave the index that knows it; called whenever it is taken out, whatever the reason."""


class PurgatoryStatistics(NamedTuple):
    """A snapshot of what is parked."""

    parked: int
    cost_bytes: int
    connections: int


class Purgatory:
    """Everything that is parked, by connection and by deadline."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._by_connection: dict[Connection, dict[Parked, None]] = {}
        self._count = 0
        self._cost_bytes = 0

    def __len__(self) -> int:
        return self._count

    def statistics(self) -> PurgatoryStatistics:
        """Return what is parked now."""
        return PurgatoryStatistics(self._count, self._cost_bytes, len(self._by_connection))

    def has_room(self, connection: Connection, cost_bytes: int = 0) -> bool:
        """Return whether another answer for a connection may be parked."""
        return (
            self._count < PARKED_MAX
            and self._cost_bytes + cost_bytes <= PARKED_BYTES_MAX
            and len(self._by_connection.get(connection, ())) < PARKED_PER_CONNECTION_MAX
        )

    def park(self, parked: Parked, until_ms: MonotonicMs | None = None) -> None:
        """Keep an answer until it is released, its connection ends, or a (monotonic) time comes."""
        assert not parked.is_parked, "parked twice"
        parked.is_parked = True
        self._by_connection.setdefault(parked.connection, {})[parked] = None
        self._count += 1
        self._cost_bytes += parked.cost_bytes
        if until_ms is not None:
            parked._deadline = self._deadlines.set(until_ms, partial(self._expire, parked))

    def release(self, parked: Parked) -> bool:
        """Take an answer out, to give it now; False where it is not parked any more."""
        if not parked.is_parked:
            return False
        parked.is_parked = False
        owned = self._by_connection[parked.connection]
        del owned[parked]
        if not owned:
            del self._by_connection[parked.connection]
        self._count -= 1
        self._cost_bytes -= parked.cost_bytes
        if parked._deadline is not None:
            parked._deadline.cancel()
            parked._deadline = None
        parked.unlink()
        return True

    def connection_ended(self, connection: Connection) -> None:
        """Drop what waits for a connection that is gone."""
        for parked in list(self._by_connection.get(connection, ())):
            self.release(parked)

    def _expire(self, parked: Parked, now_ms: MonotonicMs) -> None:
        if self.release(parked):
            parked.expire(now_ms)
