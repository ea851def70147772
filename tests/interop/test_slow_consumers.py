"""A Java consumer that is far behind: the master redirects it to a slave, and it reads there."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

MASTER = "replicated"
COUNT = 120
GET_BROKER_RUNTIME_INFO = 28
#: With accessMessageInMemoryMaxRatio=0 no message counts as in memory, so every consumer is far behind.
SETTINGS = {
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "slaveReadEnable": "true",
    "accessMessageInMemoryMaxRatio": 0,
}


def read_at(address: str) -> int:
    """Return how many messages a broker has sent to consumers."""
    body = wire.ask(address, GET_BROKER_RUNTIME_INFO).body
    return int(json.loads(body)["table"]["msgGetTotalTodayNow"])


def test_a_java_consumer_far_behind_reads_from_our_slave(tmp_path: Path) -> None:
    """The master answers the first pull and names the slave; all other pulls go there."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, settings=SETTINGS)
        stack.callback(servers.stop)
        servers.start(
            "master", brokerName=MASTER, brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=20_000
        )
        servers.start_slave("slave", MASTER)
        master, slave = (f"127.0.0.1:{servers.ports[name]}" for name in ("master", "slave"))
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic = cluster.fresh_name("Behind")
        cluster.create_topic(topic, 1)

        def is_copied(number: int) -> bool:
            sent = cluster.producer().ask("sent", {"kind": "sync", "topic": topic, "body": str(number)})
            return bool(sent["status"] == "SEND_OK")

        cluster.wait_until(lambda: is_copied(-1), "a slave in sync", within_s=PATIENCE_S)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number))
        cluster.wait_until(
            lambda: wire.has_topic(slave, topic),
            "the topic at the slave",
            within_s=PATIENCE_S,
        )
        cluster.wait_until(
            lambda: set(wire.brokers_of(servers.namesrv)[MASTER]["brokerAddrs"]) == {"0", "1"},
            "the slave at the name server",
            within_s=PATIENCE_S,
        )
        assert read_at(slave) == 0
        consumer = cluster.consumer(cluster.fresh_name("group"), topic, tags="*")
        consumer.wait_until(
            lambda: {int(each["body"]) for each in consumer.of("message")} >= set(range(COUNT)),
            "all messages",
            within_s=PATIENCE_S,
        )
        # A pull returns 32 messages at most.
        assert read_at(slave) >= COUNT - 32
        assert read_at(master) >= 1
