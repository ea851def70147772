"""Admission: which connections are accepted, before a byte of theirs is read, and how many.

The kernel gives the lowest free number to each new descriptor, so a new socket's number shows how many are
open: a bound on it limits all servers of the process together, and leaves the rest to files.
"""

import contextlib
import resource
from collections.abc import Callable
from typing import Final

from libramq.errors import ConfigError
from libramq.filesystem import DESCRIPTORS_IDLE
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours; NettyServerConfig has no limit and runs into the operating system's.
CONNECTIONS_MAX: Final = 20_000
#: Ours: a shortage is over when this share of the connections at its beginning is left.
ROOM_SHARE: Final = 0.9
#: Ours: three times CONNECTIONS_MAX; an unlimited hard limit is not used as it is.
DESCRIPTORS_WANTED: Final = 65_536
#: OPEN_MAX of macOS, which refuses a higher soft limit even if the hard one is infinite.
DESCRIPTORS_WANTED_ON_MACOS: Final = 10_240
#: Ours: 256 for the store's files, journals, files of threads, connections to other brokers. Where there are
#: few, three eighths are for all of them, and the store's files take a quarter of all (`store.open_files`).
DESCRIPTORS_RESERVED: Final = 384
RESERVED_SHARE: Final = 3 / 8
#: Ours: of these one in so many may be slaves' connections.
SLAVES_DIVISOR: Final = 4
#: Ours: with fewer a server would come up and refuse its clients.
DESCRIPTORS_MIN: Final = DESCRIPTORS_IDLE + 16


def raise_limit() -> int:
    """Raise this process's soft limit of descriptors as far as wanted and allowed; return the limit.

    Raises ConfigError if that is too low for a server.
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
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than it reports.
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def for_connections() -> int:
    """Return the descriptor number from which on no connection is accepted; more than half are below it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_WANTED
    return soft - min(DESCRIPTORS_RESERVED, int(max(soft - DESCRIPTORS_IDLE, 8) * RESERVED_SHARE))


def for_slaves() -> int:
    """Return that number for slaves, which is higher: clients that want to connect leave some to them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = for_connections()
    return clients if soft == resource.RLIM_INFINITY else clients + (soft - clients) // SLAVES_DIVISOR


class Admission:
    """The connections of a server, counted from `accept` to their end.

    is_allowed: returns whether an address may connect. descriptors_max: the number from which on no
    connection may have a descriptor; by default the process's limit less what files need.
    """

    def __init__(self, is_allowed: Callable[[str], bool], descriptors_max: int | None = None) -> None:
        self._is_allowed = is_allowed
        self._descriptors_max = descriptors_max
        self._refused_count = 0
        self._full_count = 0
        #: How many are open.
        self.count = 0

    def admit(self, address: str, descriptor: int) -> bool:
        """Count a new connection, or return False: it is refused."""
        if not self._is_allowed(address):
            log.warning("a connection is refused: its address is not allowed", peer=address)
            return False
        limit = for_connections() if self._descriptors_max is None else self._descriptors_max
        if self.count >= CONNECTIONS_MAX or descriptor >= limit:
            self.refuse(address, limit)
            return False
        # A low descriptor alone says little: a file that was closed had it.
        if self._refused_count and self.count < self._full_count * ROOM_SHARE:
            log.warning("connections are accepted again", refused=self._refused_count)
            self._refused_count = 0
        self.count += 1
        return True

    def refuse(self, address: str, limit: int) -> None:
        """Record a connection that is refused for want of room; a shortage is logged once."""
        if not self._refused_count:
            log.warning(
                "connections are refused: too many connections or files; raise the limit (ulimit -n)",
                peer=address,
                connections=self.count,
                descriptors=limit,
            )
        self._full_count = self.count
        self._refused_count += 1

    def ended(self) -> None:
        """Record the end of a connection that was admitted."""
        self.count -= 1
