"""The bind address: a server without authentication listens where only this machine reaches it.

A public address is refused in one place, for every server, unless its owner has allowed it.
"""

import ipaddress
import socket

from libramq.errors import ConfigError


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


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine only; False if it cannot be resolved."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
