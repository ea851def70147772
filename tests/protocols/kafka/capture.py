"""Record the requests of Kafka's clients in tests/vectors: `python -m tests.protocols.kafka.capture`.

Each client performs its users' operations on its own broker. One request is kept for each client, API and
version.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.protocols.kafka import server as kafka
from libramq.wire.kafka.frame import FrameReader
from tests.interop.ports import free_broker_port

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests/vectors/kafka-requests.json"
CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python")
TIMEOUT_S = 60
#: Longer requests add nothing.
BYTES_MAX = 2_000


class Recorder(FrameReader):
    """A recorder that splits the stream into frames and keeps them."""

    client = ""
    frames: dict[tuple[str, int, int], str] = {}

    def receive(self, data: bytes) -> list[bytes]:
        found = super().receive(data)
        for frame in found:
            api, api_version = (int.from_bytes(frame[at : at + 2], signed=True) for at in (0, 2))
            if len(frame) <= BYTES_MAX:
                self.frames.setdefault((self.client, api, api_version), frame.hex())
        return found


def librdkafka(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(TIMEOUT_S)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "compression.type": "lz4"})
    producer.produce("orders", b"value", b"key", headers=[("h", b"1")])
    producer.flush(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None, "nothing was consumed"
    consumer.commit(asynchronous=False)
    consumer.offsets_for_times([TopicPartition("orders", 0, 1)], timeout=TIMEOUT_S)
    admin.list_consumer_groups().result(TIMEOUT_S)
    admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    consumer.close()
    modern(address, admin)
    administer(admin)
    admin.delete_topics(["orders"])["orders"].result(TIMEOUT_S)
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(TIMEOUT_S)


def modern(address: str, admin: AdminClient) -> None:
    """Consume as a member of a KIP-848 group, and describe the group."""
    options = {"group.id": "m", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": address, **options})
    consumer.subscribe(["orders"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None, "nothing was consumed"
    consumer.commit(asynchronous=False)
    admin.describe_consumer_groups(["m"])["m"].result(TIMEOUT_S)
    consumer.close()


def administer(admin: AdminClient) -> None:
    """Send requests that change topics and groups; some of them are refused."""
    admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(TIMEOUT_S)
    (deleted,) = admin.delete_records([TopicPartition("orders", 0, 0)]).values()
    deleted.result(TIMEOUT_S)
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    whole = ConfigResource(ConfigResource.Type.TOPIC, "orders", set_config={"retention.ms": "1"})
    for future in (
        *admin.incremental_alter_configs([change]).values(),
        *admin.alter_configs([whole]).values(),
    ):
        assert future.exception(TIMEOUT_S) is not None


async def aiokafka(address: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    await producer.send_and_wait("orders", b"value", b"key")
    await producer.stop()
    options: dict[str, Any] = {"group_id": "a", "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer("orders", bootstrap_servers=address, **options)
    await consumer.start()
    await consumer.getone()
    await consumer.commit()
    await consumer.stop()


async def sign_in() -> None:
    """Run clients that authenticate against a broker with users."""
    options: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice",
        "sasl.password": "secret",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as store:
        user = UserInfo(username="alice", password="secret")
        config = BrokerConfig(
            store_path=store,
            listen_port=free_broker_port(),
            authentication_enabled=True,
            init_authentication_user=user,
        )
        broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
        await broker.start()
        server = kafka.KafkaServer(broker, config, LocalFileSystem(), port=0)
        await server.start()
        try:
            Recorder.client = "confluent-kafka"
            admin = AdminClient({"bootstrap.servers": server.address, **options})
            await asyncio.to_thread(admin.list_topics, timeout=TIMEOUT_S)
            Recorder.client = "aiokafka"
            named = {name.replace(".", "_"): value for name, value in options.items()}
            user_name, password = named.pop("sasl_username"), named.pop("sasl_password")
            producer = AIOKafkaProducer(
                bootstrap_servers=server.address,
                sasl_plain_username=user_name,
                sasl_plain_password=password,
                **named,
            )
            await producer.start()
            await producer.stop()
        finally:
            await server.stop()
            await broker.stop()


async def main() -> None:
    """Run every client against a new broker, and write the requests it sent."""
    kafka.FrameReader = Recorder  # type: ignore[misc]
    await sign_in()
    with tempfile.TemporaryDirectory() as store:
        config = BrokerConfig(store_path=store, listen_port=free_broker_port())
        broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
        await broker.start()
        server = kafka.KafkaServer(broker, config, LocalFileSystem(), port=0)
        await server.start()
        try:
            Recorder.client = "confluent-kafka"
            await asyncio.to_thread(librdkafka, server.address)
            Recorder.client = "kafka-python"
            command = [sys.executable, "-W", "ignore", "-m", "tests.protocols.kafka.kafka_python"]
            await asyncio.to_thread(subprocess.run, [*command, server.address], cwd=ROOT, check=True)
            Recorder.client = "aiokafka"
            await aiokafka(server.address)
        finally:
            await server.stop()
            await broker.stop()
    requests = [
        {"client": client, "api": api, "version": api_version, "frame": frame}
        for (client, api, api_version), frame in sorted(Recorder.frames.items())
    ]
    by = {name: version(name) for name in CLIENTS}
    FILE.write_text(json.dumps({"clients": by, "requests": requests}, indent=1) + "\n")
    print(f"{len(requests)} requests in {FILE}")


if __name__ == "__main__":
    asyncio.run(main())
