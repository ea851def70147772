"""`libra groups` with a group of real Kafka clients, beside `libra up` with a Kafka port."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from libramq.admin.groups import group_rebalances
from libramq.errors import ConfigError
from libramq.groups.rebalance_history import Rebalance, RebalanceState
from tests.cli.commands import SECONDS_MAX, end, libra, start
from tests.interop.ports import free_broker_port, free_port

GROUP, TOPIC, PARTITIONS, MESSAGES = "G_kafka", "T_kafka", 4, 8


class Servers:
    """The addresses of a `libra up`."""

    def __init__(self) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.kafka = f"127.0.0.1:{free_port()}"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers()
    ports = (servers.namesrv.rpartition(":")[2], str(free_broker_port()), servers.kafka.rpartition(":")[2])
    names = ("--nameserver-port", "--broker-port", "--kafka-port")
    options = [text for pair in zip(names, ports, strict=True) for text in pair]
    process = start(["up", *options, "--data", str(tmp_path / "data")])
    try:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline()
        yield servers
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
    finally:
        end(process)


class Member:
    """A librdkafka consumer that polls on a thread until it is closed."""

    def __init__(self, servers: Servers, **settings: object) -> None:
        self._is_over = threading.Event()
        self._consumer = Consumer({
            "bootstrap.servers": servers.kafka, "group.id": GROUP, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, **settings,
        })  # fmt: skip
        self._consumer.subscribe([TOPIC])
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(SECONDS_MAX)

    def _poll(self) -> None:
        while not self._is_over.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()


def fill(servers: Servers) -> None:
    settings = {"bootstrap.servers": servers.kafka}
    admin = AdminClient(settings)
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(SECONDS_MAX)
    producer = Producer(settings)
    for number in range(MESSAGES):
        producer.produce(TOPIC, b"x", partition=number % PARTITIONS)
    assert producer.flush(SECONDS_MAX) == 0


async def settled(namesrv: str, *loads: int) -> Rebalance:
    """Wait until the group's last rebalance has settled and left members with this many queues each."""
    while True:
        try:
            last = (await asyncio.to_thread(group_rebalances, namesrv, GROUP, last=1))[0]
        except ConfigError:  # None has been recorded yet.
            last = None
        if last is not None and last.state is RebalanceState.SETTLED and tuple(last.loads.values()) == loads:
            return last
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_lag_and_rebalances_of_kafkas_groups_are_shown(servers: Servers, strategy: str):
    namesrv = servers.namesrv
    settings = {"partition.assignment.strategy": strategy}
    await asyncio.to_thread(fill, servers)
    async with asyncio.timeout(SECONDS_MAX):
        with Member(servers, **settings, **{"client.id": "first"}):
            first = await settled(namesrv, PARTITIONS)
            assert (first.moved, first.unowned) == (PARTITIONS, 0)
            with Member(servers, **settings, **{"group.instance.id": "named", "client.id": "second"}):
                both = await settled(namesrv, 2, 2)
                shown = await asyncio.to_thread(libra, "groups", "--json", "-n", namesrv)
                table = await asyncio.to_thread(libra, "groups", "--once", "-n", namesrv)
                listed = await asyncio.to_thread(libra, "groups", "--members", "--json", "-n", namesrv)
        lines = await asyncio.to_thread(libra, "groups", "history", "-g", GROUP, "-n", namesrv)
    assert (both.moved, both.minimum, both.unowned) == (2, 2, 0)
    assert "member_joined" in {cause.reason for cause in both.causes}
    assert both.worst_pause_ms is not None
    (row,) = [row for row in json.loads(shown.out) if row["group"] == GROUP]
    # They have committed nothing, so their start is unknown.
    assert (row["members"], row["queues"], row["lag"]) == (2, PARTITIONS, None)
    assert (row["protocol"], row["strategy"]) == ("Kafka", strategy)
    assert row["generation"] >= 2
    assert f"{GROUP}: Kafka members, generation {row['generation']}, strategy {strategy}" in table.out
    (members,) = [one["members"] for one in json.loads(listed.out) if one["group"] == GROUP]
    assert sorted(one["staticName"] or "" for one in members) == ["", "named"]
    assert [sum(len(held["queueIds"]) for held in one["queues"]) for one in members] == [2, 2]
    assert "member_joined named" in lines.out
