"""The identity of a client: its client id, from address, process and time, renewed in a forked process; and
the name servers it uses by default.

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

#: The environment variable that is used if the program configures no name server (NameServerAddressUtils,
#: ClientConfig).
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"

#: Ours: an instance name becomes part of a directory's name.
_INSTANCE_NAME: Final = re.compile(r"[A-Za-z0-9_.#-]{1,64}")

_instances = itertools.count()


#: Where `libra up` and Apache's name server listen; the commands and Spark have the same default.
NAMESRV_DEFAULT: Final = "127.0.0.1:9876"


def name_server_addresses(namesrv: str | Sequence[str] | None) -> Sequence[str]:
    """Return the configured name servers, else the environment's, else this machine's.

    A URL with a path becomes a lookup, which knows the servers once it has fetched them.
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
    """Return the address of this machine towards another one; nothing is sent."""
    host, port = split_address(towards)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


class Identity:
    """The identity of one client, created at its start or first use, and anew in a forked child.

    A server that imports a module before it forks shares that module's client among its workers. With a
    shared id, brokers would pass one worker's replies on to another.
    """

    def __init__(self, name_servers: Sequence[str], clock: Clock, instance_name: str | None = None) -> None:
        if instance_name is not None and not (
            isinstance(instance_name, str) and _INSTANCE_NAME.fullmatch(instance_name)
        ):
            raise ConfigError(
                f"{instance_name!r} cannot be the name of an instance: 1 to 64 of A-Z a-z 0-9 _ . # -"
            )
        self._name_servers = name_servers
        self._clock = clock
        self._instance_name = instance_name
        self._process_id = 0
        self._ip = self._client_id = ""

    @property
    def ip(self) -> str:
        """Return the address by which servers see this client."""
        self._make_once()
        return self._ip

    @property
    def client_id(self) -> str:
        """Return the id of the client. An id with an instance name survives a restart."""
        self._make_once()
        return self._client_id

    def _make_once(self) -> None:
        process_id = os.getpid()
        if process_id == self._process_id:
            return
        from libramq.client.routing.routes import first_server  # A Spark worker needs no log.

        self._ip = local_address(first_server(self._name_servers))
        if self._instance_name is None:
            self._client_id = new_client_id(self._ip, self._clock)
        else:
            self._client_id = f"{self._ip}@{self._instance_name}"
        self._process_id = process_id


def new_client_id(ip: str, clock: Clock) -> str:
    """Return an id for one client of this process: address, process and time."""
    return f"{ip}@{os.getpid()}#{clock.monotonic_ms()}{next(_instances):03}"
