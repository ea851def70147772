"""The admin client: queries and changes topics, clusters and groups at name servers and brokers. Each request
goes to one server, to one after the other, or to all brokers of a cluster at once.

    async with Admin(namesrv="127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=16)

Upstream: tools/admin/DefaultMQAdminExt.java.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Never, TypeVar

import msgspec

from libramq.admin.offset_resets import reset_queue, reset_topics
from libramq.client.awaiting import answer_of
from libramq.client.identity import name_server_addresses
from libramq.client.options import AdminOptions, AsyncClient, check_names, whole_number
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.routes import look_up
from libramq.clock import Clock, SystemClock
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConsumerNotOnline,
    InvalidState,
    LibraError,
    NotCoordinator,
    RemoteError,
    RouteNotFound,
)
from libramq.formats.route import BrokerData, TopicRouteData
from libramq.formats.tables import PERM_READ, PERM_WRITE, TopicConfig
from libramq.logs import get_logger
from libramq.message.ids import decode_offset_id
from libramq.message.names import dlq_topic, groups_of, retry_topic, validate_group, validate_topic
from libramq.message.queue import MessageQueue
from libramq.remoting.body.administration import ConsumeDirectlyResult
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.body.consumers import (
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    OffsetWrapper,
    TopicOffset,
)
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials
from libramq.rpc import admin_calls, group_calls, name_server_calls
from libramq.rpc.call import Call
from libramq.transport.access import client_access
from libramq.transport.address import join_address
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.tls import Tls

log = get_logger(__name__)

T = TypeVar("T")

#: DefaultMQAdminExt.timeoutMillis.
TIMEOUT_MS: Final = 5_000
#: Ours, as for routes: the queues that one topic may have at one broker.
QUEUES_MAX: Final = 65_536
#: Ours: the delay before a group's coordinator is looked up again.
FIND_AGAIN_SECONDS: Final = 0.1
#: The default of mqadmin updateTopic.
QUEUES: Final = 8


class Admin(AsyncClient):
    """The admin client; it belongs to the event loop on which it was started.

    credentials: sign the requests, for clusters with authentication (ACL). tls: encrypts the connections.
    """

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
        **unknown: Never,
    ) -> None:
        check_names(unknown, AdminOptions.__annotations__, "Admin")
        whole_number("timeout_ms", timeout_ms, 1)
        self._name_server_addresses = name_server_addresses(namesrv)
        self._timeout_ms = timeout_ms
        self._access = client_access(credentials, tls)
        self._clock = clock or SystemClock()
        self._random = randomness
        self._remotes: AsyncioRemotes | None = None
        #: Each broker's groups, from its last answer.
        self._configured: list[tuple[BrokerData, frozenset[str]]] = []
        #: Each group's absent brokers, as last logged.
        self._absent: dict[str, list[str] | None] = {}

    async def start(self) -> None:
        """Start; connections are made when they are needed."""
        if self._remotes is not None:
            raise InvalidState("this admin runs already")
        await look_up(self._name_server_addresses)
        self._remotes = AsyncioRemotes(self._clock.monotonic_ms, access=self._access)
        randomness = self._random or random.Random()  # Made late: forked children would share its state.
        self._name_servers = NameServers(
            self._remotes, self._name_server_addresses, randomness, self._clock.monotonic_ms
        )

    async def stop(self) -> None:
        """Close all connections."""
        remotes = self._remotes
        if remotes is None:
            return
        if not remotes.is_parents:
            remotes.require_loop("admin")
        self._remotes = None
        await remotes.aclose()

    async def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(await self._ask_name_server(name_server_calls.all_topics()))

    async def groups(self) -> list[str]:
        """Return all groups that brokers know, sorted, including those that pop or assign their queues."""
        self._configured = await self._configurations()
        configured = {group for _, groups in self._configured for group in groups}
        return groups_of(await self.topics(), configured)

    async def _configurations(self) -> list[tuple[BrokerData, frozenset[str]]]:
        """Return the configured groups of each broker; none for a broker that does not answer."""
        brokers = (await self.cluster_info()).broker_addr_table.values()

        async def at(broker: BrokerData) -> frozenset[str]:
            if broker.any_address is None:
                return frozenset()
            try:
                return frozenset(await self._ask(broker.any_address, admin_calls.ALL_GROUP_CONFIGS))
            except RemoteError:  # The broker is away, or we lack the permission to list them.
                return frozenset()

        return list(zip(brokers, await asyncio.gather(*map(at, brokers)), strict=True))

    async def _configured_route(self, group: str) -> TopicRouteData | None:
        """Return the brokers of a group without a retry topic: its members pop or assign their queues."""
        for is_known in (True, False):
            if not is_known:
                self._configured = await self._configurations()
            found = [broker for broker, groups in self._configured if group in groups]
            if found:
                return TopicRouteData(broker_datas=found)
        return None

    async def cluster_info(self) -> ClusterInfo:
        """Return all clusters and their brokers."""
        return await self._ask_name_server(name_server_calls.cluster_info())

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return a topic's route; raises RouteNotFound."""
        validate_topic(topic)
        return await self._route(topic)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        cluster: str | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        read_queues: int | None = None,
        write_queues: int | None = None,
        abandon_unread: bool = False,
    ) -> list[str]:
        """Create a topic at every master of a cluster, or change it; return their addresses.

        cluster: may be omitted if there is only one. Fewer read queues are refused while groups have unread
        messages in the removed ones; abandon_unread: give those messages up.
        """
        validate_topic(topic)
        for name, count in (("queues", queues), ("read_queues", read_queues), ("write_queues", write_queues)):
            if count is not None:
                whole_number(name, count, 1, QUEUES_MAX)
        whole_number("perm", perm, 0, PERM_READ | PERM_WRITE)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
        )
        masters = await self._masters(cluster)
        await self._ask_each(masters, admin_calls.create_topic(config, abandon_unread=abandon_unread))
        return masters

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every master of a cluster, and its route at every name server."""
        validate_topic(topic)
        await self._ask_each(await self._masters(cluster), admin_calls.delete_topic(topic))
        await self._ask_name_servers(name_server_calls.delete_topic(topic))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and last offsets of a topic's queues, at all its brokers."""
        validate_topic(topic)
        brokers = addresses((await self._route(topic)).broker_datas)
        tables = await self._ask_each(brokers, admin_calls.topic_stats(topic))
        return {queue: ends for table in tables for queue, ends in table.offset_table.items()}

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress by queue."""
        answers = await self._ask_group(group, admin_calls.consume_stats(group, topic))
        return {queue: offset for stats in answers for queue, offset in stats.offset_table.items()}

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int = -1, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets in a topic to a time (-1: the end); return the new offsets by queue.

        force: move forwards as well as back. Members of a coordinated group continue there at once: they lose
        their queues and open them again, and messages in their handlers are not committed.
        """
        validate_group(group)
        validate_topic(topic)
        whole_number("timestamp_ms", timestamp_ms, -1)
        asks = [partial(self._ask, address) for address in addresses((await self._route(topic)).broker_datas)]
        return await reset_topics(asks, group, topic, timestamp_ms=timestamp_ms, force=force)

    async def reset_queue(
        self, group: str, queue: MessageQueue, offset: int | None = None, *, timestamp_ms: int = -1
    ) -> int:
        """Set a group's offset in one queue, by offset or time (-1: the end); return the new offset.

        Other queues keep theirs. An offset outside the queue is moved to the nearer end; Apache's broker
        refuses it. Apache's brokers before 5.2 require that the group has no member online; otherwise
        FeatureNotSupported is raised.
        """
        validate_group(group)
        validate_topic(queue.topic)
        whole_number("queue_id", queue.queue_id, 0)
        whole_number("timestamp_ms", timestamp_ms, -1)
        if offset is not None:
            whole_number("offset", offset, 0)
        address = await self._broker_of(queue)
        where = f"broker {queue.broker_name} at {address}"
        ask = partial(self._ask, address)
        return await reset_queue(ask, group, queue, offset, timestamp_ms=timestamp_ms, where=where)

    async def delete_group(
        self, group: str, *, cluster: str | None = None, offsets: bool = False
    ) -> list[str]:
        """Delete a consumer group at every master of a cluster; return their addresses.

        Its retry topic and its dead letters are deleted with it. offsets: delete its committed offsets as
        well; otherwise a new group of this name continues there.
        """
        validate_group(group)
        masters = await self._masters(cluster)
        await self._ask_each(masters, admin_calls.delete_group(group, clean_offset=offsets))
        for topic in (retry_topic(group), dlq_topic(group)):
            await self.delete_topic(topic, cluster=cluster)
        return masters

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return a group's connected members at all brokers; raises ConsumerNotOnline if there are none."""
        call = admin_calls.consumer_connection(group)
        answers = await self._ask_group(group, call, passing=ConsumerNotOnline)
        answers += await self._ask_coordinator(group, call)
        members: dict[str, ClientConnection] = {}
        for answer in answers:
            for member in answer.connection_set:
                members[member.client_id] = _merged(members.get(member.client_id), member)
        diagnoses = {(one.kind, one.about): one for answer in answers for one in answer.diagnoses}
        return msgspec.structs.replace(
            answers[0],
            connection_set=[members[client_id] for client_id in sorted(members)],
            diagnoses=list(diagnoses.values()),
        )

    async def running_info(self, group: str, client_id: str, *, threads: bool = False) -> ConsumerRunningInfo:
        """Return a member's running info: its settings, subscriptions and queues.

        threads: include the stack of each thread. Raises BrokerError if the member is not online.
        """
        call = admin_calls.running_info(group, client_id, jstack_enable=threads)
        return (await self._ask_group(group, call, passing=BrokerError))[0]

    async def consume_directly(self, group: str, client_id: str, message_id: str) -> ConsumeDirectlyResult:
        """Make a member process one message, by its offset id, whether the group has consumed it or not.

        Offsets and redeliveries do not change; the result is that of the member's handler.
        """
        validate_group(group)
        host, port = decode_offset_id(message_id).host
        address = join_address(host, port)
        return await self._ask(address, admin_calls.consume_directly(group, client_id, message_id))

    async def remove_member(self, group: str, name: str, *, operator: str | None = None) -> None:
        """Remove a member from a coordinated group: a static one by its name, or any by its client id.

        Meant for members that will not return: their queues move at once. A removed member that is alive
        joins again. operator: who removes it, for the record; the coordinator adds the host that it sees.
        Raises UnknownMember, or InvalidParameter if the group's members allocate for themselves because some
        are stock clients.
        """
        validate_group(group)
        remove, find = group_calls.remove_member(group, name, operator), group_calls.find_group(group)
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                coordinators = await self._ask_group(group, find, passing=NotCoordinator)
                return await self._ask(coordinators[0], remove)
            # The coordinator has just moved, or the brokers have not found each other yet.
            except NotCoordinator:
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(FIND_AGAIN_SECONDS)

    async def _broker_of(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has a queue; raises RouteNotFound."""
        brokers = (await self._route(queue.topic)).broker_datas
        for broker in brokers:
            if broker.broker_name == queue.broker_name and broker.any_address is not None:
                return broker.any_address
        known = ", ".join(broker.broker_name for broker in brokers)
        raise RouteNotFound(f"topic {queue.topic} is not at broker {queue.broker_name}; it is at: {known}")

    async def _reply(self, address: str, call: Call[Any]) -> Command:
        return await self._running().call(address, call.command(), timeout_ms=self._timeout_ms)

    def _running(self) -> AsyncioRemotes:
        if self._remotes is None:
            raise InvalidState("this admin does not run; use `async with` or await start()")
        self._remotes.require_loop("admin")
        return self._remotes

    async def _ask(self, address: str, call: Call[T]) -> T:
        """Make a call at one broker."""
        return call.result(await self._reply(address, call), where=f"broker {address}")

    async def _ask_each(self, addresses: Sequence[str], call: Call[T]) -> list[T]:
        """Make a call at several brokers."""
        return await asyncio.gather(*(self._ask(address, call) for address in addresses))

    async def _ask_group(
        self, group: str, call: Call[T], *, passing: type[BrokerError] | None = None
    ) -> list[T]:
        """Query the brokers that have a group; errors of the `passing` type count only if all return them."""
        answers, error = [], None
        for address in addresses((await self._group_route(group)).broker_datas):
            try:
                answers.append(await self._ask(address, call))
            except BrokerError as failure:
                if passing is None or not isinstance(failure, passing):
                    raise
                error = failure
        if not answers:
            raise error or RouteNotFound(f"no broker of group {group} is available")
        return answers

    async def _ask_coordinator(self, group: str, call: Call[T]) -> list[T]:
        """Query a group's coordinator if it is not a broker of the group; Apache's brokers know of none."""
        others = addresses((await self._group_route(group)).broker_datas)
        try:
            coordinator = await self._ask(others[0], group_calls.find_group(group))
            return [await self._ask(coordinator, call)] if coordinator not in others else []
        except LibraError:
            return []

    async def _ask_name_server(self, call: Call[T]) -> T:
        """Make a call at one name server, or at another if it does not answer."""
        self._running()
        return await answer_of(partial(self._name_servers.ask, call))

    async def _ask_name_servers(self, call: Call[None]) -> object:
        """Make a call at every name server, since they share nothing."""
        self._running()
        return await answer_of(partial(self._name_servers.ask_each, call))

    async def _route(self, topic: str) -> TopicRouteData:
        """Return a topic's route; raises RouteNotFound."""
        self._running()
        return await answer_of(partial(self._name_servers.route, topic))

    async def _group_route(self, group: str) -> TopicRouteData:
        """Return a group's route, and log absent brokers; raises RouteNotFound."""
        unknown = f"no broker knows group {group}: it is known once its first consumer has started"
        route = await self._found_group(group, unknown)
        if route.lb_absent_brokers and route.lb_absent_brokers != self._absent.get(group):
            log.warning(
                "brokers that had a group are away, and their part of it is missing",
                group=group,
                brokers=route.lb_absent_brokers,
            )
        self._absent[group] = route.lb_absent_brokers
        return route

    async def _found_group(self, group: str, unknown: str) -> TopicRouteData:
        """Return the brokers with a group's retry topic, or its configuration; raises RouteNotFound."""
        validate_group(group)
        try:
            return await self._route(retry_topic(group))
        except RouteNotFound:
            configured = await self._configured_route(group)
            if configured is not None:
                return configured
            raise RouteNotFound(unknown) from None

    async def _masters(self, cluster: str | None) -> list[str]:
        """Return the addresses of a cluster's masters. None: the only cluster."""
        info = await self.cluster_info()
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        if cluster is None:
            if len(info.cluster_addr_table) != 1:
                raise ConfigError(f"name a cluster; the name server knows: {known}")
            cluster = next(iter(info.cluster_addr_table))
        names = info.cluster_addr_table.get(cluster)
        if not names:
            servers = ";".join(self._name_server_addresses)
            raise ConfigError(f"no cluster {cluster} at name server {servers}; it knows: {known}")
        brokers = [info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table]
        return [broker.master_address for broker in brokers if broker.master_address is not None]


def addresses(brokers: Iterable[BrokerData]) -> list[str]:
    """Return one address for each broker name: the master's, or that of the slave with the lowest id."""
    found = (broker.any_address for broker in sorted(brokers, key=lambda broker: broker.broker_name))
    return [address for address in found if address is not None]


def _merged(known: ClientConnection | None, member: ClientConnection) -> ClientConnection:
    """Merge two brokers' views of a member: each knows only its own queues, one knows the static name."""
    if known is None:
        return member
    queues = {topic: dict(brokers) for topic, brokers in known.queues.items()}
    for topic, brokers in member.queues.items():
        queues.setdefault(topic, {}).update(brokers)
    return msgspec.structs.replace(member, instance=known.instance or member.instance, queues=queues)
