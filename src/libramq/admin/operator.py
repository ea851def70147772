"""The operator: an admin that can make any call at any server of a cluster, for mqadmin's commands.

A call (`rpc/admin_calls.py`) is a typed request; the operator chooses the servers: the brokers of a topic, a
group or a cluster. Its errors name the command that helps.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from libramq.admin.admin import QUEUES_MAX, Admin
from libramq.admin.admin import addresses as addresses
from libramq.admin.offset_resets import reset_queue, reset_topics
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    NameServerUnavailable,
    QueryNotFound,
    RemoteError,
    RequestTimeout,
    TopicNotExist,
)
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import TopicConfig
from libramq.message.names import validate_group, validate_topic
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ClientConnection, OffsetWrapper, TopicOffset
from libramq.remoting.command import Command
from libramq.rpc import admin_calls as calls
from libramq.rpc import name_server_calls
from libramq.rpc.call import Call
from libramq.transport.address import split_address, split_name_servers

T = TypeVar("T")

#: PermName: 2 write, 4 read, 6 both.
PERMISSIONS: Final = (2, 4, 6)
#: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG: topic → "broker:queues;broker:queues".
ORDER: Final = "ORDER_TOPIC_CONFIG"


class Progress(NamedTuple):
    """A group's progress at all reachable brokers. absent_brokers: the others."""

    offsets: dict[MessageQueue, OffsetWrapper]
    consume_tps: float
    absent_brokers: list[str]

    @property
    def behind(self) -> int:
        """Return the number of messages that the group has not consumed."""
        return sum(offset.behind for offset in self.offsets.values())


class Target(NamedTuple):
    """The brokers named in a command: one by its address, or the masters of a cluster."""

    broker: str | None
    cluster: str | None


class Operator(Admin):
    """Makes calls at brokers and name servers. namesrv: name server addresses, separated by semicolons."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(namesrv=namesrv)
        self.namesrv = namesrv
        self.name_servers = split_name_servers(namesrv)

    async def ask(self, address: str, call: Call[T]) -> T:
        """Make a call at one broker; raises RemoteError."""
        split_address(address)
        try:
            return await super()._ask(address, call)
        except ConnectFailed as error:
            raise ConnectFailed(f"{error}; libra admin clusterList lists a cluster's brokers") from None

    async def ask_each(self, brokers: Sequence[str], call: Call[T]) -> dict[str, T]:
        """Make a call at several brokers at once; the first failure is raised and notes who has answered."""
        found = await asyncio.gather(
            *(self.ask(address, call) for address in brokers), return_exceptions=True
        )
        answers = {
            each: answer
            for each, answer in zip(brokers, found, strict=True)
            if not isinstance(answer, BaseException)
        }
        for answer in found:
            if isinstance(answer, BaseException):
                if answers:
                    answer.add_note(f"These have answered: {', '.join(answers)}")
                raise answer
        return answers

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int = -1,
        force: bool = True,
        broker: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Move a group's offsets in a topic, or in a queue of a broker; return the new offsets.

        The requests depend on the broker's version: see `offset_resets`.
        """
        validate_group(group)
        brokers = await self.brokers_of(topic) if broker is None else [broker]
        if queue_id is None:
            asks = [partial(self.ask, each) for each in brokers]
            return await reset_topics(asks, group, topic, timestamp_ms=timestamp_ms, force=force)
        if len(brokers) != 1:
            raise ConfigError(
                f"the topic {topic} has a queue {queue_id} at each of its brokers; name one with -b: "
                + ", ".join(brokers)
            )
        (address,) = brokers
        for each in (await self.route(topic)).broker_datas:
            if address in each.broker_addrs.values():
                queue, ask = MessageQueue(topic, each.broker_name, queue_id), partial(self.ask, address)
                reached = await reset_queue(
                    ask, group, queue, offset, timestamp_ms=timestamp_ms, where=f"broker {address}"
                )
                return {queue: reached}
        raise ConfigError(
            f"the topic {topic} is not at {address}; it is at: {', '.join(await self.brokers_of(topic))}"
        )

    async def ask_targets(self, call: Call[T], target: Target) -> dict[str, T]:
        """Make a call at the named brokers."""
        return await self.ask_each(await self.targets(target), call)

    async def ask_name_server(self, call: Call[T]) -> T:
        """Make a call at the first name server that answers."""
        failures = []
        for address in self.name_servers:
            try:
                return await self._at_name_server(address, call)
            except (TopicNotExist, QueryNotFound):
                raise  # An answer: there is no such topic or value.
            except RemoteError as error:
                failures.append(str(error))
        raise NameServerUnavailable(
            f"no name server answered: {'; '.join(failures).rstrip('.')}. "
            "Start one (libra up) or name another with -n"
        )

    async def ask_name_servers(self, call: Call[T]) -> dict[str, T]:
        """Make a call at every name server, since they share nothing; then raise the first failure."""
        answers: dict[str, T] = {}
        failures: list[RemoteError] = []
        for address in self.name_servers:
            try:
                answers[address] = await self._at_name_server(address, call)
            except RemoteError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return answers

    async def _at_name_server(self, address: str, call: Call[T]) -> T:
        return name_server_calls.name_server_result(call, await self._reply(address, call), address)

    async def route(self, topic: str) -> TopicRouteData:
        """Return a topic's route; raises RouteNotFound if no broker has it."""
        return await super()._route(topic)

    async def group_route(self, group: str) -> TopicRouteData:
        """Return a group's route; raises RouteNotFound if no broker has it."""
        unknown = (
            f"no group {group} at name server {self.namesrv}: a group is known once its first consumer "
            "has started; check the name (libra admin consumerProgress lists all)"
        )
        return await self._found_group(group, unknown)

    async def brokers_of(self, topic: str) -> list[str]:
        """Return the address of each broker that has a topic: the master's, or else a slave's."""
        return addresses((await self.route(topic)).broker_datas)

    async def brokers_of_group(self, group: str) -> list[str]:
        """Return the address of each broker that has a group."""
        return addresses((await self.group_route(group)).broker_datas)

    async def targets(self, target: Target) -> list[str]:
        """Return the addresses of the named brokers; raises ConfigError unless exactly one option is set."""
        if target.broker is not None and target.cluster is None:
            return [target.broker]
        if target.cluster is not None and target.broker is None:
            return await self.masters(target.cluster)
        raise ConfigError(
            "name the brokers: -c CLUSTER for all brokers of a cluster, or -b HOST:PORT for one"
        )

    masters = Admin._masters
    # The methods of Admin make their calls through these.

    _ask = ask
    _ask_name_server = ask_name_server
    _ask_name_servers = ask_name_servers
    _route = route
    _group_route = group_route

    async def _ask_each(self, addresses: Sequence[str], call: Call[T]) -> list[T]:
        return list((await self.ask_each(addresses, call)).values())

    async def _reply(self, address: str, call: Call[Any]) -> Command:
        try:
            return await super()._reply(address, call)
        except RequestTimeout:
            raise RequestTimeout.of(address, f"within {self._timeout_ms} ms") from None

    # Results combined from several calls.

    async def progress(self, group: str, topic: str | None = None) -> Progress:
        """Return a group's progress, in one topic or in all."""
        route = await self.group_route(group)
        found = await self._ask_each(addresses(route.broker_datas), calls.consume_stats(group, topic))
        offsets = {queue: offset for stats in found for queue, offset in stats.offset_table.items()}
        return Progress(offsets, sum(stats.consume_tps for stats in found), route.lb_absent_brokers or [])

    async def topic_ends(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and last offsets of a topic's queues, sorted."""
        return dict(sorted((await self.topic_stats(topic)).items()))

    async def groups_at(self, brokers: Sequence[str], topic: str) -> list[str]:
        """Return the groups that consume a topic at brokers, sorted."""
        found = await self.ask_each(brokers, calls.topic_consumers(topic))
        return sorted({group for groups in found.values() for group in groups})

    async def connected(self, broker: str, group: str) -> list[ClientConnection]:
        """Return the members of a group that are connected to a broker."""
        try:
            return (await self.ask(broker, calls.consumer_connection(group))).connection_set
        except BrokerError:
            return []  # No member is connected.

    async def update_topic(
        self, config: TopicConfig, target: Target, *, attributes: str = "", abandon_unread: bool = False
    ) -> list[str]:
        """Create or change a topic; return its brokers' addresses. An ordered topic is configured at name
        servers as well.
        """
        validate_topic(config.topic_name)
        check_permission(config.perm)
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 < count <= QUEUES_MAX:
                raise ConfigError(f"{count} queues; 1 to {QUEUES_MAX} are allowed")
        call = calls.create_topic(config, attributes=attributes, abandon_unread=abandon_unread)
        brokers = list(await self.ask_targets(call, target))
        if config.order:
            table = (await self.cluster_info()).broker_addr_table.values()
            names = sorted(data.broker_name for data in table if data.master_address in brokers)
            await self._add_to_order(config.topic_name, names, config.write_queue_nums)
        return brokers

    async def _add_to_order(self, topic: str, brokers: list[str], queues: int) -> None:
        """Add brokers to the order configuration of a topic, each with a number of queues."""
        try:
            before = await self.ask_name_server(calls.get_value(ORDER, topic))
        except BrokerError:
            before = ""  # The topic has none yet.
        parts = [part for part in before.split(";") if part and part.rpartition(":")[0] not in brokers]
        value = ";".join([*parts, *(f"{broker}:{queues}" for broker in brokers)])
        await self.ask_name_servers(calls.put_value(ORDER, topic, value))


def check_permission(perm: int) -> None:
    """Raise ConfigError for a permission that does not exist."""
    if perm not in PERMISSIONS:
        raise ConfigError(f"{perm} is not a permission; 2 is write, 4 read, 6 both")
