"""Ports that nobody listens on, given out once each.

A broker takes three: its own, the one two below (the VIP channel) and the one above (HA).
They lie under Linux's ephemeral range, so that no outgoing connection of a neighbour takes one in between.
"""

import os
import random
import socket

PORT_FIRST = 15_000
PORT_LAST = 31_900  # net.ipv4.ip_local_port_range begins at 32768.
#: Test processes side by side (pytest-xdist) draw from stretches of their own.
STRETCHES = 8
ATTEMPTS_MAX = 1_000

_given: set[int] = set()


def free_port(*around: int) -> int:
    """A free port whose neighbours at the given distances are free too."""
    choice = random.SystemRandom()
    first, last = _stretch(os.environ.get("PYTEST_XDIST_WORKER", "gw0"))
    for _ in range(ATTEMPTS_MAX):
        port = choice.randint(first, last)
        wanted = {port, *(port + distance for distance in around)}
        if wanted.isdisjoint(_given) and all(map(_is_free, wanted)):
            _given.update(wanted)
            return port
    raise RuntimeError(f"no free port in {ATTEMPTS_MAX} attempts")


def free_broker_port() -> int:
    return free_port(-2, 1)


def _stretch(worker: str) -> tuple[int, int]:
    """Return the first and the last port of a test process, whose neighbours are its own as well."""
    width = (PORT_LAST - PORT_FIRST) // STRETCHES
    first = PORT_FIRST + int(worker.removeprefix("gw")) % STRETCHES * width
    return first + 2, first + width - 2


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
