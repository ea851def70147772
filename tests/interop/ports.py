"""Free ports; each is handed out once, even if several test processes run side by side.

A broker takes three: its own, the one two below (the VIP channel) and the one above (HA).
They lie below Linux's ephemeral range, so that no outgoing connection takes one before it is used.
"""

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path

PORT_FIRST = 15_000
PORT_LAST = 31_900  # net.ipv4.ip_local_port_range begins at 32768.
ATTEMPTS_MAX = 1_000
VIP_DISTANCE, HA_DISTANCE = -2, 1
#: `libra up --brokers`: ports.BROKER_DISTANCE.
BROKER_DISTANCE = 10

#: The ports of this process, kept until it ends, even if a server stops listening.
_reserved: set[int] = set()


def free_port(*around: int) -> int:
    """Return a free port; the ports at the given distances are also free."""
    choice = random.SystemRandom()
    for _ in range(ATTEMPTS_MAX):
        port = choice.randint(PORT_FIRST, PORT_LAST)
        if _reserve({port, *(port + distance for distance in around)}):
            return port
    raise RuntimeError(f"no free port in {ATTEMPTS_MAX} attempts")


def free_broker_port(brokers: int = 1) -> int:
    """Return a port for a broker, or for the first of several brokers of `libra up`."""
    own = (0, VIP_DISTANCE, HA_DISTANCE)
    return free_port(*(number * BROKER_DISTANCE + near for number in range(brokers) for near in own))


def _reserve(ports: set[int]) -> bool:
    """Reserve all of these ports, or none if one of them is not free."""
    if ports & _reserved:
        return False
    locked: list[int] = []
    for port in sorted(ports):
        if not _lock(port):
            break
        locked.append(port)
        if not _is_free(port):
            break
    else:
        _reserved.update(ports)
        return True
    for port in locked:
        fcntl.lockf(_locks(), fcntl.LOCK_UN, 1, port)
    return False


@functools.cache
def _locks() -> int:
    """Return the descriptor of the file whose bytes stand for ports. Locks end with their process."""
    path = Path(tempfile.gettempdir()) / f"libramq-tests-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(port: int) -> bool:
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
