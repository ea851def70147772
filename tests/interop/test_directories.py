"""Apache's broker and ours open one directory in turn: all messages, offsets, topics and groups survive."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from libramq.client.queue_reader import QueueReader, refuse_loss
from libramq.errors import RemoteProtocolError
from libramq.formats import fastjson
from libramq.message.inner_batch import decode_pulled
from libramq.sync import Admin
from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.ports import free_broker_port
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

NAME = "shared"
OURS_TOO = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
QUEUES, MESSAGES = 3, 20


class Contents(NamedTuple):
    """The data that a broker serves."""

    messages: dict[str, list[tuple[int, int, str | None, bytes, int]]]
    topics: dict[str, tuple[int, int, int]]
    committed: dict[int, int]


class Directory:
    """A directory and the broker that has it open."""

    def __init__(self, home: Path, servers: LibraServers, stack: ExitStack) -> None:
        self.home = home
        self.servers = servers
        self.store = home / NAME / "store"
        #: Further settings of `broker.conf`, for either broker.
        self.settings: dict[str, object] = {}
        self._apache: ApacheBroker | None = None
        self._stack = stack
        self._starts = 0

    def start(self, kind: str) -> None:
        """Start a broker; wait until the name server knows only this one: a killed one stays for a while."""
        self._starts += 1
        if kind == "libra":
            self.servers.ports[NAME] = free_broker_port()
            self.servers.start(NAME, **self.settings)
            address = f"127.0.0.1:{self.servers.ports[NAME]}"
        else:
            paths = {"storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog"}
            self._apache = ApacheBroker(
                self.home / f"apache-{self._starts}",
                namesrv=self.servers.namesrv,
                name=NAME,
                settings={**SMALL_STORE, **paths, **self.settings},
            )
            self._stack.callback(self._apache.process.kill)
            self._apache.wait_ready()
            address = self._apache.address
        Cluster.wait_until(
            lambda: addresses(self.servers.namesrv) == {"0": address},
            f"{kind} is registered",
            within_s=PATIENCE_S,
        )

    def end(self, how: str) -> None:
        if self._apache is None:
            self.servers.stop_broker(NAME) if how == "clean stop" else self.servers.kill(NAME)
            return
        apache, self._apache = self._apache, None
        apache.stop() if how == "clean stop" else apache.process.kill()

    def wait_committed(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Wait until consumerOffset.json, common to both brokers, has the offsets: written every 5 s."""

        def is_written() -> bool:
            try:
                text = (self.store / "config" / "consumerOffset.json").read_text()
                table = fastjson.loads(text)["offsetTable"].get(f"{topic}@{group}", {})
            except (FileNotFoundError, RemoteProtocolError):  # It does not exist, or is being written.
                return False
            return {int(queue): offset for queue, offset in table.items()} == offsets

        Cluster.wait_until(is_written, "committed offsets in their file", within_s=PATIENCE_S)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, settings={name: SMALL_STORE[name] for name in OURS_TOO})
        stack.callback(servers.stop)
        yield Directory(tmp_path, servers, stack)


def addresses(namesrv: str) -> dict[str, str]:
    """Return the broker's ids and addresses at the name server; none while it is not registered."""
    found: dict[str, str] = wire.brokers_of(namesrv).get(NAME, {"brokerAddrs": {}})["brokerAddrs"]
    return found


def contents(namesrv: str, topics: list[str], group: str) -> Contents:
    """Return what a broker serves of topics, and of a group that reads the first of them."""
    reader = QueueReader([namesrv], group="TOOLS_CONSUMER")
    try:
        messages = {}
        for topic in topics:
            queues = sorted(reader.queues(topic))
            ends, begins = reader.max_offsets(queues), reader.min_offsets(queues)
            messages[topic] = [
                (
                    message.queue_id,
                    message.queue_offset,
                    message.tags,
                    message.body,
                    message.store_timestamp_ms,
                )
                for queue in queues
                for stretch in reader.read(queue, begins[queue], ends[queue], lost=refuse_loss)
                for message in decode_pulled(stretch.body, stretch.start, check_crc=True)
                if message.queue_offset < stretch.end
            ]
    finally:
        reader.close()
    with Admin(namesrv=namesrv) as admin:
        routes = {topic: admin.topic_route(topic).queue_datas[0] for topic in topics}
        committed = {
            queue.queue_id: offsets.consumer_offset
            for queue, offsets in admin.consume_stats(group, topics[0]).items()
        }
    return Contents(
        messages,
        {topic: (data.read_queue_nums, data.write_queue_nums, data.perm) for topic, data in routes.items()},
        committed,
    )


def send(cluster: Cluster, topic: str, count: int) -> None:
    for number in range(count):
        cluster.send(topic=topic, body=f"{topic} {number}", tags="even" if number % 2 else "odd")


@pytest.mark.parametrize("how", ["clean stop", "kill -9"])
@pytest.mark.parametrize("kinds", [("libra", "apache"), ("apache", "libra")])
def test_one_broker_serves_the_others_files(
    directory: Directory, tmp_path: Path, kinds: tuple[str, str], how: str
) -> None:
    """It also continues: a group resumes at its offsets, and new messages get the next offsets."""
    first, second = kinds
    directory.start(first)
    namesrv = directory.servers.namesrv
    cluster = Cluster(first, namesrv, tmp_path)
    topic, group = "Shared", "readers"
    topics = [topic, "Other"]
    for name in topics:
        cluster.create_topic(name, QUEUES)
    try:
        send(cluster, topic, MESSAGES)
        send(cluster, "Other", QUEUES)
        cluster.begin_offsets(group, topic)
        consumer = cluster.consumer(group, topic, tags="*")
        consumer.wait_count(MESSAGES, "message")
        consumer.finish()
        send(cluster, topic, 2 * QUEUES)
        cluster.wait_stored("Other", QUEUES)
        cluster.wait_stored(topic, MESSAGES + 2 * QUEUES)
        cluster.wait_committed(group, topic, MESSAGES)
        before = contents(namesrv, topics, group)
        assert sum(before.committed.values()) == MESSAGES
        assert len(before.messages[topic]) == MESSAGES + 2 * QUEUES
        directory.wait_committed(group, topic, before.committed)
        directory.end(how)
        cluster.stop_programs(keep_producers=False)

        directory.start(second)
        cluster = Cluster(second, namesrv, tmp_path / "second")
        for name in topics:
            cluster.wait_stored(name, len(before.messages[name]))
        assert contents(namesrv, topics, group) == before
        consumer = cluster.consumer(group, topic, tags="*")
        consumer.wait_count(2 * QUEUES, "message")
        consumer.finish()
        send(cluster, topic, QUEUES)
        cluster.wait_stored(topic, MESSAGES + 3 * QUEUES)
        cluster.wait_committed(group, topic, MESSAGES + 2 * QUEUES)
        again = contents(namesrv, topics, group)
        assert again.messages["Other"] == before.messages["Other"]
        assert set(before.messages[topic]) < set(again.messages[topic])
        assert len(again.messages[topic]) == MESSAGES + 3 * QUEUES
        assert sum(again.committed.values()) == MESSAGES + 2 * QUEUES
        directory.end("kill -9")
    finally:
        cluster.stop_programs(keep_producers=False)
