"""A streaming query gets each message once while Apache's brokers restart or hand over to their slaves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.clock import SystemClock
from libramq.errors import LibraError
from libramq.message import Message, MessageQueue
from libramq.rpc.admin_calls import topic_stats
from libramq.sync import Producer
from libramq.transport.blocking import BlockingRemote
from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker, ApacheNameServer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.spark]

QUEUES = 4
A_QUEUE = 300
WAIT_SECONDS = 240

Place = tuple[int, int]


@pytest.fixture
def name_server(_programs: None, tmp_path: Path) -> Iterator[ApacheNameServer]:
    made = ApacheNameServer(tmp_path / "namesrv")
    try:
        made.wait_ready()
        yield made
    finally:
        made.process.kill()


class Brokers:
    """Brokers of one name; each can be killed and restarted with its store."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self._home = home
        self._namesrv = namesrv
        self._running: dict[str, ApacheBroker] = {}

    def start(self, name: str, settings: Mapping[str, object], *, port: int | None = None) -> ApacheBroker:
        listening = {} if port is None else {"listenPort": port, "haListenPort": port + 1}
        self._running[name] = ApacheBroker(
            self._home / name, namesrv=self._namesrv, settings={**SMALL_STORE, **settings, **listening}
        )
        self._running[name].process.wait_line("boot success", within_s=PATIENCE_S)
        return self._running[name]

    def kill(self, name: str) -> None:
        self._running.pop(name).process.kill()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
def brokers(name_server: ApacheNameServer, tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path, name_server.address)
    try:
        yield made
    finally:
        made.kill_all()


def addresses(namesrv: str) -> dict[str, str]:
    """Return the broker's ids and addresses at the name server."""
    found = wire.brokers_of(namesrv)
    return dict(found["apache-a"]["brokerAddrs"]) if "apache-a" in found else {}


def send(namesrv: str, topic: str, count: int) -> None:
    with Producer(namesrv=namesrv, send_timeout_ms=30_000) as producer:
        for queue_id in range(QUEUES):
            for number in range(count):
                queue = MessageQueue(topic, "apache-a", queue_id)
                producer.send_nowait(Message(topic, b"%d" % number), queue=queue)
        producer.flush()


def has_all(address: str, topic: str, count: int) -> bool:
    """Return whether a slave has all messages of a topic. It learns of topics every 10 s."""
    with suppress(LibraError), closing(BlockingRemote(address, SystemClock().monotonic_ms)) as remote:
        call = topic_stats(topic)
        ends = call.result(remote.call(call.command()), where=address).offset_table.values()
        return [each.max_offset for each in ends] == [count] * QUEUES
    return False


class Seen:
    """The messages that a query has returned so far."""

    def __init__(self) -> None:
        self.places: list[Place] = []

    def take(self, frame: "DataFrame", _: int) -> None:
        found = [(row.queueId, row.offset) for row in frame.select("queueId", "offset").collect()]
        self.places += found

    def wait(self, count: int, query: "StreamingQuery") -> None:
        wait(
            lambda: len(self.places) >= count or not query.isActive,
            f"fewer than {count} messages",
            within_s=WAIT_SECONDS,
        )
        assert len(self.places) >= count, (len(self.places), query.exception())

    def is_each_once(self, a_queue: int) -> bool:
        return sorted(self.places) == [(q, n) for q in range(QUEUES) for n in range(a_queue)]


@contextmanager
def running(
    spark: "SparkSession", namesrv: str, topic: str, seen: Seen, checkpoint: Path
) -> Iterator["StreamingQuery"]:
    stream = spark.readStream.format("rocketmq").options(
        subscribe=topic,
        namesrv=namesrv,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="80",
        brokerTimeout="120s",
    )
    query = (
        stream.load()
        .writeStream.foreachBatch(seen.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def wait(condition: Callable[[], bool], what: str, *, within_s: float = PATIENCE_S) -> None:
    Cluster.wait_until(condition, what, within_s=within_s)


def create(namesrv: str, topic: str) -> None:
    Cluster("apache", namesrv, Path()).create_topic(topic, QUEUES)


def test_a_stream_survives_a_restart_of_its_broker(
    spark: "SparkSession", name_server: ApacheNameServer, brokers: Brokers, tmp_path: Path
) -> None:
    namesrv, topic, seen = name_server.address, "Restart", Seen()
    settings = {"flushDiskType": "SYNC_FLUSH"}  # Acknowledged messages survive a kill.
    broker = brokers.start("a", settings)
    wait(lambda: bool(addresses(namesrv)), "no broker")
    create(namesrv, topic)
    send(namesrv, topic, A_QUEUE)
    with running(spark, namesrv, topic, seen, tmp_path / "checkpoint") as query:
        seen.wait(1, query)
        brokers.kill("a")
        brokers.start("a", settings, port=broker.port)
        seen.wait(QUEUES * A_QUEUE, query)
        send(namesrv, topic, 50)
        seen.wait(QUEUES * (A_QUEUE + 50), query)
    assert seen.is_each_once(A_QUEUE + 50)


def test_a_stream_reads_from_the_slave_when_the_master_dies(
    spark: "SparkSession", name_server: ApacheNameServer, brokers: Brokers, tmp_path: Path
) -> None:
    """The query continues at the slave, and at the master once that is restarted."""
    namesrv, topic, seen = name_server.address, "Failover", Seen()
    of_master = {"brokerRole": "ASYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "slaveReadEnable": "true"}
    of_slave = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
    master = brokers.start("master", of_master)
    wait(lambda: "0" in addresses(namesrv), "no master")
    create(namesrv, topic)
    brokers.start("slave", of_slave)
    wait(lambda: "1" in addresses(namesrv), "no slave")
    send(namesrv, topic, A_QUEUE)
    slave = addresses(namesrv)["1"]
    wait(lambda: has_all(slave, topic, A_QUEUE), "the slave is behind")
    with running(spark, namesrv, topic, seen, tmp_path / "checkpoint") as query:
        seen.wait(1, query)
        brokers.kill("master")
        assert len(seen.places) < QUEUES * A_QUEUE
        seen.wait(QUEUES * A_QUEUE, query)
        wait(lambda: set(addresses(namesrv)) == {"1"}, "the master is still known")
        brokers.start("master", of_master, port=master.port)
        wait(lambda: "0" in addresses(namesrv), "no master")
        send(namesrv, topic, 50)
        seen.wait(QUEUES * (A_QUEUE + 50), query)
    assert seen.is_each_once(A_QUEUE + 50)
