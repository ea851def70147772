"""Kafka's Java clients on three brokers of ours, in groups of both protocols."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache import set_up
from tests.interop.kafka_programs import KafkaClients
from tests.interop.process import PATIENCE_S
from tests.protocols.kafka.clusters import KafkaCluster, wait_until
from tests.protocols.kafka.test_cluster import committed

pytestmark = pytest.mark.interop

A, B, C = "broker-a", "broker-b", "broker-c"
PARTITIONS = 6
PROTOCOLS = {
    "classic": {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 1_000},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    set_up()
    cluster = KafkaCluster(tmp_path / "servers")
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def clients(cluster: KafkaCluster, tmp_path: Path) -> Iterator[KafkaClients]:
    clients = KafkaClients(cluster.bootstrap, home=tmp_path)
    try:
        yield clients
    finally:
        clients.stop()


def assignments(clients: KafkaClients, name: str) -> int:
    """Return how often a consumer was assigned something."""
    return len([each for each in clients.program.of("assigned", name=name) if each["owned"]])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_javas_members_share_all_brokers_partitions_and_survive_the_coordinator(
    cluster: KafkaCluster, clients: KafkaClients, protocol: str
):
    """The coordinator is killed: the members continue, its partitions wait for it, and nothing is lost."""
    group = cluster.group_at(B)
    clients.create("shared", PARTITIONS)
    leaders = cluster.leaders("shared")
    assert set(leaders.values()) == {A, B, C}
    for partition in range(PARTITIONS):
        assert clients.produce("shared", partition, "a") == [0]
    for name in ("one", "two"):
        clients.subscribe(name, "shared", group, **PROTOCOLS[protocol])
    clients.wait_share("one", 3)
    clients.wait_share("two", 3)
    consumer = cluster.consumer(group)  # A commit that meets the kill would be refused by the successor.
    wait_until(
        lambda: committed(consumer, "shared", PARTITIONS) == [1] * PARTITIONS, "not everything is committed"
    )
    before = {name: assignments(clients, name) for name in ("one", "two")}
    cluster.kill(B)
    cluster.wait_brokers(2, A, C)
    left = [index for index, name in leaders.items() if name != B]
    for partition in left:
        clients.produce("shared", partition, "b")
    read_all(clients, {(partition, 1) for partition in left})
    offsets = [2 if partition in left else 1 for partition in range(PARTITIONS)]
    wait_until(lambda: committed(consumer, "shared", PARTITIONS) == offsets, "the successor gets no commits")
    assert {name: assignments(clients, name) for name in before} == before, "no member had to join"
    cluster.start(B)
    cluster.wait_brokers(3)
    for partition in range(PARTITIONS):
        clients.produce("shared", partition, "c")
    read_all(clients, {(partition, 2 if partition in left else 1) for partition in range(PARTITIONS)})
    assert not clients.program.of("failed")
    clients.finish()


def read_all(clients: KafkaClients, wanted: set[tuple[int, int]]) -> None:
    """Wait until the members together have read these records."""
    clients.program.wait_until(
        lambda: wanted <= set(clients.records()), f"not all of {wanted} were read", within_s=PATIENCE_S
    )
