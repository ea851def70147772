"""Addresses: parsing "host:port", where a server without authentication may listen (loopback, unless a public
address is allowed), and which addresses a server may announce.

The check that refuses public addresses is here for every server. No server announces an address to which
clients cannot connect.
"""

import ipaddress
import re
import socket
from typing import Final
from urllib.parse import urlsplit

from libramq.errors import ConfigError
from libramq.formats.properties_file import shown


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port", "[::1]:port"; raises ConfigError for anything else."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{shown(address)!r} is not an address; write host:port, for example 127.0.0.1:9876"
        )
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return "host:port", "[::1]:port"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_name_servers(text: str) -> tuple[str, ...]:
    """Split and validate RocketMQ's list of name servers, "a:9876;b:9876"."""
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if not addresses:
        raise ConfigError("no name server given; write host:port, several separated by ';'")
    for address in addresses:
        split_address(address)
    return addresses


def is_lookup(namesrv: str) -> bool:
    """Return whether a setting is the URL of a list: it has a path. `http://host:9876` is a name server."""
    try:
        url = urlsplit(namesrv.strip())
    except ValueError:  # Half an IPv6 address, for example.
        return False
    return url.scheme in ("http", "https") and url.path not in ("", "/")


#: "This" network, multicast, reserved and broadcast; in IPv6 unspecified, multicast and link-local, which
#: means nothing without an interface (RFC 6890).
_UNREACHABLE: Final = tuple(
    map(ipaddress.ip_network, ("0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::/128", "ff00::/8", "fe80::/10"))
)


def check_bind_address(host: str, *, allow_public: bool, remedy: str) -> None:
    """Raise ConfigError for an address that others can reach, unless `allow_public`.

    remedy: the flag or property that allows it.
    """
    if allow_public or is_loopback(host):
        return
    raise ConfigError(
        f"refusing to listen on {host or 'all addresses'}: others could reach it and clients are not"
        f" authenticated; listen on 127.0.0.1, or {remedy} if the network is trusted"
    )


def bind_address(announced: str, option: str, remedy: str) -> str:
    """Return the address to listen on when only an announced address is configured.

    Raises ConfigError unless it is loopback. option: the option that announces it.
    """
    if is_loopback(announced):
        return announced
    raise ConfigError(
        f"{option} announces {announced} to clients, but nothing would listen there; add {remedy}, or name "
        "the address to which something forwards its connections"
    )


def check_announced(address: str, option: str, *, is_name_allowed: bool = False) -> None:
    """Raise ConfigError unless clients can connect to this IP address (or name, if allowed)."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        if is_name_allowed:
            return
        raise ConfigError(f"{option} {address!r} is not an IP address; records hold it") from None
    if any(ip.version == network.version and ip in network for network in _UNREACHABLE):
        raise ConfigError(
            f"{option} {address}: no client can connect to such an address; name the one by which clients "
            "reach this machine, and listen where you like"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback only; False if it cannot be resolved."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
