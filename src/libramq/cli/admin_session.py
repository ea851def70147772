"""An admin session: questions to name servers and brokers, one after the other, over kept connections."""

from typing import TypeVar

from libramq.cli.access import access
from libramq.clock import SystemClock
from libramq.errors import ConfigError, NameServerUnavailable, RemoteError, RouteNotFound, TopicNotExist
from libramq.remoting.body.route import BrokerData, ClusterInfo, TopicRouteData
from libramq.rpc import name_server_calls
from libramq.rpc.call import Call
from libramq.transport.address import split_name_servers
from libramq.transport.blocking import BlockingRemote

T = TypeVar("T")

#: DefaultMQAdminExt's default.
TIMEOUT_MS = 5_000


class AdminSession:
    """Use it as `with AdminSession(...)`."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._name_servers = split_name_servers(namesrv)
        self._clock = SystemClock()
        self._access = access()
        self._remotes: dict[str, BlockingRemote] = {}

    def __enter__(self) -> "AdminSession":
        return self

    def __exit__(self, *_: object) -> None:
        for remote in self._remotes.values():
            remote.close()

    def ask(self, address: str, call: Call[T], *, what: str = "broker") -> T:
        """Ask one process; raises RemoteError."""
        remote = self._remotes.get(address)
        if remote is None:
            remote = self._remotes[address] = BlockingRemote(
                address, self._clock.monotonic_ms, access=self._access
            )
        reply = remote.call(call.command(), timeout_ms=TIMEOUT_MS)
        return call.result(reply, where=f"{what} {address}")

    def ask_name_server(self, call: Call[T]) -> T:
        """Ask the first name server that answers."""
        failures = []
        for address in self._name_servers:
            try:
                return self.ask(address, call, what="name server")
            except TopicNotExist:
                raise
            except RemoteError as error:
                failures.append(str(error))
        raise NameServerUnavailable(
            f"no name server answered: {'; '.join(failures).rstrip('.')}. "
            "Start one (libra up) or name another with -n"
        )

    def route(self, topic: str) -> TopicRouteData:
        """Where a topic is; RouteNotFound when nobody has it."""
        try:
            return self.ask_name_server(name_server_calls.topic_route(topic))
        except TopicNotExist:
            raise RouteNotFound(
                f"no topic {topic} at name server {self.namesrv}; create it "
                f"(libra admin updateTopic -n {self.namesrv} -c CLUSTER -t {topic}) or check its name"
            ) from None

    def clusters(self) -> ClusterInfo:
        """All clusters and brokers."""
        return self.ask_name_server(name_server_calls.cluster_info())

    def masters(self, cluster: str) -> list[str]:
        """The addresses of a cluster's masters; ConfigError when there is no such cluster."""
        info = self.clusters()
        names = info.cluster_addr_table.get(cluster)
        if not names:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"no cluster {cluster} at name server {self.namesrv}; it knows: {known}")
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        return [broker.master_address for broker in brokers if broker.master_address is not None]


def addresses(brokers: list[BrokerData]) -> list[str]:
    """One address for each broker name: its master, else the slave with the lowest id."""
    found = (broker.any_address for broker in sorted(brokers, key=lambda broker: broker.broker_name))
    return [address for address in found if address is not None]
