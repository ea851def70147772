"""The descriptors: how many files and sockets this process may have open, and which of them connections get.

The kernel gives the lowest free number to each new descriptor, so the number of a new socket says how many
are open: a bound on it bounds all servers of the process together, and leaves the rest to files.
"""

import contextlib
import resource
from typing import Final

#: Ours: transport.server.CONNECTIONS_MAX three times over; an unlimited hard limit is not taken literally.
WANTED: Final = 65_536
#: OPEN_MAX of macOS, which refuses a higher soft limit even where the hard one is infinite.
WANTED_ON_MACOS: Final = 10_240
#: Ours: 256 files of the store, journals, threads that flush and read, connections to other brokers.
RESERVED: Final = 384


def raise_limit() -> int:
    """Raise the soft limit of this process as far as it is wanted and allowed; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return soft
    for count in (WANTED, WANTED_ON_MACOS):
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft < wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says.
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def for_connections() -> int:
    """Return the number from which on no connection may have a descriptor; half are theirs at least."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return WANTED
    return soft - min(RESERVED, soft // 2)
