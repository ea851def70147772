"""Kafka's Go clients, franz-go and Sarama, as members of a group of ours."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.interop.apache import CACHE, HERE, POLL_S, SETUP_TIMEOUT_S
from tests.interop.process import PATIENCE_S, Program
from tests.protocols.kafka.clusters import KafkaCluster, wait_until

pytestmark = pytest.mark.interop

BROKER = "broker-a"
TOPIC, GROUP = "orders", "readers"
PARTITIONS = 4
CLIENTS = ("franz", "sarama")

Start = Callable[[str], Program]


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    """Compile the members' program."""
    done = subprocess.run(
        [HERE / "go_kafka" / "setup"],
        capture_output=True,
        text=True,
        timeout=SETUP_TIMEOUT_S,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path / "servers", (BROKER,))
    try:
        cluster.create(TOPIC, PARTITIONS)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=CLIENTS)
def start(request: pytest.FixtureRequest, cluster: KafkaCluster, tmp_path: Path) -> Iterator[Start]:
    """Starts a member under a name."""
    members: list[Program] = []

    def start(name: str) -> Program:
        command = [str(CACHE / "go_kafka" / "client"), request.param, cluster.bootstrap, TOPIC, GROUP]
        members.append(Program(name, command, directory=tmp_path))
        return members[-1]

    try:
        yield start
    finally:
        for member in members:
            member.stop()


def produce(cluster: KafkaCluster, value: str) -> None:
    """Store a record in each partition."""
    producer = cluster.producer()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, value.encode(), partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def owned(member: Program) -> list[int]:
    changes = member.of("owned")
    return list(changes[-1]["partitions"]) if changes else []


def wait_shared(*members: Program) -> None:
    """Wait until members share all partitions evenly."""
    for each in members:
        each.wait_until(
            lambda each=each: len(owned(each)) == PARTITIONS // len(members),
            "the partitions are not shared",
            within_s=PATIENCE_S,
        )
    assert sorted(chain.from_iterable(map(owned, members))) == list(range(PARTITIONS))


def values(member: Program, partition: int) -> list[str]:
    return [each["value"] for each in member.of("record", partition=partition)]


def wait_read(value: str, *members: Program) -> None:
    """Wait until a record of each partition has been read, by any member."""

    def has_all() -> bool:
        members[0].ended_within(POLL_S)  # Events of this member and of the others arrive meanwhile.
        return all(any(value in values(each, at) for each in members) for at in range(PARTITIONS))

    wait_until(has_all, f"{value} was not read in each partition")


def test_members_join_are_killed_and_restarted_and_read_every_record(cluster: KafkaCluster, start: Start):
    """Committed records are not redelivered; the broker is killed and restarted as well."""
    alice = start("alice")
    wait_shared(alice)
    produce(cluster, "a")
    wait_read("a", alice)
    bob = start("bob")
    wait_shared(alice, bob)
    produce(cluster, "b")
    wait_read("b", alice, bob)
    bob.kill()
    wait_shared(alice)
    produce(cluster, "c")
    wait_read("c", alice)
    again = start("bob again")
    wait_shared(alice, again)
    cluster.kill(BROKER)
    cluster.start(BROKER)
    cluster.wait_brokers(1)
    produce(cluster, "d")
    wait_read("d", alice, again)
    again.finish()
    wait_shared(alice)
    produce(cluster, "e")
    wait_read("e", alice)
    alice.finish()
    assert not alice.of("failed") + again.of("failed")
    assert not any("a" in values(each, at) for each in (bob, again) for at in range(PARTITIONS))


def test_records_are_read_at_once_and_members_end_at_once(cluster: KafkaCluster, start: Start):
    """The fetches of Sarama waited behind its heartbeats: 1.3 s in the median, and 6 s for its end."""
    alice = start("alice")
    wait_shared(alice)
    produce(cluster, "first")
    wait_read("first", alice)
    delays_ms = []
    for _ in range(20):  # Its heartbeats come every 3 s.
        sent = str(time.time_ns() // 1_000_000)
        produce(cluster, sent)
        wait_read(sent, alice)
        read_ms = [each["at_ms"] for each in alice.of("record") if each["value"] == sent]
        delays_ms.append(max(read_ms) - int(sent))
        alice.ended_within(0.2)
    assert statistics.median(delays_ms) < 300
    began = time.monotonic()
    alice.finish()
    assert time.monotonic() - began < 3
