"""The connection as an engine sees it: an opaque handle with an address, the principal that has authenticated
on it, and which addresses count as one client (an IPv6 network).
"""

import ipaddress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

#: The numbers of connections, assigned as they are accepted.
NUMBERS: Final = count(1)
#: Ours: the network of a household or a server, whose owner may use any address in it (RFC 6177).
IPV6_PREFIX: Final = 64


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, as authenticated by any protocol.

    host: the client's address, on which policies may depend. is_unrestricted: the client is another broker of
    the cluster, or sends a request that the configuration exempts from authorisation. proof: a digest of the
    password that the user signed in with.
    """

    name: str
    host: str = field(default="", compare=False)
    is_unrestricted: bool = field(default=False, compare=False)
    proof: bytes = field(default=b"", compare=False, repr=False)


#: A client that has not authenticated itself.
ANONYMOUS: Final = Principal("anonymous")


class Connection(Protocol):
    """The other end of a connection. An engine never writes to it: it returns `Send` and `Close`."""

    #: The client's user, if it authenticates once for all its requests, by SASL or a certificate.
    principal: Principal
    #: Whether the client has ever authenticated, which spares it a limit but permits nothing.
    is_authenticated: bool
    #: The names in its certificate (subjectAltName); none without TLS.
    certificate_names: tuple[str, ...]

    @property
    def address(self) -> str:
        """Return the other end's "host:port"."""
        ...

    @property
    def number(self) -> int:
        """Return a number higher than those of all connections accepted before, on any server."""
        ...

    @property
    def is_open(self) -> bool:
        """Return whether data sent now can still arrive."""
        ...

    def __hash__(self) -> int:
        """Hash by identity."""
        ...


def host_of(connection: Connection) -> str:
    """Return a client's address without the port."""
    return connection.address.rpartition(":")[0]


def client_network(host: str) -> str:
    """Return what counts as one client's address for limits: an IPv4 address, or an IPv6 network."""
    if ":" not in host:
        return host
    try:
        parsed = ipaddress.IPv6Address(host.strip("[]"))
    except ValueError:
        return host
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((int(parsed), IPV6_PREFIX), strict=False))
