"""The purgatory: every answer that must wait (held pulls, sends that are not durable yet, polls): how many
may wait in all, per connection and per user or address, and when they expire.

    a held pull · a send whose record is not durable · a topic the name servers do not know yet · a poll

    Waiter   the receiver of an answer; a protocol makes it, and knows the bytes
    Parked   a waiting answer, and its cost; Gated: one that waits for an outside condition, a Gate
    park     until when, what happens then, and how the index that finds it earlier forgets it

An answer is taken out with `release` before it is given, so that it is given only once: by its deadline, its
gate (`Durability` by offset) or an index (`HeldPulls` by queue). It is dropped with its connection.

Upstream of the name: Kafka's DelayedOperationPurgatory.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from libramq.clock import MonotonicMs
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, client_network, host_of
from libramq.kernel.deadlines import Deadline, Deadlines

#: Ours: one held pull per queue and consumer; a million would take some 300 MB.
PARKED_MAX: Final = 200_000
#: Ours: a client with more queues than this has to poll instead.
PARKED_PER_CONNECTION_MAX: Final = 20_000
#: Ours: the memory of all replies that wait for a disk or a name server.
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024

#: Ours: half of the total for one user or address, so that nobody prevents all others from waiting.
PARKED_PER_PARTY_MAX: Final = PARKED_MAX // 2
#: Ours: half of the memory, likewise.
PARKED_BYTES_PER_PARTY_MAX: Final = PARKED_BYTES_MAX // 2

R = TypeVar("R", contravariant=True)

#: The owner of waiting answers: the connection's user, or else its address (a network for IPv6).
Party = Principal | str


class Waiter(Protocol[R]):
    """The receiver of a service's answer. One of its methods is called once; none if its connection ends.

    A service calls it at once, or parks the answer until then.
    """

    @property
    def connection(self) -> Connection:
        """Return the connection for the answer."""
        ...

    def answer(self, result: R) -> None:
        """Send the answer."""
        ...

    def refuse(self, error: Exception) -> None:
        """Send a refusal: a BrokerError has a code and a reason; other errors are our bugs."""
        ...


@dataclass(eq=False, slots=True)
class Parked:
    """A parked answer. cost_bytes: the memory it holds while waiting."""

    connection: Connection
    cost_bytes: int = field(default=0, kw_only=True)
    is_parked: bool = field(default=False, init=False)
    _deadline: Deadline | None = field(default=None, init=False)
    _unlink: Callable[[Any], None] | None = field(default=None, init=False)
    _party: Party = field(default="", init=False)


@dataclass(slots=True)
class _Part:
    """The parked answers of one party."""

    count: int = 0
    cost_bytes: int = 0


Q = TypeVar("Q", bound=Parked)


class Missing(enum.Enum):
    """The reason why a gate did not open."""

    ANSWER = "answer"  # The awaited party did not answer.
    DISK = "disk"  # The disk failed, and the store accepts no more messages.
    SLAVE = "slave"  # No slave confirmed in time.
    NO_SLAVE = "no slave"  # There was no slave to wait for.


@dataclass(eq=False, slots=True)
class Gated(Parked):
    """Answers for one connection that wait at a gate. One of the functions is called once."""

    succeed: Callable[[], None]
    fail: Callable[[Missing], None]


class Gate(Protocol):
    """An outside condition that answers wait for, such as the disk or the name servers."""

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park answers until the gate opens; may let them through at once."""
        ...


class PurgatoryStatistics(NamedTuple):
    """A snapshot of the parked answers."""

    parked: int
    cost_bytes: int
    connections: int


class Purgatory:
    """All parked answers, by connection and by deadline."""

    def __init__(self, deadlines: Deadlines, work: Callable[[Iterator[None]], None]) -> None:
        self._deadlines = deadlines
        self._work = work
        self._by_connection: dict[Connection, dict[Parked, None]] = {}
        self._parts: dict[Party, _Part] = {}
        self._count = 0
        self._cost_bytes = 0

    def __len__(self) -> int:
        return self._count

    def statistics(self) -> PurgatoryStatistics:
        """Return a snapshot."""
        return PurgatoryStatistics(self._count, self._cost_bytes, len(self._by_connection))

    def has_room(self, connection: Connection, cost_bytes: int = 0) -> bool:
        """Return whether another answer for a connection may be parked without crowding out other parties."""
        size_bytes = self._cost_bytes + cost_bytes
        if self._count >= PARKED_MAX or size_bytes > PARKED_BYTES_MAX:
            return False
        if len(self._by_connection.get(connection, ())) >= PARKED_PER_CONNECTION_MAX:
            return False
        count_max, bytes_max = PARKED_PER_PARTY_MAX, PARKED_BYTES_PER_PARTY_MAX
        if self._count < count_max and size_bytes <= bytes_max:
            return True
        part = self._parts.get(_party_of(connection))
        return part is None or (part.count < count_max and part.cost_bytes + cost_bytes <= bytes_max)

    def park(
        self,
        parked: Q,
        until_ms: MonotonicMs | None = None,
        expire: Callable[[Q], None] | None = None,
        unlink: Callable[[Q], None] | None = None,
    ) -> None:
        """Keep an answer until it is released, its connection ends, or a (monotonic) time comes.

        expire: called at that time, after removal. unlink: called upon every removal.
        """
        assert not parked.is_parked, "parked twice"
        parked.is_parked = True
        self._by_connection.setdefault(parked.connection, {})[parked] = None
        parked._party = _party_of(parked.connection)
        part = self._parts.get(parked._party)
        if part is None:
            part = self._parts[parked._party] = _Part()
        part.count += 1
        part.cost_bytes += parked.cost_bytes
        self._count += 1
        self._cost_bytes += parked.cost_bytes
        parked._unlink = unlink
        if until_ms is not None:
            parked._deadline = self._deadlines.set(until_ms, partial(self._expire, parked, expire))

    def expire_by(self, parked: Parked, by_ms: MonotonicMs) -> None:
        """Make an answer expire no later than a time."""
        if parked._deadline is not None:
            parked._deadline.by(by_ms)

    def release(self, parked: Parked) -> bool:
        """Remove an answer in order to give it now; False if it is no longer parked."""
        if not parked.is_parked:
            return False
        parked.is_parked = False
        owned = self._by_connection[parked.connection]
        del owned[parked]
        if not owned:
            del self._by_connection[parked.connection]
        part = self._parts[parked._party]
        part.count -= 1
        part.cost_bytes -= parked.cost_bytes
        if not part.count:
            del self._parts[parked._party]
        self._count -= 1
        self._cost_bytes -= parked.cost_bytes
        if parked._deadline is not None:
            parked._deadline.cancel()
            parked._deadline = None
        if parked._unlink is not None:
            parked._unlink(parked)
        return True

    def connection_ended(self, connection: Connection) -> None:
        """Drop the answers of a connection that has ended; if there are very many, gradually."""
        if connection in self._by_connection:
            self._work(self._drop(connection))

    def _drop(self, connection: Connection) -> Iterator[None]:
        # Iterates over copies: finding the first entry of a dict gets slow after removals from its front.
        while waiting := list(self._by_connection.get(connection, ())):
            for parked in waiting:
                self.release(parked)
                yield

    def _expire(self, parked: Q, expire: Callable[[Q], None] | None, now_ms: MonotonicMs) -> None:
        if self.release(parked) and expire is not None:
            expire(parked)


#: Cached for as many addresses as there may be connections.
_network: Final = lru_cache(maxsize=20_000)(client_network)


def _party_of(connection: Connection) -> Party:
    principal = connection.principal
    return principal if principal is not ANONYMOUS else _network(host_of(connection))
