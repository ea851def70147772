"""A cluster in one event loop: a name server, brokers that can be killed, members of groups, a producer."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Self

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.client import ConsumeFrom, Producer, PushConsumer
from libramq.clock import SystemClock
from libramq.formats.tables import TopicConfig
from libramq.groups.cluster_view import coordinator_of
from libramq.groups.rebalance_event import decode_event
from libramq.groups.rebalance_history import BrokerEvent
from libramq.message import Message, decode_records
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.queue import MessageQueue
from libramq.nameserver import NameServer
from libramq.remoting.credentials import Credentials
from tests.fakes import OwnFiles
from tests.interop.ports import free_broker_port
from tests.transport.loops import until

TOPIC = "T"
SESSION_MS = 1_000


def group_at(broker_name: str, names: list[str], *, besides: str | None = None) -> str:
    """Return a group that lives at one of these brokers, and at the broker `besides` once that has joined."""
    for number in range(1_000):
        group = f"g{number}"
        with_it = coordinator_of(group, [*names, besides]) if besides is not None else None
        if coordinator_of(group, names) == broker_name and with_it == besides:
            return group
    raise AssertionError("no group lives there")


class Member:
    """A consumer, its handled messages and its listener's calls. delay: how long its handler takes."""

    def __init__(self, cluster: "Cluster", group: str, name: str, **options: object) -> None:
        self.name = name
        self.queues: set[MessageQueue] = set()
        self.gained: list[MessageQueue] = []
        self.gave: list[MessageQueue] = []
        self.lost: list[MessageQueue] = []
        self.gate: asyncio.Event | None = None
        self.waiting = 0
        self.begun: set[bytes] = set()
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self.consumer = PushConsumer(
            group=group,
            namesrv=cluster.namesrv.address,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            randomness=random.Random(name),
            on_assigned=lambda queues: self._heard(self.gained, queues),
            on_revoked=lambda queues: self._heard(self.gave, queues),
            on_lost=lambda queues: self._heard(self.lost, queues),
            **({"session_ms": SESSION_MS} | options),
        )
        self.consumer.subscribe(TOPIC, "*", self._handle)

    def _heard(self, told: list[MessageQueue], queues) -> None:
        of_topic = [queue for queue in queues if queue.topic == TOPIC]
        told += of_topic
        if told is self.gained:
            self.queues |= set(of_topic)
        else:
            self.queues -= set(of_topic)

    async def _handle(self, messages) -> None:
        self.begun.update(message.body for message in messages)
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
        for message in messages:
            self._cluster.handled[message.body] += 1
            self._cluster.handled_by[message.body].append(self.name)


class Cluster:
    """A cluster with one topic.

    queues: how many queues of the topic each broker has. credentials: what brokers sign requests with.
    copied: the brokers that may have a slave.
    """

    def __init__(
        self,
        root: Path,
        queues: dict[str, int],
        *,
        credentials: Credentials | None = None,
        copied: Collection[str] = (),
    ) -> None:
        self._credentials = credentials
        self._copied = copied
        self.slaves: dict[str, BrokerServer] = {}
        self._root = root
        self._ports = {name: free_broker_port() for name in queues}
        self._queues = queues
        self.servers: dict[str, BrokerServer] = {}
        self._files: dict[BrokerServer, OwnFiles] = {}
        self.members: dict[str, Member] = {}
        self.producer: Producer | None = None
        self.sent: list[bytes] = []
        self.handled: Counter[bytes] = Counter()
        self.handled_by: dict[bytes, list[str]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        self.namesrv = NameServer("127.0.0.1", 0)
        await self.namesrv.__aenter__()
        for name in self._queues:
            await self.start(name)
        await until(self.sees_all)
        await until(self.is_routed)
        await self.new_producer()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            await member.consumer.stop(timeout_ms=1_000)
        await self.producer.stop()
        for server in (*self.slaves.values(), *self.servers.values()):
            await server.stop()
        await self.namesrv.__aexit__(None, None, None)

    # Brokers.

    @property
    def names(self) -> list[str]:
        return sorted(self.servers)

    async def start(self, name: str) -> None:
        config = BrokerConfig(
            broker_name=name,
            store_path=str(self._root / name),
            listen_port=self._ports[name],
            namesrv_addr=self.namesrv.address,
            credentials=self._credentials,
            ha_listen_port=self._ports[name] + 1 if name in self._copied else 0,
        )
        server = self.servers[name] = await self._run(config)
        count = self._queues[name]
        if count and TOPIC not in server.broker.topics:
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=count, write_queue_nums=count)
            server.broker.topics.put(topic, SystemClock().wall_ms())

    async def start_slave(self, master: str) -> BrokerServer:
        """Start a slave of a broker, and wait until it has the topic and copies the log."""
        config = BrokerConfig(
            broker_name=master,
            broker_id=1,
            broker_role="SLAVE",
            slave_read_enable=True,
            store_path=str(self._root / f"slave of {master}"),
            listen_port=free_broker_port(),
            namesrv_addr=self.namesrv.address,
            credentials=self._credentials,
        )
        server = self.slaves[master] = await self._run(config)
        await until(lambda: TOPIC in server.broker.topics)
        return server

    async def copied(self, name: str) -> None:
        """Wait until the slave of a broker has everything that the broker has."""
        master, slave = self.servers[name].broker.store, self.slaves[name].broker.store
        await until(lambda: slave.visible_offset == master.end)

    async def _run(self, config: BrokerConfig) -> BrokerServer:
        files = OwnFiles()
        server = BrokerServer(config, clock=SystemClock(), filesystem=files)
        self._files[server] = files
        await server.start()
        return server

    async def add(self, name: str, queues: int) -> None:
        self._ports[name], self._queues[name] = free_broker_port(), queues
        await self.start(name)

    async def kill(self, name: str) -> None:
        """Kill a broker as SIGKILL does: connections break without a goodbye, and files stay as they are."""
        server = self.servers.pop(name)
        server._performer.stop()
        for listener in server._servers:
            await listener._listener.close()
            listener._idle_check.cancel()
            for connection in list(listener._connections):
                connection.abort("killed")
        await server._remotes.aclose()
        await server._threads.close()
        server.broker.store._release()
        self._files[server].close_all()

    def sees_all(self) -> bool:
        """Return whether all running brokers see each other, and no other broker."""
        views = [server.broker.cluster.others.view.names for server in self.servers.values()]
        return all(view == self.names for view in views)

    def is_routed(self) -> bool:
        """Return whether the name server has every broker's topic, which is announced after its creation."""
        route = self.namesrv.route_info.route(TOPIC)
        routed = {each.broker_name for each in route.queue_datas} if route is not None else set()
        return routed == {name for name in self.names if self._queues[name]}

    def queues(self, *names: str) -> list[MessageQueue]:
        """Return the topic's queues at these brokers, or at all running ones if none are named."""
        return [
            MessageQueue(TOPIC, name, number)
            for name in names or self.names
            for number in range(self._queues[name])
        ]

    def group(self, group: str):
        """Return the one broker at which a group lives, and the group as that coordinator sees it."""
        found = {
            name: view
            for name, server in self.servers.items()
            if (view := server.broker.members.coordination.group(group)) is not None
        }
        assert len(found) <= 1, f"{group} lives at {sorted(found)}"
        return next(iter(found.items()), (None, None))

    def events(self) -> list[BrokerEvent]:
        """Return the rebalance events that all brokers have recorded."""
        return [
            BrokerEvent(name, decode_event(message.body))
            for name, server in self.servers.items()
            for message in decode_records(
                b"".join(server.broker.store.read(REBALANCE_EVENTS_TOPIC, 0, 0, 1_000).data)
            )
        ]

    # Clients.

    async def join(self, group: str, name: str, **options: object) -> Member:
        member = self.members[name] = Member(self, group, name, **options)
        await member.consumer.start()
        return member

    async def leave(self, name: str) -> None:
        await self.members.pop(name).consumer.stop()

    async def new_producer(self) -> None:
        if self.producer is not None:
            await self.producer.stop()
        self.producer = Producer(group="p", namesrv=self.namesrv.address)
        await self.producer.start()

    async def send(self, count: int, *names: str) -> None:
        """Send this many messages to each queue of these brokers, or of all running ones."""
        for queue in self.queues(*names) * count:
            body = b"%d" % len(self.sent)
            self.sent.append(body)
            await self.producer.send(Message(TOPIC, body), queue=queue)

    # State.

    def is_even(self, *members: Member) -> bool:
        """Return whether these members hold all queues of all running brokers, with loads within one."""
        loads = [len(member.queues) for member in members]
        held = [queue for member in members for queue in member.queues]
        return sorted(held) == sorted(self.queues()) and max(loads) - min(loads) <= 1

    async def even(self, *members: Member) -> None:
        await until(lambda: self.is_even(*members))

    async def all_handled(self) -> None:
        await until(lambda: len(self.handled) == len(self.sent))

    async def all_committed(self, group: str, count: int) -> None:
        """Wait until this many messages of each queue are committed."""

        def committed(queue: MessageQueue) -> int | None:
            offsets = self.servers[queue.broker_name].broker.offsets
            return offsets.first_to_read(group, TOPIC, queue.queue_id)

        await until(lambda: all(committed(queue) == count for queue in self.queues()))

    @property
    def repeated(self) -> dict[bytes, list[str]]:
        return {body: self.handled_by[body] for body, count in self.handled.items() if count > 1}
