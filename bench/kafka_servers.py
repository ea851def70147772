"""One system at a time for Kafka's clients, with a fresh store: Kafka's broker, or `libra up`."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.spark_kafka import kafka
from confluent_kafka.admin import AdminClient, NewTopic
from tests.interop.kafka_programs import KafkaUp

#: The program that produces, or runs a member of librdkafka or aiokafka.
MEMBER = Path(__file__).parent / "kafka_rebalance_member"
KAFKA = "4.3.1"
SYSTEMS = ("ours", "kafka")
ASK_S = 60


class Cluster:
    """A broker with a Kafka port, as the rounds need it."""

    def __init__(self, address: str, home: Path) -> None:
        self.namesrv = address
        self.home = home
        self._count = 0

    def fresh_name(self, name: str) -> str:
        """Return an unused topic name."""
        self._count += 1
        return f"{name}{self._count}"

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic, retrying while the broker starts."""
        until = time.monotonic() + ASK_S
        while True:
            admin = AdminClient({"bootstrap.servers": self.namesrv, "log_level": 0})
            try:
                admin.create_topics([NewTopic(topic, queues, 1)])[topic].result(10)
                return
            except Exception:
                if time.monotonic() > until:
                    raise


@contextlib.contextmanager
def running(system: str, partitions: int, brokers: int = 1) -> Iterator[Cluster]:
    """Run one of the two systems in a fresh directory; ours with this many brokers."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        if system == "ours":
            (home / "up").mkdir()
            up = KafkaUp(home / "up", "--brokers", str(brokers))
            try:
                yield Cluster(up.kafka, home)
            finally:
                up.stop()
        else:
            kafka.set_up_server(KAFKA)
            with kafka.server(home / "kafka", partitions, KAFKA) as address:
                yield Cluster(address, home)
