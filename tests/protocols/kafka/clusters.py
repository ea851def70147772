"""Three broker processes that serve Kafka's clients together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from libramq.groups.cluster_view import coordinator_of
from tests.cli.commands import libra
from tests.interop.libra import LibraServers
from tests.interop.ports import free_port
from tests.interop.process import PATIENCE_S

NAMES = ("broker-a", "broker-b", "broker-c")


def wait_until(holds: Callable[[], bool], what: str, *, pause_s: float = 0.02) -> None:
    """Call a function until it returns True. Pass `pause_s` 0 if the function itself waits a little."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


class KafkaCluster:
    """A name server and brokers; `ports` are the brokers' Kafka ports."""

    def __init__(self, home: Path, names: tuple[str, ...] = NAMES) -> None:
        self.names = names
        self.ports = {name: free_port() for name in names}
        self.servers = LibraServers(home)
        for name in names:
            self.start(name)
        self.wait_brokers(len(names))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self, name: str) -> None:
        self.servers.start(name, kafkaListenPort=self.ports[name], kafkaMemberGraceMs=150)

    def kill(self, name: str) -> None:
        self.servers.kill(name)

    @contextmanager
    def killed(self, name: str) -> Iterator[None]:
        """Kill a broker, and restart it at the end."""
        self.kill(name)
        try:
            yield
        finally:
            self.start(name)
            self.wait_brokers(len(self.names))

    def stop(self) -> None:
        self.servers.stop()

    def address(self, name: str) -> str:
        """Return a broker's address for RocketMQ's clients."""
        return f"127.0.0.1:{self.servers.ports[name]}"

    def tool(self, *arguments: str) -> str:
        """Run a command of RocketMQ's tools, and return its output."""
        run = libra("admin", *arguments, "-n", self.servers.namesrv)
        assert run.code == 0, run.err
        return run.out

    def admin(self, *names: str) -> AdminClient:
        """Return an admin client that bootstraps from these brokers."""
        servers = ",".join(f"127.0.0.1:{self.ports[name]}" for name in names or self.names)
        return AdminClient({"bootstrap.servers": servers})

    def wait_brokers(self, count: int, *names: str) -> None:
        """Wait until each of these brokers knows this many brokers."""
        for name in names or self.names:
            admin = self.admin(name)
            wait_until(
                lambda admin=admin: len(admin.list_topics(timeout=PATIENCE_S).brokers) == count,
                f"{name} does not know {count} brokers",
            )

    def create(self, topic: str, partitions: int) -> None:
        admin = self.admin()  # A client that is collected ends its requests.
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)

    def leaders(self, topic: str, *names: str) -> dict[int, str | None]:
        """Return the broker that leads each partition; None while it is down."""
        metadata = self.admin(*names).list_topics(topic, timeout=PATIENCE_S)
        ports = {port: name for name, port in self.ports.items()}
        brokers = {each.id: ports[each.port] for each in metadata.brokers.values()}
        return {index: brokers.get(each.leader) for index, each in metadata.topics[topic].partitions.items()}

    def group_at(self, name: str, prefix: str = "g") -> str:
        """Return a group that a broker coordinates."""
        return next(
            group
            for number in range(1_000)
            if coordinator_of(group := f"{prefix}-{number}", self.names) == name
        )

    def producer(self, **settings: Any) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, **settings})

    def consumer(self, group: str, **settings: Any) -> Consumer:
        classic = {} if "group.protocol" in settings else {"session.timeout.ms": 10_000}
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                **classic,
                **settings,
            }
        )
