"""The admin session: requests to name servers and brokers, one at a time, over connections that stay open."""

from collections.abc import Sequence
from typing import TypeVar

from libramq.cli.access import access
from libramq.clock import SystemClock
from libramq.codes import ResponseCode
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    NameServerUnavailable,
    RemoteError,
    RouteNotFound,
    TopicNotExist,
)
from libramq.formats.route import BrokerData, TopicRouteData
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.command import Command
from libramq.rpc import name_server_calls
from libramq.rpc.call import Call
from libramq.transport.address import split_name_servers
from libramq.transport.blocking import BlockingRemote

T = TypeVar("T")

#: DefaultMQAdminExt's default.
TIMEOUT_MS = 5_000


class AdminSession:
    """A session with a cluster. Use it as `with AdminSession(...)`."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._name_servers = split_name_servers(namesrv)
        self._clock = SystemClock()
        self._access = access()
        self._remotes: dict[str, BlockingRemote] = {}

    @property
    def name_server_count(self) -> int:
        """Return how many name servers it knows."""
        return len(self._name_servers)

    def __enter__(self) -> "AdminSession":
        return self

    def __exit__(self, *_: object) -> None:
        for remote in self._remotes.values():
            remote.close()

    def ask(self, address: str, call: Call[T]) -> T:
        """Send a request to one broker; raises RemoteError."""
        try:
            reply = self._reply(address, call)
        except ConnectFailed as error:
            raise ConnectFailed(
                f"{error}. Check that the broker runs; libra admin clusterList lists a cluster's brokers"
            ) from None
        return call.result(reply, where=f"broker {address}")

    def ask_each(self, addresses: Sequence[str], call: Call[T]) -> list[T]:
        """Send a request to brokers, one after the other; raises the first failure at once."""
        return [self.ask(address, call) for address in addresses]

    def _reply(self, address: str, call: Call[T]) -> Command:
        remote = self._remotes.get(address)
        if remote is None:
            remote = self._remotes[address] = BlockingRemote(
                address, self._clock.monotonic_ms, access=self._access
            )
        return remote.call(call.command(), timeout_ms=TIMEOUT_MS)

    def ask_name_server(self, call: Call[T]) -> T:
        """Send a request to the first name server that answers."""
        failures = []
        for address in self._name_servers:
            try:
                return name_server_calls.name_server_result(call, self._reply(address, call), address)
            except TopicNotExist:
                raise
            except RemoteError as error:
                if isinstance(error, BrokerError) and error.response_code == ResponseCode.QUERY_NOT_FOUND:
                    raise  # An answer: there is no such value.
                failures.append(str(error))
        raise NameServerUnavailable(
            f"no name server answered: {'; '.join(failures).rstrip('.')}. "
            "Start one (libra up) or name another with -n"
        )

    def each_name_server(self, call: Call[T]) -> dict[str, T]:
        """Send a request to every name server; return the results by address, or raise the first failure."""
        return {
            address: name_server_calls.name_server_result(call, self._reply(address, call), address)
            for address in self._name_servers
        }

    def ask_each_name_server(self, call: Call[None]) -> None:
        """Send a request to every name server, since they share nothing; then raise the first failure."""
        failures: list[RemoteError] = []
        for address in self._name_servers:
            try:
                name_server_calls.name_server_result(call, self._reply(address, call), address)
            except RemoteError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def route(self, topic: str) -> TopicRouteData:
        """Return where a topic is; raises RouteNotFound when no broker has it."""
        try:
            return self.ask_name_server(name_server_calls.topic_route(topic))
        except TopicNotExist:
            raise RouteNotFound(
                f"no topic {topic} at name server {self.namesrv}; create it "
                f"(libra admin updateTopic -n {self.namesrv} -c CLUSTER -t {topic}) or check its name"
            ) from None

    def clusters(self) -> ClusterInfo:
        """Return all clusters and brokers."""
        return self.ask_name_server(name_server_calls.cluster_info())

    def targets(self, *, broker: str | None, cluster: str | None) -> list[str]:
        """Return the brokers to use: the one that -b names, or the masters of -c's cluster."""
        if broker is not None and cluster is None:
            return [broker]
        if cluster is not None and broker is None:
            return self.masters(cluster)
        raise ConfigError(
            "name the brokers: -c CLUSTER for all brokers of a cluster, or -b HOST:PORT for one"
        )

    def masters(self, cluster: str) -> list[str]:
        """Return the addresses of a cluster's masters; raises ConfigError when there is no such cluster."""
        info = self.clusters()
        names = info.cluster_addr_table.get(cluster)
        if not names:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"no cluster {cluster} at name server {self.namesrv}; it knows: {known}")
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        return [broker.master_address for broker in brokers if broker.master_address is not None]


def addresses(brokers: list[BrokerData]) -> list[str]:
    """Return one address for each broker name: its master, else the slave with the lowest id."""
    found = (broker.any_address for broker in sorted(brokers, key=lambda broker: broker.broker_name))
    return [address for address in found if address is not None]
