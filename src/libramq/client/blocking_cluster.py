"""The cluster for synchronous code: routes, one connection per broker, and how long and how often a request
is repeated while a broker is away.

For one thread. A restarting broker is away for seconds and may return at another address, so a lost
connection also drops the address, and requests are repeated until the caller's retry timeout is over.

Upstream: client/impl/factory/MQClientInstance.java (routes), here without its own thread.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeVar

from libramq.clock import SystemClock
from libramq.errors import (
    BrokersAway,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    LibraError,
    NameServerUnavailable,
    RemoteError,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
    did_you_mean,
)
from libramq.formats.route import TopicRouteData, away_of_remark
from libramq.message.queue import MessageQueue
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import (
    all_topics,
    cluster_info,
    name_server_result,
    name_servers_unavailable,
    topic_route,
)
from libramq.transport.access import CONNECT_TIMEOUT_MS, OPEN, Access
from libramq.transport.blocking import BlockingRemote

log = logging.getLogger(__name__)  # Without structlog: Spark's tasks import this.
T = TypeVar("T")

PERM_READ: Final = 4  # PermName.java.
RETRY_TIMEOUT_MS: Final = 4_000  # Ours: a manual restart of a broker takes less.
PAUSES_MS: Final = (100, 500, 1_000, 2_000)  # Ours: between attempts; the last one repeats.
PASSING: Final = (
    ConnectFailed, ConnectionLost, RequestTimeout, SystemBusy, ServiceNotAvailable, NameServerUnavailable,
)  # fmt: skip
"""Errors that may pass in a moment."""
AWAY: Final = (NameServerUnavailable, BrokersAway)
"""Errors of topic look-ups while name servers or brokers are away."""


class Timeouts(NamedTuple):
    """The limits of waiting. retry_ms: how long requests are repeated while a broker is away."""

    answer_ms: int = 10_000
    connect_ms: int = CONNECT_TIMEOUT_MS
    retry_ms: int = RETRY_TIMEOUT_MS


USUAL: Final = Timeouts()


class BlockingCluster:
    """Name servers and brokers. Connections are made when needed and kept.

    access: credentials and TLS.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        timeouts: Timeouts = USUAL,
        access: Access = OPEN,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not name_servers:
            raise ConfigError("no name server given")
        self._name_servers = list(name_servers)
        self._timeout_ms, self._connect_timeout_ms, self._retry_timeout_ms = timeouts
        self._access = access
        self._monotonic_ms = SystemClock().monotonic_ms
        self._sleep = sleep
        self._remotes: dict[str, BlockingRemote] = {}
        self._addresses: dict[str, str] = {}  # Broker name → address.
        self._slaves: set[str] = set()  # Brokers whose master is away.
        #: Brokers that had a topic but were away when it was looked up; LibraMQ's name servers know them.
        self._absent: dict[str, list[str]] = {}

    def topics(self) -> list[str]:
        """Return the topics that the name servers know, sorted."""
        return sorted(self.ask_name_server(all_topics()))

    def broker_names(self) -> set[str]:
        """Return the brokers that are registered now."""
        return set(self.ask_name_server(cluster_info()).broker_addr_table)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, as currently registered."""
        route = self._route(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ and data.broker_name in self._addresses
            for queue_id in range(data.read_queue_nums)
        )

    def is_slave(self, broker_name: str) -> bool:
        """Return whether a slave, which may lag behind, serves a broker's queues."""
        return broker_name in self._slaves

    def broker(self, queue: MessageQueue) -> BlockingRemote:
        """Return the connection to a queue's broker."""
        if queue.broker_name not in self._addresses:
            self._route(queue.topic)
        address = self._addresses.get(queue.broker_name)
        if address is None:
            raise ConnectFailed(
                f"no broker {queue.broker_name} is registered for topic {queue.topic}; start it"
            )
        return self._remote(address)

    def start(self, remote: BlockingRemote, call: Call[T]) -> int:
        """Send a request; return the number to `finish` it with."""
        return remote.start(call.command(), timeout_ms=self._timeout_ms)

    def finish(self, remote: BlockingRemote, call: Call[T], number: int) -> T:
        """Wait for a response and decode it."""
        return call.result(remote.finish(number, timeout_ms=self._timeout_ms), where=remote.address)

    def ask(
        self, queues: Sequence[MessageQueue], call_of: Callable[[MessageQueue], Call[T]]
    ) -> dict[MessageQueue, T]:
        """Send one request per queue, all in flight at once. A failure closes the connections."""
        started = []
        try:
            for queue in queues:
                remote, call = self.broker(queue), call_of(queue)
                started.append((queue, remote, call, self.start(remote, call)))
            return {queue: self.finish(remote, call, number) for queue, remote, call, number in started}
        except LibraError:
            for name in {queue.broker_name: None for queue in queues}:
                self.disconnect(name)
            raise

    def ask_patiently(
        self, queues: Iterable[MessageQueue], call_of: Callable[[MessageQueue], Call[T]]
    ) -> dict[MessageQueue, T]:
        """Send requests as `ask` does, repeating them while brokers are away."""
        queues = list(queues)
        # Name servers forget a topic with its only broker.
        return self.patiently(lambda: self.ask(queues, call_of), (*PASSING, RouteNotFound))

    def patiently(self, attempt: Callable[[], T], passing: tuple[type[LibraError], ...] = AWAY) -> T:
        """Return the result of an attempt, repeating it while it fails with a passing error."""
        for number, pause_ms in enumerate(self.pauses_ms()):
            try:
                return attempt()
            except passing as error:
                self.pause(pause_ms, why=None if number else error)
        return attempt()

    def ask_reachable(
        self, queues: Iterable[MessageQueue], call_of: Callable[[MessageQueue], Call[T]]
    ) -> tuple[dict[MessageQueue, T], list[LibraError]]:
        """Send requests as `ask` does; return the results, and the errors of brokers without an answer."""
        found: dict[MessageQueue, T] = {}
        failures: list[LibraError] = []
        for _, group in groupby(sorted(queues, key=_broker_name), key=_broker_name):
            try:
                found |= self.ask(list(group), call_of)
            except (*PASSING, RouteNotFound) as error:
                failures.append(error)
        return found, failures

    def ask_name_server(self, call: Call[T]) -> T:
        """Query the name servers in turn until one answers."""
        failures = []
        for address in list(self._name_servers):
            try:
                reply = self._remote(address).call(call.command(), timeout_ms=self._timeout_ms)
                return name_server_result(call, reply, address)
            except TopicNotExist:
                raise
            except RemoteError as error:
                self._forget(address)
                self._name_servers.remove(address)  # Ask it last the next time.
                self._name_servers.append(address)
                failures.append(str(error))
        raise name_servers_unavailable(failures)

    def pauses_ms(self) -> Iterator[int]:
        """Yield the pauses between attempts, until the retry timeout is over."""
        left_ms, number = self._retry_timeout_ms, 0
        while left_ms > 0:
            pause_ms = min(PAUSES_MS[min(number, len(PAUSES_MS) - 1)], left_ms)
            yield pause_ms
            left_ms -= pause_ms
            number += 1

    def pause(self, pause_ms: int, *, why: LibraError | None = None) -> None:
        """Wait. why: the error to log, passed with the first of several pauses."""
        if why is not None:
            log.warning("%s; trying again for up to %g s", why, self._retry_timeout_ms / 1000)
        self._sleep(pause_ms / 1000)

    def disconnect(self, broker_name: str) -> None:
        """Drop the connection and the address: the broker may return elsewhere."""
        address = self._addresses.pop(broker_name, None)
        if address is not None:
            self._forget(address)

    def close(self) -> None:
        """Close all connections."""
        for remote in self._remotes.values():
            remote.close()
        self._remotes.clear()

    def _route(self, topic: str) -> TopicRouteData:
        try:
            route = self.ask_name_server(topic_route(topic))
        except TopicNotExist as error:
            raise self._no_route(topic, away_of_remark(error.remark)) from None
        self._absent[topic] = sorted(route.lb_absent_brokers or ())
        for broker in route.broker_datas:
            address = broker.master_address or broker.any_address
            if address is None:
                continue
            self._addresses[broker.broker_name] = address
            if broker.master_address is None:
                self._slaves.add(broker.broker_name)
            else:
                self._slaves.discard(broker.broker_name)
        return route

    def _no_route(self, topic: str, away: Sequence[str]) -> RouteNotFound:
        name_server = self._name_servers[0]
        if away:
            return BrokersAway(f"the broker with topic {topic} is away: {', '.join(away)}")
        hint = ""
        with contextlib.suppress(RemoteError):
            hint = did_you_mean(topic, self.topics())
            if not self.broker_names():  # A new name server, or Apache's whose only broker is away.
                return BrokersAway(f"name server {name_server} has no broker, so none with topic {topic}")
        return RouteNotFound(
            f"name server {name_server} knows no topic {topic}{hint}; create it "
            f"(libra admin updateTopic -n {name_server} -c CLUSTER -t {topic}) or check its name"
        )

    def _remote(self, address: str) -> BlockingRemote:
        remote = self._remotes.get(address)
        if remote is None:
            remote = self._remotes[address] = BlockingRemote(
                address,
                self._monotonic_ms,
                connect_timeout_ms=self._connect_timeout_ms,
                access=self._access,
            )
        return remote

    def _forget(self, address: str) -> None:
        remote = self._remotes.pop(address, None)
        if remote is not None:
            remote.close()


def _broker_name(queue: MessageQueue) -> str:
    return queue.broker_name
