"""An address: "host:port" as text, split and checked."""

import re
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
    """Split RocketMQ's list of name servers, "a:9876;b:9876", checking each."""
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
