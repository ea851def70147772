"""Timer messages with masters and slaves, Apache's and ours: a slave knows what its master delivered."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.apache import SMALL_STORE, TIMERS_FLUSHED, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

MASTER = "replicated"
GET_TIMER_CHECK_POINT = 60
GET_TIMER_METRICS = 61
FILE_BYTES = SMALL_STORE["mappedFileSizeCommitLog"]
SOON_MS = 2_000
LATER_MS = 40_000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def checkpoint(address: str) -> tuple[int, int]:
    """Return a broker's timer checkpoint: the time of delivery, and the number of collected messages."""
    body = wire.ask(address, GET_TIMER_CHECK_POINT).body
    return int.from_bytes(body[:8]), int.from_bytes(body[24:32])


def waiting(address: str, topic: str) -> int | None:
    """Return how many messages wait, according to a broker."""
    counts = json.loads(wire.ask(address, GET_TIMER_METRICS).body)["timingCount"]
    return counts[topic]["count"] if topic in counts else None


def send_two(cluster: Cluster, topic: str) -> int:
    """Send two timer messages; return the later one's time. The first may be due already when it is sent."""
    begun_ms = now_ms()
    cluster.send(topic=topic, body="soon", deliverAt=begun_ms + SOON_MS)
    cluster.send(topic=topic, body="later", deliverAt=begun_ms + LATER_MS)
    return begun_ms + LATER_MS


def is_in_sync(cluster: Cluster, topic: str) -> bool:
    """Send a message; return whether a slave confirmed it."""
    sent = cluster.producer().ask("sent", {"kind": "sync", "topic": topic, "body": "plain"})
    return bool(sent["status"] == "SEND_OK")


@pytest.mark.parametrize("kind", ["apache", "libra"])
def test_our_slave_becomes_a_master_and_delivers_what_its_master_did_not(
    stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """Each is delivered once: the master reports the first as delivered, and is killed before the second."""
    servers = LibraServers(tmp_path, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)
    of_master = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 20_000}
    if kind == "apache":
        master = ApacheBroker(
            tmp_path / "master",
            namesrv=servers.namesrv,
            name=MASTER,
            settings={**SMALL_STORE, **TIMERS_FLUSHED, **of_master},
        )
        stack.callback(master.process.kill)
        master.wait_ready()
    else:
        servers.start("master", brokerName=MASTER, **of_master)
    servers.start_slave("slave", MASTER)
    slave = f"127.0.0.1:{servers.ports['slave']}"
    cluster = Cluster(kind, servers.namesrv, tmp_path)
    stack.callback(cluster.stop_programs, keep_producers=False)
    topic = cluster.fresh_name("Timed")
    cluster.create_topic(topic, 1)
    cluster.wait_until(lambda: is_in_sync(cluster, topic), "a slave in sync", within_s=PATIENCE_S)
    later_ms = send_two(cluster, topic)
    soon_ms = later_ms - LATER_MS + SOON_MS
    cluster.wait_until(
        lambda: checkpoint(slave)[0] > soon_ms and checkpoint(slave)[1] >= 1,
        "the master's checkpoint at the slave",
        within_s=PATIENCE_S,
    )
    cluster.wait_until(lambda: waiting(slave, topic) in (0, 1), "the metrics", within_s=PATIENCE_S)
    if kind == "apache":
        master.process.kill()
    else:
        servers.kill("master")
    servers.stop_broker("slave")
    servers.start("slave", brokerName=MASTER)
    consumer = cluster.consumer(cluster.fresh_name("group"), topic, tags="*")
    consumer.wait_until(
        lambda: "later" in [each["body"] for each in consumer.of("message")], "the other", within_s=PATIENCE_S
    )
    (later,) = [each for each in consumer.of("message") if each["body"] == "later"]
    assert later["storeTimestamp"] >= later_ms
    assert [each["body"] for each in consumer.of("message")].count("soon") == 1


def test_apaches_slave_takes_over_our_checkpoint_and_metrics(stack: ExitStack, tmp_path: Path) -> None:
    servers = LibraServers(tmp_path, MASTER, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)
    cluster = Cluster("libra", servers.namesrv, tmp_path)
    stack.callback(cluster.stop_programs, keep_producers=False)
    settings = {**SMALL_STORE, **TIMERS_FLUSHED, "brokerRole": "SLAVE", "brokerId": 1}
    slave = ApacheBroker(tmp_path / "slave", namesrv=servers.namesrv, name=MASTER, settings=settings)
    stack.callback(slave.process.kill)
    slave.process.wait_line("boot success", within_s=PATIENCE_S)
    topic = cluster.fresh_name("Timed")
    cluster.create_topic(topic, 1)
    cluster.send(topic=topic, body="the producer has started")
    send_two(cluster, topic)
    # The slave puts its own read time into its checkpoint, not ours (prepareTimerCheckPoint).
    cluster.wait_until(
        lambda: checkpoint(slave.address)[1] >= 1, "our checkpoint at the slave", within_s=PATIENCE_S
    )
    cluster.wait_until(
        lambda: waiting(slave.address, topic) is not None, "our metrics at the slave", within_s=2 * PATIENCE_S
    )
