"""Free ports; each is handed out once, even if several test processes run side by side.

A broker takes three: its own, the one two below (the VIP channel) and the one above (HA).
They lie below Linux's ephemeral range, so that no outgoing connection takes one before it is used.
"""

import random
import socket
import sys

PORT_FIRST = 15_000
PORT_LAST = 31_900  # net.ipv4.ip_local_port_range begins at 32768.
ATTEMPTS_MAX = 1_000
VIP_DISTANCE, HA_DISTANCE = -2, 1
#: `libra up --brokers`: ports.BROKER_DISTANCE.
BROKER_DISTANCE = 10

#: The reservations of this process's ports, kept until it ends, even if a server stops listening.
_reservations: dict[int, socket.socket] = {}


def free_port(*around: int) -> int:
    """Return a free port such that the ports at the given distances are free, too."""
    choice = random.SystemRandom()
    for _ in range(ATTEMPTS_MAX):
        port = choice.randint(PORT_FIRST, PORT_LAST)
        if _reserve({port, *(port + distance for distance in around)}):
            return port
    raise RuntimeError(f"no free port in {ATTEMPTS_MAX} attempts")


def free_broker_port(brokers: int = 1) -> int:
    """Return a port for a broker, or for the first of several that `libra up` starts."""
    own = (0, VIP_DISTANCE, HA_DISTANCE)
    return free_port(*(number * BROKER_DISTANCE + near for number in range(brokers) for near in own))


def _reserve(ports: set[int]) -> bool:
    """Reserve all of these ports, or none if one of them is not free."""
    reserved: dict[int, socket.socket] = {}
    for port in ports:
        reservation = socket.socket(socket.AF_UNIX)
        try:
            # Linux's abstract namespace: a name belongs to one socket and disappears with its process.
            if sys.platform == "linux":
                reservation.bind(f"\0libramq-tests-port-{port}")
        except OSError:
            reservation.close()
            break
        reserved[port] = reservation
        if not _is_free(port):
            break
    else:
        _reservations.update(reserved)
        return True
    for reservation in reserved.values():
        reservation.close()
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
