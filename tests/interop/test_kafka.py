"""Kafka's Java clients against our Kafka port: producing, fetching, committing, and groups."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache import set_up
from tests.interop.kafka_programs import VERSIONS, KafkaClients, KafkaTools, KafkaUp
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
EAGER = "org.apache.kafka.clients.consumer.RangeAssignor"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaUp]:
    set_up()
    up = KafkaUp(tmp_path_factory.mktemp("kafka"))
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()


@pytest.fixture(scope="module", params=VERSIONS)
def _clients(
    request: pytest.FixtureRequest, servers: KafkaUp, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaClients]:
    clients = KafkaClients(servers.kafka, home=tmp_path_factory.mktemp("clients"), version=request.param)
    try:
        yield clients
        clients.finish()
    finally:
        clients.stop()


@pytest.fixture
def clients(_clients: KafkaClients) -> Iterator[KafkaClients]:
    """A producer, and no consumer yet."""
    yield _clients
    _clients.clear()


def fresh(clients: KafkaClients, name: str) -> str:
    """Return a name for a topic or a group that no other test uses."""
    return f"{name}-{clients.program.name.replace('.', '_').replace(' ', '_')}"


def test_records_are_fetched_as_they_were_produced(clients: KafkaClients):
    topic = fresh(clients, "records")
    clients.create(topic, 2)
    assert clients.produce(topic, 0, "a", "b") == [0, 1]
    assert clients.produce(topic, 1, "c") == [0]
    clients.subscribe("one", topic, fresh(clients, "g-records"))
    records = clients.wait_records(3)
    assert {(each["partition"], each["offset"], each["value"]) for each in records} == {
        (0, 0, "a"), (0, 1, "b"), (1, 0, "c"),
    }  # fmt: skip
    assert {(each["key"], each["header"]) for each in records} == {("key", "00ff")}


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])
def test_a_group_shares_partitions_and_continues_where_it_committed(clients: KafkaClients, assignor: str):
    kind = assignor.rpartition(".")[2]
    topic, group = fresh(clients, kind), fresh(clients, f"g-{kind}")
    settings = {"partition_assignment_strategy": assignor, "heartbeat_interval_ms": 500}
    clients.create(topic, 4)
    for partition in range(4):
        clients.produce(topic, partition, "first")
    clients.subscribe("one", topic, group, **settings)
    clients.wait_owned(one=range(4))
    clients.wait_records(4)
    # It sends no heartbeat in this test: all that it hears is the answers to its joins and syncs.
    never = {"heartbeat_interval_ms": 900_000, "session_timeout_ms": 1_000_000}
    clients.subscribe("two", topic, group, **(settings | never))
    clients.program.wait_until(
        lambda: (
            sorted((clients.owned("one") or []) + (clients.owned("two") or [])) == [0, 1, 2, 3]
            and len(clients.owned("two") or []) == 2
        ),
        "two members do not share",
        within_s=PATIENCE_S,
    )
    revoked = clients.program.of("revoked", name="one")[-1]["partitions"]
    assert len(revoked) == (4 if assignor == EAGER else 2), "only a cooperative member keeps its partitions"
    clients.close("two")
    clients.wait_owned(one=range(4))
    for partition in range(4):
        clients.produce(topic, partition, "second")
    clients.wait_records(8)
    assert sorted(clients.records()) == [(p, offset) for p in range(4) for offset in range(2)]


def test_kafkas_tools_show_and_change_topics_and_groups(servers: KafkaUp, tmp_path: Path):
    clients = KafkaClients(servers.kafka, home=tmp_path)
    try:
        with KafkaTools(servers.kafka, tmp_path) as tools:
            tools.topics("--create", "--topic", "tools", "--partitions", "2", "--replication-factor", "1")
            tools.topics("--alter", "--topic", "tools", "--partitions", "3")
            assert "PartitionCount: 3" in tools.topics("--describe", "--topic", "tools")
            for partition in range(3):
                clients.produce("tools", partition, "a", "b")
            clients.subscribe("one", "tools", "g-tools")
            clients.wait_records(6)
            clients.wait_owned(one=range(3))
            assert "g-tools" in tools.groups("--list").split()
            rows = [line.split() for line in tools.groups("--describe", "--group", "g-tools").splitlines()]
            assert [row[:6] for row in rows if row[:2] == ["g-tools", "tools"]] == [
                ["g-tools", "tools", str(partition), "2", "2", "0"] for partition in range(3)
            ]
            assert "Stable" in tools.groups("--describe", "--state", "--group", "g-tools")
            assert "not empty" in tools.groups("--delete", "--group", "g-tools")
            clients.close("one")
            reset = (
                "--reset-offsets",
                "--to-earliest",
                "--execute",
                "--group",
                "g-tools",
                "--topic",
                "tools",
            )
            assert tools.groups(*reset).count("g-tools") == 3
            tools.groups("--delete-offsets", "--group", "g-tools", "--topic", "tools:0")
            assert "tools" in tools.groups("--describe", "--group", "g-tools")
            assert "successful" in tools.groups("--delete", "--group", "g-tools")
            assert "g-tools" not in tools.groups("--list").split()
            tools.topics("--delete", "--topic", "tools")
            assert "tools" not in tools.topics("--list").split()
        clients.finish()
    finally:
        clients.stop()


def test_a_killed_member_is_missed_before_its_session_ends(
    servers: KafkaUp, clients: KafkaClients, tmp_path: Path
):
    topic, group = fresh(clients, "killed"), fresh(clients, "g-killed")
    settings = {"session_timeout_ms": 600_000, "heartbeat_interval_ms": 3_000}
    clients.create(topic, 4)
    clients.subscribe("one", topic, group, **settings)
    other = KafkaClients(servers.kafka, home=tmp_path)
    try:
        other.subscribe("two", topic, group, client_id="other", **settings)
        clients.wait_share("one", 2)
        other.wait_share("two", 2)
        other.program.kill()
        clients.wait_owned(one=range(4))
    finally:
        other.stop()


def create(servers: KafkaUp, topic: str, queue_type: str) -> None:
    """Make a topic of two partitions as RocketMQ's tools do."""
    address = ("-n", servers.namesrv, "-c", "DefaultCluster")
    command = [
        sys.executable,
        "-m",
        "libramq",
        "admin",
        "updateTopic",
        *address,
        "-t",
        topic,
        "-r",
        "2",
        "-w",
        "2",
    ]
    command += ["-a", f"+queue.type={queue_type}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_records_stored_in_batches_are_fetched_unchanged(servers: KafkaUp, clients: KafkaClients):
    topic = fresh(clients, "batches")
    create(servers, topic, "BatchCQ")
    assert clients.produce(topic, 0, *map(str, range(200))) == list(range(200))
    clients.subscribe("one", topic, fresh(clients, "g-batches"))
    records = clients.wait_records(200)
    assert [(each["offset"], each["value"]) for each in records] == [(each, str(each)) for each in range(200)]
    assert {(each["key"], each["header"]) for each in records} == {("key", "00ff")}


@pytest.mark.parametrize("idempotent", [True, False])
def test_acknowledged_records_are_stored_once(servers: KafkaUp, tmp_path: Path, idempotent: bool):
    settings = {"acks": "all" if idempotent else "1", "enable.idempotence": str(idempotent).lower()}
    clients = KafkaClients(servers.kafka, home=tmp_path, producer={**settings, "batch.size": 200})
    try:
        topic = fresh(clients, f"once-{idempotent}")
        clients.create(topic, 1)
        assert clients.produce(topic, 0, *map(str, range(500))) == list(range(500))
        clients.finish()
    finally:
        clients.stop()


def test_a_static_member_returns_without_a_rebalance(clients: KafkaClients):
    topic, group = fresh(clients, "static"), fresh(clients, "g-static")
    clients.create(topic, 4)
    for partition in range(4):
        clients.produce(topic, partition, "first")
    for name in ("one", "two"):
        clients.subscribe(name, topic, group, group_instance_id=name, heartbeat_interval_ms=500)
    clients.program.wait_until(
        lambda: [len(clients.owned(name) or []) for name in ("one", "two")] == [2, 2],
        "two members do not share",
        within_s=PATIENCE_S,
    )
    changes = len(clients.program.of("assigned", name="one"))
    owned = clients.owned("two")
    clients.close("two")
    clients.subscribe("again", topic, group, group_instance_id="two", heartbeat_interval_ms=500)
    clients.wait_owned(again=owned or [])
    assert len(clients.program.of("assigned", name="one")) == changes
