"""mqadmin's resetOffsetByTime for our members and Java's, connected or gone, at Apache's broker and ours."""

import pytest

from libramq.client import ConsumeFrom
from libramq.message.queue import MessageQueue
from libramq.sync import Admin, PushConsumer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.interop.test_our_client import Inbox

pytestmark = pytest.mark.interop

COUNT = 6
QUEUES = 2


def filled(cluster: Cluster) -> tuple[str, str]:
    """Return a new topic with messages, and a new group."""
    topic, group = cluster.fresh_name("Reset"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    for i in range(COUNT):
        cluster.send(topic=topic, body=str(i))
    cluster.wait_stored(topic, COUNT)
    cluster.begin_offsets(group, topic)
    return topic, group


def member(cluster: Cluster, group: str, topic: str, inbox: Inbox) -> PushConsumer:
    consumer = PushConsumer(
        group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, persist_ms=100
    )
    consumer.subscribe(topic, "*", inbox)
    return consumer


def is_behind(cluster: Cluster, group: str, topic: str, count: int) -> bool:
    try:
        printed = cluster.admin("consumerProgress", "-g", group)
    except AssertionError:  # Apache's broker does not know what the group reads before its first commit.
        return False
    rows = [line.split() for line in printed.splitlines()]
    of_topic = [row for row in rows if row[:1] == [topic]]
    return len(of_topic) == QUEUES and sum(int(row[3]) - int(row[4]) for row in of_topic) == count


def reset(cluster: Cluster, group: str, topic: str, timestamp: str = "0") -> list[tuple[str, int]]:
    """Reset a group with mqadmin; return the queues and offsets that it prints."""
    printed = cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", timestamp)
    rows = [line.split() for line in printed.splitlines()]
    return sorted((row[1], int(row[2])) for row in rows if row[:1] == [cluster.broker_name])


def test_mqadmin_resets_a_group_to_a_time(cluster: Cluster) -> None:
    """The times are before the first message and after the last one."""
    group, topic = cluster.fresh_name("group"), cluster.fresh_name("ByTime")
    cluster.create_topic(topic, 1)
    for number in range(3):
        cluster.send(topic=topic, body=str(number))
    consumer = cluster.consumer(group, topic, tags="*")
    consumer.wait_count(3, "message")
    consumer.finish()
    cluster.wait_committed(group, topic, 3)
    assert reset(cluster, group, topic) == [("0", 0)]
    assert reset(cluster, group, topic, "now") == [("0", 3)]


def test_mqadmin_moves_our_members(cluster: Cluster) -> None:
    """Our coordinator does it; at Apache's broker the clients themselves have to."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        assert reset(cluster, group, topic) == [("0", 0), ("1", 0)]
        inbox.wait_count(2 * COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == 2 * COUNT
    assert len(inbox.bodies()) == COUNT


def test_mqadmin_resets_a_single_queue_of_our_members(cluster: Cluster) -> None:
    """With -b, -q and -o mqadmin commits and resets that queue; at Apache's broker pulls apply the reset."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        single = ("-b", cluster.broker_address, "-q", "1", "-o", "1")
        printed = cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", *single)
        assert "reset consumer offset to 1" in printed
        inbox.wait_count(COUNT + COUNT // QUEUES - 1)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == COUNT + COUNT // QUEUES - 1


def test_our_admin_resets_a_single_queue_of_our_members(cluster: Cluster) -> None:
    """One request is enough; at Apache's broker pulls apply the reset. The other queue is not changed."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        with Admin(namesrv=cluster.namesrv) as admin:
            assert admin.reset_queue(group, MessageQueue(topic, cluster.broker_name, 1), 1) == 1
        inbox.wait_count(COUNT + COUNT // QUEUES - 1)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == COUNT + COUNT // QUEUES - 1


def test_a_group_deleted_by_our_admin_starts_over(cluster: Cluster) -> None:
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.delete_group(group, offsets=True) == [cluster.broker_address]
        assert f"%RETRY%{group}" not in admin.topics()
    again = Inbox()
    with member(cluster, group, topic, again):
        again.wait_count(COUNT)


def test_mqadmin_moves_a_group_of_ours_without_members(cluster: Cluster) -> None:
    topic, group = filled(cluster)
    first = Inbox()
    with member(cluster, group, topic, first):
        first.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert is_behind(cluster, group, topic, COUNT)
    again = Inbox()
    with member(cluster, group, topic, again):
        again.wait_count(COUNT)


def test_mqadmin_moves_javas_members(cluster: Cluster) -> None:
    topic, group = filled(cluster)
    program = cluster.consumer(group, topic, tags="*")
    program.wait_count(COUNT, "message")
    cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert reset(cluster, group, topic) == [("0", 0), ("1", 0)]
    program.wait_count(2 * COUNT, "message", within_s=3 * PATIENCE_S)  # Java's client pauses for 10 s.
    program.finish()
