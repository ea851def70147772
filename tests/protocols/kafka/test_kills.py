"""Idempotent producers and a broker process that is killed again and again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.libra import LibraServers
from tests.interop.ports import free_port

TIMEOUT_S = 120
KILLS = 2
RECORDS = 3_000
PARTITIONS = 2


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LibraServers]:
    servers = LibraServers(tmp_path)
    try:
        yield servers
    finally:
        servers.stop()


def test_no_record_is_stored_twice_or_lost_when_the_broker_is_killed(servers: LibraServers):
    port = free_port()
    # An answer waits for the disk, so that a kill finds records stored but not yet acknowledged.
    settings = {"kafkaListenPort": port, "flushDiskType": "SYNC_FLUSH"}
    servers.start("a", **settings)
    address = f"127.0.0.1:{port}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("kills", PARTITIONS, 1)])["kills"].result(TIMEOUT_S)
    options: dict[str, Any] = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "reconnect.backoff.max.ms": 200,
        "linger.ms": 2,
        "batch.num.messages": 50,
    }
    producer = Producer(options)
    acknowledged: list[tuple[int, int]] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append((message.partition(), message.offset()))
        else:
            failures.append(error)

    for number in range(RECORDS):
        producer.produce("kills", b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
    for kill in range(KILLS):
        while len(acknowledged) < RECORDS * kill // (KILLS + 1) + 50:
            assert producer.poll(TIMEOUT_S), "nothing is acknowledged"
            assert not failures
        servers.kill("a")
        servers.start("a", **settings)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures
    for partition in range(PARTITIONS):
        expected = [b"%d" % number for number in range(partition, RECORDS, PARTITIONS)]
        assert consumed(address, partition, len(expected)) == expected
    assert sorted(acknowledged) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)
    ]


def consumed(address: str, partition: int, count: int) -> list[bytes | None]:
    """Return all values of a partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    wanted = TopicPartition("kills", partition, 0)
    assert consumer.get_watermark_offsets(wanted, timeout=TIMEOUT_S) == (0, count)
    consumer.assign([wanted])
    values: list[bytes | None] = []
    while len(values) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(values)} of {count} records came"
        assert message.error() is None, message.error()
        values.append(message.value())
    consumer.close()
    return values
