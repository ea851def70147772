"""Ports of `libra up`: RocketMQ's defaults if they are free, or else others; the distance between brokers."""

import errno
import socket
from typing import Final, NamedTuple

from libramq.broker.config import VIP_DISTANCE
from libramq.errors import ConfigError

NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
#: Ours: the distance between the ports of brokers on one machine, as in Apache's examples.
BROKER_DISTANCE: Final = 10
PORT_MAX: Final = 65_535
#: Ours: how many ports are tried to find one whose neighbour is free as well.
FREE_PORT_TRIES: Final = 100


class Ports(NamedTuple):
    """The ports of name server and broker, and remarks for the user."""

    nameserver: int
    broker: int
    remarks: tuple[str, ...]


def choose_ports(host: str, nameserver: int | None, broker: int | None) -> Ports:
    """Choose the ports. Raises ConfigError if a requested one is in use; defaults in use are replaced."""
    remarks = []
    if nameserver is not None:
        _require(host, nameserver, "--nameserver-port")
    elif is_free(host, NAME_SERVER_PORT):
        nameserver = NAME_SERVER_PORT
    else:
        nameserver = free_port(host, avoid=range(BROKER_PORT - VIP_DISTANCE, BROKER_PORT + 1))
        remarks.append(f"port {NAME_SERVER_PORT} is taken: the name server listens on {nameserver} instead")
    if broker is not None:
        _require(host, broker, "--broker-port")
        if broker > VIP_DISTANCE and not is_free(host, broker - VIP_DISTANCE):
            raise ConfigError(
                f"port {broker - VIP_DISTANCE} on {host} is taken; a broker needs it beside {broker}: "
                "choose another --broker-port"
            )
    elif is_free(host, BROKER_PORT) and is_free(host, BROKER_PORT - VIP_DISTANCE):
        broker = BROKER_PORT
    else:
        broker = free_port(host, below=VIP_DISTANCE, avoid=(nameserver, nameserver + VIP_DISTANCE))
        remarks.append(
            f"port {BROKER_PORT} or {BROKER_PORT - VIP_DISTANCE} is taken: the broker listens on {broker}"
        )
    if broker and nameserver in (broker, broker - VIP_DISTANCE):
        raise ConfigError(
            f"name server port {nameserver} and broker port {broker} collide; a broker also needs the port "
            f"{VIP_DISTANCE} below its own"
        )
    return Ports(nameserver, broker, tuple(remarks))


def further_broker_ports(host: str, ports: Ports, count: int) -> tuple[list[int], list[str]]:
    """Return a port for each further broker, ten above the previous one if that is free, and remarks."""
    found, remarks = [], []
    used = {ports.nameserver, *_of_broker(ports.broker)}
    for number in range(1, count + 1):
        wanted = port = ports.broker + number * BROKER_DISTANCE
        if (
            port > PORT_MAX
            or not used.isdisjoint(_of_broker(port))
            or not all(is_free(host, one) for one in _of_broker(port))
        ):
            avoid = tuple(one + distance for one in used for distance in (0, VIP_DISTANCE))
            port = free_port(host, below=VIP_DISTANCE, avoid=avoid)
            remarks.append(f"port {wanted} or {wanted - VIP_DISTANCE} is taken: a broker listens on {port}")
        found.append(port)
        used.update(_of_broker(port))
    return found, remarks


def _of_broker(port: int) -> tuple[int, int]:
    return port, port - VIP_DISTANCE


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on a port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host"
            ) from None
        except OverflowError:
            raise ConfigError(f"{port} is not a port; 1 to 65535 are allowed") from None
    return True


def free_port(host: str, *, below: int = 0, avoid: range | tuple[int, ...] = ()) -> int:
    """Return a free port chosen by the system; the port `below` it is free as well."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(FREE_PORT_TRIES):
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid and (not below or is_free(host, port - below)):
            return port
    raise ConfigError(f"no free port found on {host}; name one with --nameserver-port and --broker-port")


def _require(host: str, port: int, option: str) -> None:
    if port and not is_free(host, port):
        raise ConfigError(
            f"port {port} on {host} is taken; stop what listens there or choose another {option}"
        )
