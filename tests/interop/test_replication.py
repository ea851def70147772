"""Slaves and masters, Apache's and ours: their logs have equal bytes, and slaves serve without a master."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from libramq import Message
from libramq.client import ConsumeFrom, SendStatus
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError
from libramq.message import MessageExt
from libramq.sync import Producer, PushConsumer
from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Events

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

MASTER = "replicated"
FILE_BYTES = 64 * 1024 * 1024
COUNT = 40
PREFETCHED = 50
#: Longer than a busy machine ever stalls.
SESSION_MS = 10_000
#: A message for queue 0 of a topic that it may create (SendMessageRequestHeader).
SEND = {
    "topic": "Needed", "producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip
# The default is 3 s. A slave on a busy machine may take longer, and then the send is not SEND_OK.
SLAVE_TIMEOUT_MS = 20_000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def ids_of(namesrv: str) -> set[str]:
    """Return the ids of the brokers that the name server knows under the master's name."""
    found = wire.brokers_of(namesrv)
    return set(found[MASTER]["brokerAddrs"]) if MASTER in found else set()


def log_of(store: Path, end: int) -> bytes:
    """Return the first bytes of a log of one file; none if it has no file yet."""
    for path in sorted(store.glob("commitlog/*"))[:1]:
        with path.open("rb") as file:
            return file.read(end)
    return b""


def end_of(store: Path) -> int:
    """Return the end of the records in a log's first file; Apache's broker allocates a second in advance."""
    path = min(store.glob("commitlog/*"))
    position = 0
    with path.open("rb") as file:
        while size := int.from_bytes(file.read(4)):
            position += size
            file.seek(position)
    return position


def status_of_send(cluster: Cluster, topic: str, number: int) -> str:
    """Send with Apache's producer; return the status."""
    sent = cluster.producer().ask("sent", {"kind": "sync", "topic": topic, "body": str(number)})
    return str(sent["status"])


def test_apaches_slave_copies_our_master_and_serves_after_its_death(stack: ExitStack, tmp_path: Path) -> None:
    """The master waits for the slave; without one a send returns SLAVE_NOT_AVAILABLE."""
    of_master = {
        "mappedFileSizeCommitLog": FILE_BYTES,
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "flushDiskType": "SYNC_FLUSH",
        "slaveTimeout": SLAVE_TIMEOUT_MS,
    }
    servers = LibraServers(tmp_path, MASTER, settings=of_master)
    stack.callback(servers.stop)
    cluster = Cluster("libra", servers.namesrv, tmp_path)
    stack.callback(cluster.stop_programs, keep_producers=False)
    topic, group = cluster.fresh_name("Replicated"), cluster.fresh_name("group")
    cluster.create_topic(topic, 4)
    for number in range(COUNT // 2):
        assert status_of_send(cluster, topic, number) == "SLAVE_NOT_AVAILABLE"
    settings = {**SMALL_STORE, "brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
    slave = ApacheBroker(tmp_path / "slave", namesrv=servers.namesrv, name=MASTER, settings=settings)
    stack.callback(slave.process.kill)
    slave.process.wait_line("boot success", within_s=PATIENCE_S)
    ours, theirs = tmp_path / MASTER / "store", tmp_path / "slave" / "store"
    begun = end_of(ours)
    cluster.wait_until(
        lambda: log_of(theirs, begun) == log_of(ours, begun), "the log at the slave", within_s=PATIENCE_S
    )
    for number in range(COUNT // 2, COUNT):
        cluster.send(topic=topic, body=str(number))
    end = end_of(ours)
    assert log_of(theirs, end) == log_of(ours, end)
    cluster.wait_until(lambda: "1" in ids_of(servers.namesrv), "a slave", within_s=PATIENCE_S)
    cluster.wait_until(
        lambda: wire.has_topic(slave.address, topic), "the topic at the slave", within_s=PATIENCE_S
    )
    shown = cluster.admin("haStatus", "-b", cluster.broker_address)
    words = shown.split()
    assert words[words.index("#MasterCommitLogMaxOffset") + 1] == str(end), shown
    assert words[words.index("#InSyncSlaveNum") + 1] == "1", shown
    assert words[-5:-3] == [str(end), "0"], shown
    servers.kill(MASTER)
    cluster.wait_until(lambda: ids_of(servers.namesrv) == {"1"}, "the master gone", within_s=PATIENCE_S)
    consumer = cluster.consumer(group, topic, tags="*")
    wait_numbers(consumer, within_s=3 * PATIENCE_S)
    consumer.finish()


@pytest.mark.parametrize("kind", ["apache", "libra"])
def test_our_slave_copies_a_master_and_serves_when_that_is_gone(
    stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """The logs have equal bytes, and the slave then delivers every message."""
    servers = LibraServers(tmp_path, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)
    of_master = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "slaveReadEnable": "true",
        "slaveTimeout": SLAVE_TIMEOUT_MS,
    }
    if kind == "apache":
        master = ApacheBroker(
            tmp_path / "master", namesrv=servers.namesrv, name=MASTER, settings={**SMALL_STORE, **of_master}
        )
        stack.callback(master.process.kill)
        master.wait_ready()
    else:
        servers.start("master", brokerName=MASTER, **of_master)
    servers.start_slave("slave", MASTER, slaveReadEnable="true")
    cluster = Cluster(kind, servers.namesrv, tmp_path)
    stack.callback(cluster.stop_programs, keep_producers=False)
    topic = cluster.fresh_name("Copied")
    cluster.create_topic(topic, 4)
    cluster.wait_until(
        lambda: status_of_send(cluster, topic, -1) == "SEND_OK", "a slave in sync", within_s=PATIENCE_S
    )
    for number in range(COUNT):
        cluster.send(topic=topic, body=str(number))
    theirs, ours = tmp_path / "master" / "store", tmp_path / "slave" / "store"
    end = end_of(theirs)
    assert log_of(ours, end) == log_of(theirs, end)
    slave = f"127.0.0.1:{servers.ports['slave']}"
    cluster.wait_until(lambda: wire.has_topic(slave, topic), "the topic at the slave", within_s=PATIENCE_S)
    if kind == "apache":
        master.process.kill()
    else:
        servers.kill("master")
    cluster.wait_until(lambda: ids_of(servers.namesrv) == {"1"}, "the master gone", within_s=PATIENCE_S)
    consumer = cluster.consumer(cluster.fresh_name("group"), topic, tags="*")
    wait_numbers(consumer, within_s=PATIENCE_S)
    consumer.finish()


@pytest.mark.parametrize("kind", ["apache", "libra"])
def test_a_master_requires_as_many_replicas_as_there_are_and_the_minimum(
    stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """Master and slave are of different makes; with a minimum of 2, acknowledged messages are at both."""
    servers = LibraServers(tmp_path, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)
    acting = {"enableSlaveActingMaster": "true", "slaveTimeout": SLAVE_TIMEOUT_MS}
    roles = {
        "master": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "enableAutoInSyncReplicas": "true"},
        "slave": {"brokerRole": "SLAVE", "brokerId": 1, "inSyncReplicas": 1},
    }
    apaches: dict[str, ApacheBroker] = {}

    def start(name: str, **settings: object) -> str:
        """Start a broker, Apache's if it is of that role; return its address."""
        wanted = {**acting, **roles[name], **settings}
        if (name == "master") == (kind == "apache"):
            port = apaches[name].port if name in apaches else None
            broker = apaches[name] = ApacheBroker(
                tmp_path / name,
                namesrv=servers.namesrv,
                name=MASTER,
                settings={**SMALL_STORE, **wanted},
                port=port,
            )
            stack.callback(broker.process.kill)
            broker.process.wait_line("boot success", within_s=PATIENCE_S)
            return broker.address
        if name == "master":
            servers.start(name, brokerName=MASTER, **wanted)
        else:
            servers.start_slave(name, MASTER, **wanted)
        return f"127.0.0.1:{servers.ports[name]}"

    def kill(name: str) -> None:
        apaches[name].process.kill() if name in apaches else servers.kill(name)

    def sent() -> tuple[int, str]:
        answer = wire.ask(master, RequestCode.SEND_MESSAGE, SEND, body=b"hello", timeout_s=PATIENCE_S)
        return answer.header["code"], answer.header.get("remark") or ""

    refused = (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    theirs, ours = (tmp_path / name / "store" for name in ("master", "slave"))
    master = start("master", minInSyncReplicas=1)
    Cluster.wait_until(lambda: sent()[0] == ResponseCode.SUCCESS, "a master alone", within_s=PATIENCE_S)
    kill("master")
    master = start("master", minInSyncReplicas=2)
    Cluster.wait_until(lambda: sent() == refused, "too few replicas", within_s=PATIENCE_S)
    start("slave")
    Cluster.wait_until(lambda: sent()[0] == ResponseCode.SUCCESS, "two replicas", within_s=2 * PATIENCE_S)
    for _ in range(10):
        assert sent()[0] == ResponseCode.SUCCESS
        end = end_of(theirs)
        assert log_of(ours, end) == log_of(theirs, end)
    kill("slave")
    Cluster.wait_until(lambda: sent() == refused, "too few replicas again", within_s=PATIENCE_S)
    assert sent() == refused
    queue = {"topic": "Needed", "queueId": "0"}
    count = int(wire.ask(master, RequestCode.GET_MAX_OFFSET, queue).header["extFields"]["offset"])
    assert theirs.joinpath("commitlog", f"{0:020d}").read_bytes().count(b"hello") == count


def wait_numbers(consumer: Events, *, within_s: float) -> None:
    """Wait until every message was delivered; some may be redelivered while no broker accepts commits."""
    consumer.wait_until(
        lambda: {int(each["body"]) for each in consumer.of("message")} >= set(range(COUNT)),
        "fewer messages at the slave",
        within_s=within_s,
    )


class Load:
    """A producer that sends as fast as it can, and keeps the acknowledged bodies."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(namesrv, topic), daemon=True)
        self._thread.start()

    def _send(self, namesrv: str, topic: str) -> None:
        number = 0
        with Producer(group="load", namesrv=namesrv) as producer:
            while not self._is_over.is_set():
                number += 1
                body = b"<%d>" % number
                try:
                    status = producer.send(Message(topic, body)).status
                except LibraError:  # The master is down; it will be restarted.
                    self._is_over.wait(0.05)
                    continue
                if status is SendStatus.SEND_OK:
                    with self._changed:
                        self.acknowledged.append(body)
                        self._changed.notify_all()

    def wait_more(self, count: int) -> None:
        """Wait until this many more messages are acknowledged."""
        with self._changed:
            enough = len(self.acknowledged) + count
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= enough, PATIENCE_S)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def stored(store: Path) -> set[bytes]:
    """Return the bodies in a log, acknowledged or not."""
    return {body for path in store.glob("commitlog/*") for body in re.findall(rb"<\d+>", path.read_bytes())}


def test_acknowledged_messages_are_at_both_after_any_kill(stack: ExitStack, tmp_path: Path) -> None:
    """This holds under load with SYNC_MASTER; in the end the logs are equal byte for byte."""
    servers = LibraServers(tmp_path, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)

    def start(name: str) -> None:
        if name == "master":
            servers.start("master", brokerName=MASTER, brokerRole="SYNC_MASTER", inSyncReplicas=2)
        else:
            servers.start_slave("slave", MASTER)

    start("master")
    start("slave")
    load = Load(servers.namesrv, "Load")
    stack.callback(load.stop)
    theirs, ours = tmp_path / "master" / "store", tmp_path / "slave" / "store"
    for killed in (["master"], ["slave"], ["master", "slave"]):
        load.wait_more(100)
        for name in killed:
            servers.kill(name)
        # Nothing is acknowledged once the first broker is killed: the other one has everything by then.
        acknowledged = set(load.acknowledged) if "master" in killed else set()
        assert acknowledged <= stored(ours)
        assert acknowledged <= stored(theirs)
        for name in killed:
            start(name)
    load.wait_more(100)
    load.stop()
    assert set(load.acknowledged) <= stored(ours)
    Cluster.wait_until(
        lambda: log_of(ours, end_of(theirs)) == log_of(theirs, end_of(theirs)),
        "equal logs",
        within_s=PATIENCE_S,
    )


@pytest.mark.parametrize("others", [(), ("other",)])
def test_a_member_reads_on_from_the_slave_and_commits_when_the_master_is_back(
    stack: ExitStack, tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Its old opening stays valid; nothing is committed in between, and nothing is lost.

    Without another master this lasts until the session with the coordinator ends; with one there is no limit.
    """
    servers = LibraServers(tmp_path, settings={"mappedFileSizeCommitLog": FILE_BYTES})
    stack.callback(servers.stop)
    of_master = {"brokerName": MASTER, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    servers.start("master", **of_master)
    servers.start_slave("slave", MASTER, slaveReadEnable="true")
    cluster = Cluster("libra", servers.namesrv, tmp_path)
    cluster.create_topic("Read", 1)
    for other in others:  # It has no queue of the topic.
        servers.start(other)
    load = Load(servers.namesrv, "Read")
    stack.callback(load.stop)
    load.wait_more(10 * PREFETCHED)
    load.stop()
    sent = stored(tmp_path / "master" / "store")
    cluster.wait_until(
        lambda: stored(tmp_path / "slave" / "store") == sent, "all at the slave", within_s=PATIENCE_S
    )
    handled: set[bytes] = set()
    has_begun, may_go_on = threading.Event(), threading.Event()

    def handle(messages: list[MessageExt]) -> bool:
        handled.update(message.body for message in messages)
        has_begun.set()
        return may_go_on.wait(PATIENCE_S)

    slave = f"127.0.0.1:{servers.ports['slave']}"
    cluster.wait_until(lambda: wire.has_topic(slave, "Read"), "the topic at the slave", within_s=PATIENCE_S)
    member = PushConsumer(
        group="readers",
        namesrv=servers.namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        session_ms=SESSION_MS if others else int(2 * PATIENCE_S) * 1000,
        pull_threshold_for_queue=PREFETCHED,
    )
    member.subscribe("Read", "*", handle)
    member.start()
    stack.callback(member.stop)
    assert has_begun.wait(PATIENCE_S)
    servers.kill("master")
    if others:
        cluster.wait_until(lambda: ids_of(servers.namesrv) == {"1"}, "the master gone", within_s=PATIENCE_S)
    may_go_on.set()
    cluster.wait_until(lambda: handled >= sent, "everything read from the slave", within_s=PATIENCE_S)
    servers.start("master", **of_master)
    cluster.wait_until(lambda: "0" in ids_of(servers.namesrv), "a master", within_s=PATIENCE_S)
    master = f"127.0.0.1:{servers.ports['master']}"
    queue = {"topic": "Read", "queueId": "0"}
    end = wire.ask(master, RequestCode.GET_MAX_OFFSET, queue).header["extFields"]["offset"]

    def committed() -> str | None:
        fields = {**queue, "consumerGroup": "readers"}
        answer = wire.ask(master, RequestCode.QUERY_CONSUMER_OFFSET, fields).header
        return answer.get("extFields", {}).get("offset")

    cluster.wait_until(lambda: committed() == end, "commits at the master", within_s=PATIENCE_S)
