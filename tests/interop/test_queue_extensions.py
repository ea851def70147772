"""Apache's broker keeps tag codes and bits of filters in extension files; ours filters by them."""

from contextlib import closing
from pathlib import Path

import pytest

from libramq import Sql
from libramq.client.queue_reader import PullFilter, QueueReader
from libramq.filesystem import LocalFileSystem
from libramq.message import decode_records
from libramq.store.check import check_store
from libramq.store.queues.queue_extension import decode_unit
from tests.interop.cluster import Cluster
from tests.interop.test_directories import Directory, directory

__all__ = ["directory"]

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

TOPIC, GROUP, QUEUES = "Extended", "readers", 2
SETTINGS = {
    "enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true", "expectConsumerNumUseFilter": 64,
}  # fmt: skip


def send(cluster: Cluster, who: str, count: int) -> None:
    for number in range(count):
        tags, properties = ("even", "odd")[number % 2], {"a": str(number % 4)}
        cluster.send(topic=TOPIC, body=f"{who} {number}", tags=tags, properties=properties)


def passed(namesrv: str, wanted: str | Sql) -> list[str]:
    """Return the messages that a broker sends to a consumer, which filters none."""
    pull_filter = PullFilter.of(wanted)
    with closing(QueueReader([namesrv], group="TOOLS_CONSUMER", pull_filter=pull_filter)) as reader:
        queues = sorted(reader.queues(TOPIC))
        ends = reader.max_offsets(queues)
        return sorted(
            message.body.decode()
            for queue in queues
            for stretch in reader.read(queue, 0, ends[queue])
            for message in decode_records(stretch.body)
        )


def check_filters(namesrv: str, sent: dict[str, int]) -> None:
    """Check which of the messages received in turn by each broker a broker passes."""
    numbers = [(who, number) for who, count in sent.items() for number in range(count)]
    assert passed(namesrv, "*") == sorted(f"{who} {number}" for who, number in numbers)
    assert passed(namesrv, "even") == sorted(f"{who} {n}" for who, n in numbers if n % 2 == 0)
    assert passed(namesrv, "odd") == sorted(f"{who} {n}" for who, n in numbers if n % 2)
    assert passed(namesrv, "other") == []
    assert passed(namesrv, Sql("a = 3")) == sorted(f"{who} {n}" for who, n in numbers if n % 4 == 3)


def test_each_broker_filters_what_the_other_stored(directory: Directory, tmp_path: Path) -> None:
    """Apache's broker with extensions, ours with the same broker.conf, and Apache's again, each killed."""
    directory.settings = SETTINGS
    directory.start("apache")
    namesrv = directory.servers.namesrv
    cluster = Cluster("apache", namesrv, tmp_path)
    cluster.create_topic(TOPIC, QUEUES)
    sent = {"apache": 40}
    try:
        consumer = cluster.consumer(GROUP, TOPIC, sql="a = 3")  # Bit maps cover known filters only.
        send(cluster, "apache", 40)
        consumer.wait_count(10, "message")
        consumer.finish()
        cluster.wait_stored(TOPIC, 40)
        directory.end("kill -9")
        cluster.stop_programs(keep_producers=False)
        files = sorted((directory.store / "consumequeue_ext" / TOPIC).rglob("0" * 20))
        units = [decode_unit(path.read_bytes()) for path in files]
        assert len(units) == QUEUES
        assert all(unit is not None and unit.bit_map_bytes > 0 for unit in units)
        assert not check_store(directory.store, LocalFileSystem()).is_damaged

        for system, sender, count in (("libra", "libra", 12), ("apache", "apache again", 8)):
            directory.start(system)
            cluster = Cluster(system, namesrv, tmp_path / sender)
            cluster.wait_stored(TOPIC, sum(sent.values()))
            check_filters(namesrv, sent)
            send(cluster, sender, count)
            sent[sender] = count
            cluster.wait_stored(TOPIC, sum(sent.values()))
            check_filters(namesrv, sent)
            directory.end("kill -9")
            cluster.stop_programs(keep_producers=False)
    finally:
        cluster.stop_programs(keep_producers=False)
