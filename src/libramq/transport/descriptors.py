"""The descriptors: how many files and sockets this process may have open, and the share of connections.

The kernel gives the lowest free number to each new descriptor, so a new socket's number shows how many are
open: a bound on it limits all servers of the process together, and leaves the rest to files.
"""

import contextlib
import resource
from typing import Final

#: Ours: three times transport.server.CONNECTIONS_MAX; an unlimited hard limit is not used as it is.
WANTED: Final = 65_536
#: OPEN_MAX of macOS, which refuses a higher soft limit even if the hard one is infinite.
WANTED_ON_MACOS: Final = 10_240
#: Ours: 256 for the store's files, journals, files of threads, connections to other brokers.
RESERVED: Final = 384


def raise_limit() -> int:
    """Raise the soft limit of this process as far as wanted and allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return soft
    for count in (WANTED, WANTED_ON_MACOS):
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft < wanted:
            with contextlib.suppress(OSError, ValueError):  # macOS allows less than it reports.
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def for_connections() -> int:
    """Return the descriptor number from which on no connection is accepted; at least half are theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return WANTED
    return soft - min(RESERVED, soft // 2)
