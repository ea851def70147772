"""Admission: limits on accepted connections (in all, from one address, unauthenticated), which connection
makes room for a new one, how many file descriptors stay free for files, and the process's limit on them.

    in all, from one address      over the limit the new connection is closed: the open ones have work
    unauthenticated               over the limit the oldest one of the address with the most makes room

An honest client authenticates with its first requests, so it is among the newest and seldom comes from the
address with the most. Were new connections refused instead, clients that never authenticate could lock it
out. Without authentication, clients can be told apart by address only.

The operating system gives each new descriptor the lowest free number, so a new socket's number shows how
many are open. A bound on that number limits all servers of the process together and leaves the rest to files.
"""

import contextlib
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from libramq.clock import MonotonicMs
from libramq.errors import ConfigError
from libramq.filesystem import DESCRIPTORS_IDLE
from libramq.kernel.connection import client_network
from libramq.logs import BoundedLog, get_logger
from libramq.transport.address import is_loopback

log = get_logger(__name__)

#: Ours; NettyServerConfig has no limit and runs into the operating system's.
CONNECTIONS_MAX: Final = 20_000
#: Ours: one host, or a network of hosts behind one, leaves half of the connections to all others.
PER_ADDRESS_MAX: Final = CONNECTIONS_MAX // 2
#: Ours: one address also never takes more than this share of the available descriptors. Loopback is exempt:
#: a laptop's hard limit may be low, and all of its clients are at 127.0.0.1.
ADDRESS_SHARE: Final = 1 / 2
#: Ours: a client authenticates within a few round trips; as many connect while a packet crosses a continent.
UNAUTHENTICATED_MAX: Final = 1_000
#: Ours: unauthenticated connections also never take more than this share of the available descriptors.
UNAUTHENTICATED_SHARE: Final = 1 / 4
#: Ours: this share of them is closed at once, so that not every new connection has to scan them all.
MADE_ROOM_SHARE: Final = 1 / 20
#: Ours: a shortage is over when connections have dropped to this share of their number at the last refusal.
ROOM_SHARE: Final = 0.9
#: Ours: three times CONNECTIONS_MAX; an unlimited hard limit is not used as it is.
DESCRIPTORS_WANTED: Final = 65_536
#: OPEN_MAX of macOS, which refuses a higher soft limit even if the hard one is infinite.
DESCRIPTORS_WANTED_ON_MACOS: Final = 10_240
#: Ours: 256 for the store's files; the rest for journals, threads' files and connections to other brokers.
DESCRIPTORS_RESERVED: Final = 384
#: Ours: with few descriptors, the reserved share. The store's files take a quarter (`store.open_files`).
RESERVED_SHARE: Final = 3 / 8
#: Ours: slaves' connections may take one in this many of the reserved descriptors.
SLAVES_DIVISOR: Final = 4
#: Ours: with fewer a server would start and refuse its clients.
DESCRIPTORS_MIN: Final = DESCRIPTORS_IDLE + 16


def raise_limit() -> int:
    """Raise this process's soft limit on descriptors as far as wanted and allowed; return the limit.

    Raises ConfigError if the result is too low for a server.
    """
    limit = _raised_limit()
    if limit < DESCRIPTORS_MIN and limit != resource.RLIM_INFINITY:
        raise ConfigError(
            f"this process may open {limit} files and connections, and a server needs at least "
            f"{DESCRIPTORS_MIN}; raise the limit (ulimit -n)"
        )
    return limit


def _raised_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return soft
    for count in (DESCRIPTORS_WANTED, DESCRIPTORS_WANTED_ON_MACOS):
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft < wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than the reported limit.
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def for_connections() -> int:
    """Return the descriptor number at which connections are refused; more than half of all are below it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_WANTED
    return soft - min(DESCRIPTORS_RESERVED, int(max(soft - DESCRIPTORS_IDLE, 8) * RESERVED_SHARE))


def for_slaves() -> int:
    """Return the same number for slaves; it is higher, so that clients cannot take every descriptor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = for_connections()
    return clients if soft == resource.RLIM_INFINITY else clients + (soft - clients) // SLAVES_DIVISOR


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on connections: in all, from one address, and of unauthenticated clients.

    unauthenticated_max: None if clients need not authenticate.
    """

    connections_max: int = CONNECTIONS_MAX
    per_address_max: int = PER_ADDRESS_MAX
    unauthenticated_max: int | None = None


class Limit(StrEnum):
    """A limit over which connections are refused or closed; the label of a metric."""

    NOT_ALLOWED = "not_allowed"
    CONNECTIONS = "connections"
    ADDRESS = "address"
    UNAUTHENTICATED = "unauthenticated"
    FIRST_BYTE = "first_byte"
    FRAME = "frame"
    WRITE = "write"
    IDLE = "idle"


class Occupant(Protocol):
    """An established connection."""

    @property
    def is_authenticated(self) -> bool:
        """Return whether the client has authenticated."""
        ...


class Place:
    """The place of an accepted connection.

    end: ends the connection, with a reason; None while the connection is being made.
    is_taken_away: the connection has to end as soon as it is made.
    """

    __slots__ = ("address", "end", "host", "is_taken_away", "occupant")

    def __init__(self, address: str, host: str) -> None:
        self.address = address
        self.host = host
        self.end: Callable[[str], None] | None = None
        self.occupant: Occupant | None = None
        self.is_taken_away = False


class Census:
    """The connections of one or several servers, by address, and their limits.

    descriptors_max: connections' descriptors stay below this number; by default the process's limit less
    the descriptors reserved for files.
    """

    def __init__(self, limits: ConnectionLimits | None = None, *, descriptors_max: int | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._descriptors_max = descriptors_max
        self.count = 0
        #: Refused and closed connections, by limit.
        self.refused: Counter[Limit] = Counter()
        self._by_host: Counter[str] = Counter()
        #: Connections not known to be authenticated, by address, oldest first.
        self._unauthenticated: dict[str, dict[Place, None]] = {}
        self._unauthenticated_count = 0

    @property
    def descriptors_max(self) -> int:
        """Return the number below which connections' descriptors stay."""
        return for_connections() if self._descriptors_max is None else self._descriptors_max

    def limit_of(self, address: str, descriptors: int) -> Limit | None:
        """Return the limit that another connection from an address would exceed, if any."""
        if self.count >= self.limits.connections_max:
            return Limit.CONNECTIONS
        count_max = self.limits.per_address_max
        if not is_loopback(_host(address)):
            room = min(self.limits.connections_max, descriptors)
            count_max = min(count_max, max(1, int(room * ADDRESS_SHARE)))
        return Limit.ADDRESS if self._by_host[client_network(_host(address))] >= count_max else None

    def add(self, address: str, descriptors: int) -> Place:
        """Return the place of a new connection; old unauthenticated ones make room for it."""
        place = Place(address, client_network(_host(address)))
        self.count += 1
        self._by_host[place.host] += 1
        if self.limits.unauthenticated_max is not None:
            count_max = self.limits.unauthenticated_max
            count_max = max(1, min(count_max, int(descriptors * UNAUTHENTICATED_SHARE)))
            if self._unauthenticated_count >= count_max:
                self._make_room(count_max)
            self._unauthenticated.setdefault(place.host, {})[place] = None
            self._unauthenticated_count += 1
        return place

    def remove(self, place: Place) -> None:
        """Record the end of a connection."""
        self.count -= 1
        self._by_host[place.host] -= 1
        if not self._by_host[place.host]:
            del self._by_host[place.host]
        self._forget(place)

    def _forget(self, place: Place) -> None:
        of_host = self._unauthenticated.get(place.host)
        if of_host is not None and place in of_host:
            del of_host[place]
            self._unauthenticated_count -= 1
            if not of_host:
                del self._unauthenticated[place.host]

    def _make_room(self, count_max: int) -> None:
        """Forget the connections authenticated by now; if that is not enough, close the oldest others."""
        for place in [each for of_host in self._unauthenticated.values() for each in of_host]:
            if place.occupant is not None and place.occupant.is_authenticated:
                self._forget(place)
        if self._unauthenticated_count < count_max:
            return
        left = count_max - max(1, int(count_max * MADE_ROOM_SHARE))
        while self._unauthenticated_count > left:
            host = max(self._unauthenticated, key=lambda each: len(self._unauthenticated[each]))
            oldest = next(iter(self._unauthenticated[host]))
            self._forget(oldest)
            self.refused[Limit.UNAUTHENTICATED] += 1
            oldest.is_taken_away = True
            if oldest.end is not None:
                oldest.end(f"{count_max} clients have not authenticated themselves, and it is the oldest")


def _host(address: str) -> str:
    return address.rpartition(":")[0]


class Admission:
    """The connections of a server, counted from `accept` to their end.

    is_allowed: returns whether an address may connect. census: shared with the process's other servers.
    """

    def __init__(
        self, is_allowed: Callable[[str], bool], census: Census, monotonic_ms: Callable[[], MonotonicMs]
    ) -> None:
        self._is_allowed = is_allowed
        self.census = census
        self._warn = BoundedLog(log.warning, monotonic_ms)
        self._refused_count = 0
        self._full_count = 0
        #: Open connections.
        self.count = 0

    def admit(self, address: str, descriptor: int) -> Place | None:
        """Return the place of a new connection, or None if it is refused."""
        if not self._is_allowed(address):
            self._warn("a connection is refused: its address is not allowed", peer=address)
            self.census.refused[Limit.NOT_ALLOWED] += 1
            return None
        descriptors = self.census.descriptors_max
        limit = self.census.limit_of(address, descriptors)
        if limit is Limit.ADDRESS:
            self._warn("a connection is refused: its address has too many", peer=address)
            self.census.refused[limit] += 1
            return None
        if limit is not None or descriptor >= descriptors:
            self.refuse(address, descriptors)
            return None
        # A low descriptor alone proves little: a file just closed may have freed it.
        if self._refused_count and self.count < self._full_count * ROOM_SHARE:
            log.warning("connections are accepted again", refused=self._refused_count)
            self._refused_count = 0
        self.count += 1
        return self.census.add(address, descriptors)

    def refuse(self, address: str, limit: int) -> None:
        """Record a connection refused for lack of room; each shortage is logged once."""
        self.census.refused[Limit.CONNECTIONS] += 1
        if not self._refused_count:
            log.warning(
                "connections are refused: too many connections or files; raise the limit (ulimit -n)",
                peer=address,
                connections=self.count,
                descriptors=limit,
            )
        self._full_count = self.count
        self._refused_count += 1

    def ended(self, place: Place) -> None:
        """Record the end of an admitted connection."""
        self.count -= 1
        self.census.remove(place)
