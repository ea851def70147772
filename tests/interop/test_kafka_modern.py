"""Kafka's Java clients in KIP-848 groups (`group.protocol=consumer`) against our Kafka port."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache import set_up
from tests.interop.kafka_programs import KafkaClients, KafkaTools, KafkaUp
from tests.interop.process import PATIENCE_S
from tests.protocols.kafka.clusters import KafkaCluster

pytestmark = pytest.mark.interop

MODERN = {"group_protocol": "consumer"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaUp]:
    set_up()
    up = KafkaUp(tmp_path_factory.mktemp("kafka"))
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()


@pytest.fixture(scope="module")
def _clients(servers: KafkaUp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaClients]:
    clients = KafkaClients(servers.kafka, home=tmp_path_factory.mktemp("clients"))
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


def wait_shared(clients: KafkaClients, *names: str, partitions: int = 4) -> None:
    """Wait until members have all partitions between them, equally many each."""
    clients.program.wait_until(
        lambda: (
            sorted(each for name in names for each in clients.owned(name) or []) == list(range(partitions))
            and all(len(clients.owned(name) or []) == partitions // len(names) for name in names)
        ),
        f"not shared by {names}",
        within_s=PATIENCE_S,
    )


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_coordinator_shares_partitions_and_the_group_continues_where_it_committed(
    clients: KafkaClients, assignor: str
):
    topic, group = f"modern-{assignor}", f"g-modern-{assignor}"
    settings = {**MODERN, "group_remote_assignor": assignor}
    clients.create(topic, 4)
    for partition in range(4):
        clients.produce(topic, partition, "first")
    clients.subscribe("one", topic, group, **settings)
    clients.wait_owned(one=range(4))
    clients.wait_records(4)
    clients.subscribe("two", topic, group, **settings)
    wait_shared(clients, "one", "two")
    assert len(clients.program.of("revoked", name="one")[-1]["partitions"]) == 2, "others are kept"
    clients.close("one")
    clients.wait_owned(two=range(4))
    for partition in range(4):
        clients.produce(topic, partition, "second")
    clients.wait_records(8)
    assert sorted(clients.records()) == [(p, offset) for p in range(4) for offset in range(2)]


def test_a_killed_member_is_missed_before_its_session_ends(
    servers: KafkaUp, clients: KafkaClients, tmp_path: Path
):
    clients.create("modern-killed", 4)
    clients.subscribe("one", "modern-killed", "g-modern-killed", **MODERN)
    other = KafkaClients(servers.kafka, home=tmp_path)
    try:
        other.subscribe("two", "modern-killed", "g-modern-killed", client_id="other", **MODERN)
        clients.wait_share("one", 2)
        other.wait_share("two", 2)
        other.program.kill()
        clients.wait_owned(one=range(4))
    finally:
        other.stop()


def test_a_static_member_returns_without_a_rebalance(clients: KafkaClients):
    clients.create("modern-static", 4)
    for name in ("one", "two"):
        clients.subscribe(name, "modern-static", "g-modern-static", group_instance_id=name, **MODERN)
    wait_shared(clients, "one", "two")
    changes = len(clients.program.of("assigned", name="one"))
    owned = clients.owned("two")
    clients.close("two")
    clients.subscribe("again", "modern-static", "g-modern-static", group_instance_id="two", **MODERN)
    clients.wait_owned(again=owned or [])
    assert len(clients.program.of("assigned", name="one")) == changes


def test_a_member_that_an_operator_removed_joins_again(clients: KafkaClients, servers: KafkaUp):
    """Its next heartbeat has the epoch of an unknown member: it gives up everything and starts again."""
    clients.create("modern-fenced", 2)
    clients.produce("modern-fenced", 0, "first")
    clients.subscribe("one", "modern-fenced", "g-modern-fenced", group_instance_id="i", **MODERN)
    clients.wait_owned(one=range(2))
    clients.wait_records(1)
    clients.remove("g-modern-fenced", "i")
    clients.program.wait_count(1, "lost", name="one")
    clients.wait_owned(one=range(2))
    clients.produce("modern-fenced", 0, "second")
    clients.wait_records(2)


def test_members_keep_their_partitions_while_the_broker_is_killed_and_restarted(tmp_path: Path):
    set_up()
    cluster = KafkaCluster(tmp_path / "servers", ("broker-a",))
    try:
        clients = KafkaClients(cluster.bootstrap, home=tmp_path)
        try:
            clients.create("restart", 2)
            clients.produce("restart", 0, "first")
            clients.subscribe("one", "restart", "g-restart", **MODERN)
            clients.program.wait_event("committed", name="one")
            cluster.kill("broker-a")
            cluster.start("broker-a")
            clients.produce("restart", 1, "second")
            clients.wait_records(2)
            assert sorted(clients.records()) == [(0, 0), (1, 0)]
            changes = [each for each in clients.program.events if "owned" in each]
            assert [each["event"] for each in changes] == ["assigned"]
            clients.finish()
        finally:
            clients.stop()
    finally:
        cluster.stop()


def test_a_pattern_is_resolved_by_the_broker(clients: KafkaClients):
    clients.create("fits-a", 1)
    clients.create("other-a", 1)
    clients.subscribe("one", "^fits-[a-z]+", "g-pattern", **MODERN)
    clients.wait_owned(one=[0])
    clients.produce("other-a", 0, "no")
    clients.produce("fits-a", 0, "first")
    clients.wait_records(1)
    clients.create("fits-b", 1)
    clients.produce("fits-b", 0, "second")
    clients.wait_records(2)
    assert sorted(each["value"] for each in clients.program.of("record")) == ["first", "second"]


def test_kafkas_tools_show_the_group(servers: KafkaUp, clients: KafkaClients, tmp_path: Path):
    clients.create("modern-tools", 3)
    for partition in range(3):
        clients.produce("modern-tools", partition, "a", "b")
    clients.subscribe("one", "modern-tools", "g-modern-tools", **MODERN)
    clients.wait_records(6)
    clients.wait_owned(one=range(3))
    with KafkaTools(servers.kafka, tmp_path) as tools:
        assert "g-modern-tools" in tools.groups("--list").split()
        rows = [line.split() for line in tools.groups("--describe", "--group", "g-modern-tools").splitlines()]
        assert [row[:6] for row in rows if row[:2] == ["g-modern-tools", "modern-tools"]] == [
            ["g-modern-tools", "modern-tools", str(partition), "2", "2", "0"] for partition in range(3)
        ]
        state = tools.groups("--describe", "--state", "--verbose", "--group", "g-modern-tools")
        assert "Stable" in state
        assert "uniform" in state
        assert "g-modern-tools" in tools.groups(
            "--describe", "--members", "--verbose", "--group", "g-modern-tools"
        )
        assert "not empty" in tools.groups("--delete", "--group", "g-modern-tools")
        clients.close("one")
        assert "successful" in tools.groups("--delete", "--group", "g-modern-tools")
