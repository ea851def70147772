"""The purgatory: every reply that cannot be sent yet, behind one interface and one accounting.

    a held pull · a send whose record is not durable · a topic the name servers do not know yet · a poll

A parked reply knows its cost, its deadline and what happens then. An index beside the purgatory may find it
sooner (`HeldPulls` by queue, `Durability` by offset); the finder takes it out with `release` before replying,
so that it is sent once. It is dropped with its connection.

Upstream of the name: Kafka's DelayedOperationPurgatory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline, Deadlines

#: Ours: one held pull a queue and consumer; a million would be some 300 MB.
PARKED_MAX: Final = 200_000
#: Ours: a client with more queues than that has to poll instead.
PARKED_PER_CONNECTION_MAX: Final = 20_000
#: Ours: the memory of all replies that wait for a disk or a name server.
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Parked:
    """A parked reply. Subclasses define what happens at the deadline, and on removal.

    cost_bytes: the memory that it holds while it waits.
    """

    connection: Connection
    cost_bytes: int = field(default=0, kw_only=True)
    is_parked: bool = field(default=False, init=False)
    _deadline: Deadline | None = field(default=None, init=False)

    def expire(self, now_ms: MonotonicMs) -> None:
        """Reply: the deadline has come. It has been taken out already."""
        raise NotImplementedError

    def unlink(self) -> None:
        """Leave the index that holds it; called on every removal."""


class PurgatoryStatistics(NamedTuple):
    """A snapshot of the parked replies."""

    parked: int
    cost_bytes: int
    connections: int


class Purgatory:
    """All parked replies, by connection and by deadline."""

    def __init__(self, deadlines: Deadlines, work: Callable[[Iterator[None]], None]) -> None:
        self._deadlines = deadlines
        self._work = work
        self._by_connection: dict[Connection, dict[Parked, None]] = {}
        self._count = 0
        self._cost_bytes = 0

    def __len__(self) -> int:
        return self._count

    def statistics(self) -> PurgatoryStatistics:
        """Return a snapshot."""
        return PurgatoryStatistics(self._count, self._cost_bytes, len(self._by_connection))

    def has_room(self, connection: Connection, cost_bytes: int = 0) -> bool:
        """Return whether another reply for a connection may be parked."""
        return (
            self._count < PARKED_MAX
            and self._cost_bytes + cost_bytes <= PARKED_BYTES_MAX
            and len(self._by_connection.get(connection, ())) < PARKED_PER_CONNECTION_MAX
        )

    def park(self, parked: Parked, until_ms: MonotonicMs | None = None) -> None:
        """Keep a reply until it is released, its connection ends, or a (monotonic) time comes."""
        assert not parked.is_parked, "parked twice"
        parked.is_parked = True
        self._by_connection.setdefault(parked.connection, {})[parked] = None
        self._count += 1
        self._cost_bytes += parked.cost_bytes
        if until_ms is not None:
            parked._deadline = self._deadlines.set(until_ms, partial(self._expire, parked))

    def release(self, parked: Parked) -> bool:
        """Take a reply out, to send it now; False if it is not parked any more."""
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
        """Drop the replies to a connection that has ended; of very many, some now and the others soon."""
        if connection in self._by_connection:
            self._work(self._drop(connection))

    def _drop(self, connection: Connection) -> Iterator[None]:
        # In copies: a dict from whose front many were removed takes as many steps to its first.
        while waiting := list(self._by_connection.get(connection, ())):
            for parked in waiting:
                self.release(parked)
                yield

    def _expire(self, parked: Parked, now_ms: MonotonicMs) -> None:
        if self.release(parked):
            parked.expire(now_ms)
