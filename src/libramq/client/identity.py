"""The identity of a client: its address as seen by its servers, and a unique id.

Upstream: ClientConfig.buildMQClientId, UtilAll.getPid, MQClientManager.java.
"""

import itertools
import os
import re
import socket
from collections.abc import Sequence
from typing import Final

from libramq.clock import Clock
from libramq.errors import ConfigError
from libramq.transport.address import is_lookup, split_address, split_name_servers

#: NameServerAddressUtils and ClientConfig: the environment's are used if no name server is given.
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"

#: Ours: it becomes the name of a directory.
_INSTANCE_NAME: Final = re.compile(r"[A-Za-z0-9_.#-]{1,64}")

_instances = itertools.count()


#: Where `libra up` and Apache's name server listen; the commands and Spark have the same default.
NAMESRV_DEFAULT: Final = "127.0.0.1:9876"


def name_server_addresses(namesrv: str | Sequence[str] | None) -> Sequence[str]:
    """Return the configured name servers, else the environment's, else this machine's.

    A URL with a path becomes a lookup, which knows them once it has looked.
    """
    if namesrv is None:
        namesrv = os.environ.get(NAMESRV_VARIABLE) or NAMESRV_DEFAULT
    if not isinstance(namesrv, str) and not (
        isinstance(namesrv, Sequence) and all(isinstance(each, str) for each in namesrv)
    ):
        raise ConfigError(f'namesrv is "host:port", or a list of these, not {namesrv!r}')
    text = namesrv if isinstance(namesrv, str) else ";".join(namesrv)
    if is_lookup(text):
        from libramq.transport.name_server_lookup import NameServerLookup  # A Spark worker needs no log.

        return NameServerLookup(text)
    for prefix in ("http://", "https://"):
        text = text.removeprefix(prefix)
    return split_name_servers(text)


def local_address(towards: str) -> str:
    """Return the address of this machine from which another one is reached; nothing is sent."""
    host, port = split_address(towards)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def named_client_id(ip: str, instance_name: str) -> str:
    """Return the id of a client with an instance name; it survives a restart."""
    if not isinstance(instance_name, str) or not _INSTANCE_NAME.fullmatch(instance_name):
        raise ConfigError(
            f"{instance_name!r} cannot be the name of an instance: 1 to 64 of A-Z a-z 0-9 _ . # -"
        )
    return f"{ip}@{instance_name}"


def new_client_id(ip: str, clock: Clock) -> str:
    """Return an id for one client of this process: address, process and time."""
    return f"{ip}@{os.getpid()}#{clock.monotonic_ms()}{next(_instances):03}"
