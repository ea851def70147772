"""Our fetching consumer with Apache's broker and ours, and beside Java's lite pull consumer."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from libramq.message import Message, MessageQueue
from libramq.sync import Consumer, Producer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

QUEUES = 4


def send(cluster: Cluster, topic: str, bodies: list[str]) -> None:
    """Send the bodies to all queues in turn."""
    queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(QUEUES)]
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number, body in enumerate(bodies):
            tag = "even" if number // QUEUES % 2 == 0 else "odd"
            producer.send(Message(topic, body.encode(), tags=tag), queue=queues[number % QUEUES])


class Fetcher:
    """Our member, running in its own thread."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.bodies: list[str] = []
        self.consumer = Consumer(
            group=group, namesrv=cluster.namesrv, consume_from="earliest", auto_commit_interval_ms=1_000
        )
        self.consumer.subscribe(topic)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for message in self.consumer:
            self.bodies.append(message.body.decode())

    @contextmanager
    def running(self) -> Iterator[None]:
        self.consumer.start()
        self._thread.start()
        try:
            yield
        finally:
            self.consumer.stop()
            self._thread.join(PATIENCE_S)

    def queues(self) -> set[int]:
        return {queue.queue_id for queue in self.consumer.assignment()}


def test_ours_and_javas_lite_pull_consumer_share_a_group(cluster: Cluster) -> None:
    """Each has half of the queues; when Java's leaves, ours gets its queues at its committed offsets."""
    topic, group = cluster.fresh_name("Shared"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    cluster.begin_offsets(group, topic)
    java = cluster.start("LitePull", {"group": group, "topic": topic})
    java.wait_event("queues")
    ours = Fetcher(cluster, group, topic)

    def heard() -> Counter[str]:
        return Counter([*ours.bodies, *(event["body"] for event in java.of("message"))])

    def all_of(bodies: list[str]) -> None:
        wanted = set(bodies)
        cluster.wait_until(lambda: heard().keys() >= wanted, "not every message came", within_s=PATIENCE_S)

    with ours.running():

        def is_shared() -> bool:
            theirs = {int(each.rpartition(":")[2]) for each in java.of("queues")[-1]["queues"]}
            return len(ours.queues()) == len(theirs) == QUEUES // 2 and not ours.queues() & theirs

        cluster.wait_until(is_shared, "the queues were not shared", within_s=PATIENCE_S)
        first = [f"first {number}" for number in range(40)]
        send(cluster, topic, first)
        all_of(first)
        cluster.wait_committed(group, topic, 40)
        java.finish()
        cluster.wait_until(
            lambda: len(ours.queues()) == QUEUES, "Java's queues did not come", within_s=PATIENCE_S
        )
        second = [f"second {number}" for number in range(40)]
        send(cluster, topic, second)
        all_of(second)
    counts = heard()
    assert all(counts[body] == 1 for body in [*first, *second]), counts
    again = cluster.start("LitePull", {"group": group, "topic": topic})
    again.wait_event("started")
    third = [f"third {number}" for number in range(QUEUES)]
    send(cluster, topic, third)
    again.wait_count(QUEUES, "message")
    assert {event["body"] for event in again.of("message")} == set(third)


def test_our_assigned_queues_are_read_from_where_we_want(cluster: Cluster) -> None:
    """A filter applies; positions, commits and the lag agree with the broker's offsets."""
    topic = cluster.fresh_name("Assigned")
    cluster.create_topic(topic, QUEUES)
    send(cluster, topic, [str(number) for number in range(10 * QUEUES)])
    consumer = Consumer(group=cluster.fresh_name("group"), namesrv=cluster.namesrv, consume_from="earliest")
    with consumer:
        queues = consumer.queues(topic)
        assert [queue.queue_id for queue in queues] == list(range(QUEUES))
        consumer.assign(queues[:2], "odd")
        found: dict[MessageQueue, list[str]] = {}
        while sum(map(len, found.values())) < 10:
            for queue, messages in consumer.getmany(timeout_ms=5_000).items():
                found.setdefault(queue, []).extend(message.body.decode() for message in messages)
        assert found == {
            queue: [str(number * QUEUES + queue.queue_id) for number in (1, 3, 5, 7, 9)]
            for queue in queues[:2]
        }
        consumer.commit()
        assert consumer.committed(queues[0]) == 10
        consumer.seek(queues[1], 4)
        assert consumer.getone().queue_offset == 5
        assert consumer.lag(queues[1]) == 3  # The next odd message is at 7.
        consumer.seek_to_end(queues[1])
        assert consumer.position(queues[1]) == 10
        consumer.seek_to_beginning(queues[1])
        stored_ms = consumer.getone().store_timestamp_ms
        consumer.seek_to_time(stored_ms, queues[1])
        assert consumer.getone().queue_offset <= 1


def test_record_batches_hold_the_stored_messages(cluster: Cluster) -> None:
    """They begin at the group's offsets, obey the filter, and are committed like messages."""
    topic, group = cluster.fresh_name("Columns"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    send(cluster, topic, [str(number) for number in range(10 * QUEUES)])
    consumer = Consumer(group=group, namesrv=cluster.namesrv, consume_from="earliest")
    found: list[tuple[int, int, str]] = []
    with consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues, "odd")
        for batch in consumer.batches(["queueId", "offset", "body", "tag"]):
            assert set(batch["tag"].to_pylist()) == {"odd"}
            columns = [batch[name].to_pylist() for name in ("queueId", "offset", "body")]
            found += [
                (queue_id, offset, body.decode()) for queue_id, offset, body in zip(*columns, strict=True)
            ]
            if len(found) == 5 * QUEUES:
                break
        consumer.commit()
        assert [consumer.committed(queue) for queue in queues] == [10] * QUEUES
    assert sorted(found) == [
        (queue_id, offset, str(offset * QUEUES + queue_id))
        for queue_id in range(QUEUES)
        for offset in (1, 3, 5, 7, 9)
    ]
