"""The connection as an engine sees it: an opaque handle with an address, the principal that has authenticated
on it, and which addresses count as one client (an IPv6 network).
"""

import ipaddress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

#: The numbers of connections, assigned as they are accepted.
NUMBERS: Final = count(1)
#: Ours: a household's or a server's network, of whose addresses its owner may use any (RFC 6177).
IPV6_PREFIX: Final = 64


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, as authenticated by any protocol.

    host: the address that it came from, on which policies may depend. is_unrestricted: it is another broker
    of the cluster, or sends a request that the configuration exempts from authorisation. proof: a digest of
    the password with which it has signed in.
    """

    name: str
    host: str = field(default="", compare=False)
    is_unrestricted: bool = field(default=False, compare=False)
    proof: bytes = field(default=b"", compare=False, repr=False)


#: A client that has not authenticated itself; so far no client has to.
ANONYMOUS: Final = Principal("anonymous")


class Connection(Protocol):
    """The other end of a connection. An engine never writes to it: it returns `Send` and `Close`."""

    #: Who the client is, where it proves that once for all its requests: by SASL or a certificate.
    principal: Principal
    #: Whether the client has proven who it is at any time, which spares it a limit and allows nothing.
    is_authenticated: bool
    #: The names in the certificate with which it has proven that (subjectAltName); none without TLS.
    certificate_names: tuple[str, ...]

    @property
    def address(self) -> str:
        """Return the other end's "host:port"."""
        ...

    @property
    def number(self) -> int:
        """Return a number higher than that of every connection accepted before, on any server."""
        ...

    @property
    def is_open(self) -> bool:
        """Return whether data sent now can still arrive."""
        ...

    def __hash__(self) -> int:
        """Hash by identity."""
        ...


def host_of(connection: Connection) -> str:
    """Return the address that a client connects from, without its port."""
    return connection.address.rpartition(":")[0]


def client_network(host: str) -> str:
    """Return what limits take for one client's address: an IPv4 address, or a network of IPv6 ones."""
    if ":" not in host:
        return host
    try:
        parsed = ipaddress.IPv6Address(host.strip("[]"))
    except ValueError:
        return host
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((int(parsed), IPV6_PREFIX), strict=False))
