"""Kafka's real clients against a broker's Kafka port, over sockets."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOPartition
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.message import sys_flag as flags
from libramq.message.properties import encode_properties
from libramq.protocols.kafka.server import KafkaServer
from libramq.store import MessageStore, StoreMessage
from tests.broker.test_shell import Client
from tests.interop.ports import free_broker_port

#: How long a client may take on a busy machine before the test fails.
TIMEOUT_S = 60
#: Both ways of storing a topic.
BOTH = pytest.mark.parametrize("queue_type", ["SimpleCQ", "BatchCQ"])
HEADERS = [("h", b"1"), ("h", None), ("b", b"\xff\0")]


class Kafka(NamedTuple):
    """The addresses of a running broker."""

    address: str
    rocketmq_address: str
    queue_type: str
    store: MessageStore


@pytest.fixture
def kafka(tmp_path: Path, queue_type: str) -> Iterator[Kafka]:
    """A broker with a Kafka port, on a separate thread."""
    started: list[Kafka] = []
    is_started = threading.Event()
    stop: list[Any] = []

    async def serve() -> None:
        config = BrokerConfig(store_path=str(tmp_path), listen_port=free_broker_port())
        broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
        await broker.start()
        server = KafkaServer(broker, config, LocalFileSystem(), port=0)
        try:
            await server.start()
            stopping = asyncio.Event()
            stop.extend((asyncio.get_running_loop(), stopping))
            started.append(Kafka(server.address, config.address, queue_type, broker.broker.store))
            is_started.set()
            await stopping.wait()
        finally:
            await server.stop()
            await broker.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_started.wait(TIMEOUT_S)
    yield started[0]
    loop, stopping = stop
    loop.call_soon_threadsafe(stopping.set)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def create(kafka: Kafka, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    new = NewTopic(topic, partitions, 1, config={"queue.type": kafka.queue_type})
    for future in admin.create_topics([new]).values():
        future.result(TIMEOUT_S)


def produced(kafka: Kafka, count: int, **options: Any) -> list[tuple[int, int]]:
    """Produce with librdkafka; return the acknowledged partitions and offsets."""
    producer = Producer({"bootstrap.servers": kafka.address, **options})
    acknowledged: list[tuple[int, int]] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append((message.partition(), message.offset()))
        else:
            failures.append(error)

    for number in range(count):
        value = b"%d " % number * 100
        producer.produce("orders", value, b"k%d" % number, number % 2, delivered, headers=HEADERS)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures
    return acknowledged


def consumed(kafka: Kafka, count: int) -> list[Any]:
    """Consume both partitions from their beginnings with librdkafka."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in (0, 1)])
    messages: list[Any] = []
    while len(messages) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(messages)} of {count} messages came"
        assert message.error() is None, message.error()
        messages.append(message)
    consumer.close()
    return messages


@BOTH
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_consumes_its_own_records(kafka: Kafka, compression: str):
    create(kafka, "orders")
    acknowledged = produced(kafka, 100, **{"compression.type": compression})
    assert sorted(acknowledged) == [(partition, offset) for partition in (0, 1) for offset in range(50)]
    messages = consumed(kafka, 100)
    assert {message.key(): message.value() for message in messages} == {
        b"k%d" % number: b"%d " % number * 100 for number in range(100)
    }
    assert messages[0].headers() == HEADERS


@BOTH
def test_librdkafka_finds_the_ends_and_times_of_partitions(kafka: Kafka):
    create(kafka, "orders")
    produced(kafka, 10)
    last = consumed(kafka, 10)[-1]
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "g"})
    partition = TopicPartition("orders", last.partition())
    assert consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S) == (0, 5)
    wanted = TopicPartition("orders", last.partition(), last.timestamp()[1])
    (found,) = consumer.offsets_for_times([wanted], timeout=TIMEOUT_S)
    assert 0 <= found.offset <= last.offset()
    consumer.close()


@BOTH
def test_librdkafkas_commits_stay_as_they_were_sent(kafka: Kafka):
    create(kafka, "orders")
    produced(kafka, 6)
    group = ConsumerGroupTopicPartitions(
        "g", [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 2)]
    )
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.alter_consumer_group_offsets([group])["g"].result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "g", "enable.auto.commit": False})
    wanted = [TopicPartition("orders", partition) for partition in (0, 1)]
    assert [each.offset for each in consumer.committed(wanted, TIMEOUT_S)] == [5, 2]
    produced(kafka, 6)
    consumer.assign([TopicPartition("orders", 0)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.partition(), message.offset()) == (0, 5)
    consumer.close()


@BOTH
def test_librdkafka_and_a_rocketmq_client_share_a_topic(kafka: Kafka):
    create(kafka, "orders")
    produced(kafka, 2)

    async def scenario() -> list[bytes]:
        client = Client(kafka.rocketmq_address)
        await client.send(b"from RocketMQ", "orders")
        bodies: list[bytes] = await client.bodies("orders")
        await client.close()
        return bodies

    assert asyncio.run(scenario()) == [b"0 " * 100, b"from RocketMQ"]
    assert b"from RocketMQ" in {message.value() for message in consumed(kafka, 3)}


@BOTH
async def test_aiokafka_consumes_its_own_records(kafka: Kafka):
    await asyncio.to_thread(create, kafka, "orders")
    producer = AIOKafkaProducer(bootstrap_servers=kafka.address, compression_type="gzip")
    await producer.start()
    try:
        for number in range(20):
            result = await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)
            assert result.offset == number // 2
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.address, auto_offset_reset="earliest")
    consumer.assign([AIOPartition("orders", 0), AIOPartition("orders", 1)])
    await consumer.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            values = [(await consumer.getone()).value for _ in range(20)]
    finally:
        await consumer.stop()
    assert sorted(values) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("queue_type", ["BatchCQ"])
def test_librdkafka_goes_over_a_batch_of_rocketmqs_that_cannot_be_read(kafka: Kafka):
    """Its offsets are used, so it becomes a batch without records, as compaction leaves in Kafka."""
    create(kafka, "orders")
    produced(kafka, 4)
    text = encode_properties({"INNER_NUM": "3"})
    flag = flags.INNER_BATCH | flags.NEED_UNWRAP
    kafka.store.append_batch([StoreMessage("orders", 0, b"no items", text, count=3, sys_flag=flag)])
    produced(kafka, 4)
    offsets = sorted((each.partition(), each.offset()) for each in consumed(kafka, 8))
    assert offsets == [(0, 0), (0, 1), (0, 5), (0, 6), (1, 0), (1, 1), (1, 2), (1, 3)]


@BOTH
def test_kafka_python_consumes_its_own_records(kafka: Kafka):
    create(kafka, "orders")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.protocols.kafka.kafka_python", kafka.address],
        cwd=Path(__file__).parents[3],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert (result.returncode, result.stdout) == (0, "20 records\n"), result.stderr


# Groups.


class Members:
    """Members of a group, polled in turn by one program."""

    def __init__(self, kafka: Kafka, **options: Any) -> None:
        self._kafka = kafka
        self._options = options
        self.members: dict[str, Consumer] = {}
        self.values: list[bytes] = []
        self.revoked: list[str] = []

    def join(self, name: str, **options: Any) -> None:
        settings = {
            "bootstrap.servers": self._kafka.address,
            "group.id": "readers",
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if "group.protocol" not in self._options:
            settings["heartbeat.interval.ms"] = 200
        consumer = Consumer(settings | self._options | options)
        consumer.subscribe(["orders"], on_revoke=lambda *_: self.revoked.append(name))
        self.members[name] = consumer

    def leave(self, name: str) -> None:
        self.members.pop(name).close()

    def assignments(self) -> dict[str, list[int]]:
        return {
            name: sorted(each.partition for each in consumer.assignment())
            for name, consumer in self.members.items()
        }

    def poll_until(self, is_reached: Callable[[], bool]) -> None:
        """Poll all members until a condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_reached():
            assert time.monotonic() < deadline, (self.assignments(), len(self.values))
            for consumer in self.members.values():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self.values.append(message.value())

    def wait_shared(self, *sizes: int) -> None:
        """Poll until the members own these numbers of partitions and each partition has one owner."""

        def is_shared() -> bool:
            shares = list(self.assignments().values())
            owned = sorted(partition for share in shares for partition in share)
            return sorted(map(len, shares)) == sorted(sizes) and owned == list(range(sum(sizes)))

        self.poll_until(is_shared)

    def close(self) -> None:
        for name in list(self.members):
            self.leave(name)


@pytest.fixture
def readers(kafka: Kafka) -> Iterator[Members]:
    create(kafka, "orders", partitions=4)
    readers = Members(kafka)
    yield readers
    readers.close()


@pytest.fixture
def modern(kafka: Kafka) -> Iterator[Members]:
    """Members of a KIP-848 group."""
    create(kafka, "orders", partitions=4)
    modern = Members(kafka, **{"group.protocol": "consumer"})
    yield modern
    modern.close()


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_librdkafkas_members_are_assigned_partitions_by_the_coordinator(modern: Members, assignor: str):
    option = {"group.remote.assignor": assignor}
    modern.join("alice", **option)
    modern.wait_shared(4)
    modern.join("bob", **option)
    modern.wait_shared(2, 2)
    before = modern.assignments()
    modern.join("carol", **option)
    modern.wait_shared(2, 1, 1)
    if assignor == "uniform":
        moved = set(modern.assignments()["carol"])
        assert all(set(before[name]) - set(modern.assignments()[name]) <= moved for name in before)
    modern.leave("alice")
    modern.wait_shared(2, 2)
    modern.leave("bob")
    modern.wait_shared(4)


def test_a_modern_group_continues_where_it_committed(kafka: Kafka, modern: Members):
    produced(kafka, 20)
    modern.join("alice")
    modern.poll_until(lambda: len(modern.values) == 20)
    modern.members["alice"].commit(asynchronous=False)
    modern.leave("alice")
    modern.values.clear()
    modern.join("bob")
    modern.wait_shared(4)
    produced(kafka, 2)
    modern.poll_until(lambda: len(modern.values) >= 2)
    assert sorted(modern.values) == [b"0 " * 100, b"1 " * 100], "nothing of before"


def test_a_static_member_of_a_modern_group_that_returns_moves_nothing(modern: Members):
    modern.join("alice", **{"group.instance.id": "a"})
    modern.join("bob", **{"group.instance.id": "b"})
    modern.wait_shared(2, 2)
    before = modern.assignments()
    modern.revoked.clear()
    modern.leave("bob")  # Temporarily, because it is static.
    modern.join("bob", **{"group.instance.id": "b"})
    modern.wait_shared(2, 2)
    assert modern.assignments() == before
    assert "alice" not in modern.revoked


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafkas_members_share_the_partitions_as_they_come_and_go(readers: Members, strategy: str):
    option = {"partition.assignment.strategy": strategy}
    readers.join("alice", **option)
    readers.wait_shared(4)
    readers.join("bob", **option)
    readers.wait_shared(2, 2)
    readers.join("carol", **option)
    readers.wait_shared(2, 1, 1)
    readers.leave("alice")
    readers.wait_shared(2, 2)
    readers.leave("bob")
    readers.wait_shared(4)


@BOTH
def test_a_group_continues_where_it_committed(kafka: Kafka, readers: Members):
    produced(kafka, 20)
    readers.join("alice")
    readers.poll_until(lambda: len(readers.values) == 20)
    readers.members["alice"].commit(asynchronous=False)
    readers.leave("alice")
    readers.values.clear()
    readers.join("bob")
    readers.wait_shared(4)
    produced(kafka, 2)
    readers.poll_until(lambda: len(readers.values) >= 2)
    assert sorted(readers.values) == [b"0 " * 100, b"1 " * 100], "nothing of before"


def test_a_static_member_that_returns_moves_nothing(readers: Members):
    readers.join("alice", **{"group.instance.id": "a"})
    readers.join("bob", **{"group.instance.id": "b"})
    readers.wait_shared(2, 2)
    before = readers.assignments()
    readers.revoked.clear()
    readers.leave("bob")  # It sends no LeaveGroup, being static.
    readers.join("bob", **{"group.instance.id": "b"})
    readers.wait_shared(2, 2)
    assert readers.assignments() == before
    assert "alice" not in readers.revoked, "no rebalance: bob could not have his share before she rejoined"


async def test_aiokafkas_members_share_the_partitions(kafka: Kafka):
    await asyncio.to_thread(create, kafka, "orders")
    await asyncio.to_thread(produced, kafka, 10)
    options = {"bootstrap_servers": kafka.address, "group_id": "readers", "auto_offset_reset": "earliest"}
    first = AIOKafkaConsumer("orders", heartbeat_interval_ms=200, **options)
    second = AIOKafkaConsumer("orders", heartbeat_interval_ms=200, **options)
    async with asyncio.timeout(TIMEOUT_S):
        await first.start()
        try:
            values = [(await first.getone()).value for _ in range(10)]
            await first.commit()
            await second.start()
            try:
                while [len(first.assignment()), len(second.assignment())] != [1, 1]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert first.assignment() | second.assignment() == {
                    AIOPartition("orders", 0),
                    AIOPartition("orders", 1),
                }
                assert await second.committed(AIOPartition("orders", 0)) == 5
            finally:
                await second.stop()
        finally:
            await first.stop()
    assert len(set(values)) == 10
