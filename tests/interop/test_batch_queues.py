"""Apache's broker and ours store batches as one record each; either serves every message, and goes on."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.message import Message
from libramq.message import sys_flag as flags
from libramq.message.inner_batch import message_count
from libramq.message.record import RecordHead
from libramq.store.check import check_store
from libramq.store.log.log_scan import LogScan
from libramq.store.reading.read_only_files import ReadOnlyFiles
from libramq.sync import Producer
from tests.interop import wire
from tests.interop.batch_readers import check_reads
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Event
from tests.interop.test_directories import Directory, contents, directory

__all__ = ["directory"]

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

TOPIC, PLAIN, GROUP, QUEUES = "Batched", "Plain", "readers", 2
UNBATCH_TIMEOUT_S = 60.0


def create_batch_topic(cluster: Cluster) -> None:
    """Request it as mqadmin does: updateTopic -a +queue.type=BatchCQ."""
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    answer = wire.ask(cluster.broker_address, wire.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.header["code"] == 0, answer.header
    cluster.wait_until(lambda: cluster.route(TOPIC) is not None, f"no route of {TOPIC}", within_s=PATIENCE_S)


class Sender:
    """Sends batches and single messages; records which message has which offset."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.expected: dict[tuple[int, int], str] = {}

    def batch(self, *bodies: str) -> None:
        messages = [{"body": body, "tags": body[0]} for body in bodies]
        sent = self.cluster.producer().ask("sent", {"kind": "batch", "topic": TOPIC, "messages": messages})
        self._note(sent, bodies)

    def single(self, body: str) -> None:
        self._note(self.cluster.send(topic=TOPIC, body=body, tags=body[0]), (body,))

    def batch_of_ours(self, namesrv: str, *bodies: str) -> None:
        with Producer(group="ours", namesrv=namesrv) as producer:
            results = producer.send_batch([Message(TOPIC, body.encode(), tags=body[0]) for body in bodies])
        for result, body in zip(results, bodies, strict=True):
            self.expected[result.queue.queue_id, result.queue_offset] = body

    def _note(self, sent: Event, bodies: tuple[str, ...]) -> None:
        assert sent["status"] == "SEND_OK", sent
        for number, body in enumerate(bodies):
            self.expected[sent["queueId"], sent["offset"] + number] = body


def batch_sizes(store: Path) -> list[int]:
    """Return the message count of each record that is a RocketMQ batch."""
    with closing(ReadOnlyFiles(LocalFileSystem(), store / "commitlog")) as files:
        found = [head for head in LogScan(files, 0) if isinstance(head, RecordHead)]
    whole = flags.INNER_BATCH | flags.NEED_UNWRAP
    return [message_count(head) for head in found if head.sys_flag & whole == whole]


def run_unbatch(store: Path, to: Path) -> str:
    command = [sys.executable, "-m", "libramq", "store", "unbatch", str(store), str(to)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=UNBATCH_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["clean stop", "kill -9"])
def test_every_message_of_a_batch_is_served_from_the_copy(
    directory: Directory, tmp_path: Path, how: str
) -> None:
    directory.start("apache")
    namesrv = directory.servers.namesrv
    cluster = Cluster("apache", namesrv, tmp_path)
    create_batch_topic(cluster)
    cluster.create_topic(PLAIN, QUEUES)
    sender = Sender(cluster)
    try:
        for number in range(6):
            sender.batch(*(f"{tag} {number}" for tag in "abcde"))
            sender.single(f"alone {number}")
        for number in range(4):
            cluster.send(topic=PLAIN, body=f"plain {number}")
        cluster.wait_stored(TOPIC, len(sender.expected))
        cluster.begin_offsets(GROUP, TOPIC)
        consumer = cluster.consumer(GROUP, TOPIC, tags="*")
        consumer.wait_count(len(sender.expected), "message")
        consumer.finish()
        consumed = set(sender.expected.values())
        committed = {
            queue: 1 + max(offset for each, offset in sender.expected if each == queue)
            for queue in {queue for queue, _ in sender.expected}
        }
        directory.wait_committed(GROUP, TOPIC, {queue: committed.get(queue, 0) for queue in range(QUEUES)})
        sender.batch("late 1", "late 2", "late 3")
        sender.batch("late 4", "late 5")
        cluster.wait_stored(TOPIC, len(sender.expected))
        plain = contents(namesrv, [PLAIN], GROUP).messages[PLAIN]
        directory.end(how)
        cluster.stop_programs(keep_producers=False)

        printed = run_unbatch(directory.store, tmp_path / "copy")
        assert "8 of them batches" in printed
        directory.store.rename(tmp_path / "apaches")
        (tmp_path / "copy").rename(directory.store)
        assert not check_store(directory.store, LocalFileSystem()).is_damaged
        directory.start("libra")
        cluster = Cluster("libra", namesrv, tmp_path / "second")
        served = contents(namesrv, [TOPIC, PLAIN], GROUP).messages
        found = {(queue, offset): body.decode() for queue, offset, _, body, _ in served[TOPIC]}
        assert found == sender.expected
        assert {tags for _, _, tags, _, _ in served[TOPIC]} == set("abcdel")
        assert served[PLAIN] == plain
        consumer = cluster.consumer(GROUP, TOPIC, tags="*")
        consumer.wait_count(5, "message")
        consumer.finish()
        bodies = {event["body"] for event in consumer.of("message")}
        assert bodies == set(sender.expected.values()) - consumed
        cluster.send(topic=TOPIC, body="new", tags="n")
        cluster.wait_stored(TOPIC, len(sender.expected) + 1)
        again = contents(namesrv, [TOPIC], GROUP).messages
        directory.end(how)
        cluster.stop_programs(keep_producers=False)

        directory.start("apache")
        cluster = Cluster("apache", namesrv, tmp_path / "third")
        cluster.wait_stored(TOPIC, len(sender.expected) + 1)
        assert contents(namesrv, [TOPIC], GROUP).messages == again
        directory.end("kill -9")
    finally:
        cluster.stop_programs(keep_producers=False)


@pytest.mark.parametrize("how", ["clean stop", "kill -9"])
def test_ours_goes_on_with_queues_of_batches_and_apaches_after_it(
    directory: Directory, tmp_path: Path, how: str
) -> None:
    directory.start("apache")
    namesrv = directory.servers.namesrv
    cluster = Cluster("apache", namesrv, tmp_path)
    create_batch_topic(cluster)
    sender = Sender(cluster)
    try:
        for number in range(6):
            sender.batch(*(f"{tag} {number}" for tag in "abcde"))
            sender.single(f"alone {number}")
        sender.batch_of_ours(namesrv, "x 1", "y 2")
        cluster.wait_stored(TOPIC, len(sender.expected))
        directory.end(how)
        cluster.stop_programs(keep_producers=False)

        assert not check_store(directory.store, LocalFileSystem()).is_damaged
        directory.start("libra")
        sender.cluster = cluster = Cluster("libra", namesrv, tmp_path / "second")
        consume(cluster, GROUP, set(sender.expected.values()))
        served = contents(namesrv, [TOPIC], GROUP).messages[TOPIC]
        assert {(queue, offset): body.decode() for queue, offset, _, body, _ in served} == sender.expected
        assert {tags for _, _, tags, _, _ in served} == set("abcdexy")
        sender.batch("later 1", "later 2", "later 3")
        sender.batch_of_ours(namesrv, "u 1", "v 2", "w 3", "z 4")
        sender.single("alone at ours")
        consume(cluster, "at-ours", set(sender.expected.values()))
        check_reads(namesrv, TOPIC, "py-at-ours", sender.expected)
        directory.end(how)
        cluster.stop_programs(keep_producers=False)

        assert batch_sizes(directory.store) == [5] * 6 + [3, 4]
        assert not check_store(directory.store, LocalFileSystem()).is_damaged
        directory.start("apache")
        sender.cluster = cluster = Cluster("apache", namesrv, tmp_path / "third")
        cluster.wait_stored(TOPIC, len(sender.expected))
        sender.batch("last 1", "last 2")
        consume(cluster, "at-apaches", set(sender.expected.values()))
        check_reads(namesrv, TOPIC, "py-at-apaches", sender.expected)
        directory.end("kill -9")
    finally:
        cluster.stop_programs(keep_producers=False)


def consume(cluster: Cluster, group: str, expected: set[str]) -> None:
    """Read everything with Java's consumer, in a new group."""
    cluster.begin_offsets(group, TOPIC)
    consumer = cluster.consumer(group, TOPIC, tags="*")
    consumer.wait_count(len(expected), "message")
    consumer.finish()
    assert {event["body"] for event in consumer.of("message")} == expected
