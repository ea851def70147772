"""Our broadcasting consumer with Apache's servers and ours; its offset file with Apache's client."""

from pathlib import Path

import pytest

from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.filesystem import LocalFileSystem
from libramq.message import Message, MessageQueue
from libramq.sync import Producer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.members import Members
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

QUEUES = 4


def send(cluster: Cluster, topic: str, what: str) -> set[str]:
    bodies = {f"{what} {number}" for number in range(20)}
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for body in sorted(bodies):
            producer.send(Message(topic, body.encode()))
    return bodies


def test_every_member_gets_every_message_and_resumes_after_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The group has two of our members and one of Java's."""
    topic, group = cluster.fresh_name("Broadcast"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    members = Members(cluster, topic, group=group, broadcasting=True, local_offsets=str(tmp_path))
    java = cluster.consumer_process(
        group, topic, broadcast=True, **{"rocketmq.client.localOffsetStoreDir": tmp_path / "java"}
    )
    try:
        one, two = (members.start(instance_name=name) for name in ("one", "two"))
        bodies = send(cluster, topic, "first")
        for member in (one, two, java):
            received = [event["body"] for event in member.wait_count(20, "message", within_s=PATIENCE_S)]
            assert sorted(received) == sorted(bodies)
        one.finish()
        bodies = send(cluster, topic, "while it was away")
        again = members.start(instance_name="one")
        received = [event["body"] for event in again.wait_count(20, "message", within_s=PATIENCE_S)]
        assert sorted(received) == sorted(bodies)
        two.wait_count(40, "message", within_s=PATIENCE_S)
    finally:
        members.stop()


def test_each_client_reads_the_others_offset_file(cluster: Cluster, tmp_path: Path) -> None:
    """We read Java's file; Java begins at the offsets that we have written to it."""
    topic, group = cluster.fresh_name("Broadcast"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    java_home = {"rocketmq.client.localOffsetStoreDir": tmp_path}
    bodies = send(cluster, topic, "java's")
    java = cluster.consumer_process(group, topic, broadcast=True, **java_home)
    assert {event["body"] for event in java.wait_count(20, "message")} == bodies
    client_id = java.wait_event("started")["clientId"]
    java.finish()

    store = LocalOffsetStore(tmp_path, client_id, group, LocalFileSystem())
    store.load()
    queue = MessageQueue(topic, cluster.broker_name, 0)
    assert store.read(queue) == 20
    store.write([(queue, 17)])

    java = cluster.consumer_process(group, topic, broadcast=True, **java_home)
    assert sorted(event["offset"] for event in java.wait_count(3, "message")) == [17, 18, 19]
