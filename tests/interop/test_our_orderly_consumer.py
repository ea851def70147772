"""Our orderly consumer with Apache's servers and ours, with our own members and beside Apache's client."""

import threading
from collections import defaultdict

import pytest

from libramq.client import ConsumeFrom
from libramq.message import Message, MessageExt
from libramq.sync import Admin, Producer, PushConsumer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.members import Members, flow, owned
from tests.interop.process import PATIENCE_S, Event

pytestmark = pytest.mark.interop

QUEUES = 8
# Less than the 20 s after which Java's members retry a refused lock (apache/rocketmq #2621).
HANDOVER_S = 19.0


def in_order(deliveries: list[Event]) -> dict[int, list[int]]:
    """Return the offsets of each queue in the order of handling, over all members."""
    queues: dict[int, list[int]] = defaultdict(list)
    for delivery in sorted(deliveries, key=lambda each: (each["atMs"], each["offset"])):
        queues[delivery["queueId"]].append(delivery["offset"])
    return queues


def test_order_holds_while_members_join_and_leave(cluster: Cluster) -> None:
    """One, two, three, two, one members under load: no duplicates, queues in order, quick handovers."""
    topic, group = cluster.fresh_name("Handed"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    cluster.begin_offsets(group, topic)
    members = Members(cluster, topic, group=group, orderly=True, work_ms=2)

    def shared(count: int) -> None:
        running = members.all[:count]
        cluster.wait_until(
            lambda: (
                sorted(queue for member in running for queue in owned(member)) == list(range(QUEUES))
                and all(owned(member) for member in running)
            ),
            f"{count} members do not share the queues: {[owned(member) for member in members.all]}",
            within_s=HANDOVER_S,
        )

    try:
        with flow(cluster, topic, QUEUES) as sent:
            for count in (1, 2, 3):
                members.start()
                shared(count)
            for count in (2, 1):
                members.all[count].finish()
                shared(count)
        cluster.wait_until(
            lambda: len(members.deliveries()) >= sent[0], "not all handled", within_s=PATIENCE_S
        )
        members.all[0].finish()
    finally:
        members.stop()
    assert len(members.deliveries()) == sent[0]
    for offsets in in_order(members.deliveries()).values():
        assert offsets == list(range(len(offsets)))
    assert not any(member.of("lost") for member in members.all)


def test_java_and_we_share_a_group_in_order(cluster: Cluster) -> None:
    """Java's orderly consumer joins and leaves; each client hands its queues to the other in order."""
    topic, group = cluster.fresh_name("Mixed"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    cluster.begin_offsets(group, topic)
    members = Members(cluster, topic, group=group, orderly=True)
    try:
        with flow(cluster, topic, QUEUES, 0.005) as sent:
            ours = members.start()
            java = cluster.consumer(group, topic, orderly=True)
            cluster.wait_until(
                lambda: len(owned(ours)) == QUEUES // 2 and bool(java.of("message")),
                "no even share",
                within_s=PATIENCE_S,
            )
            java.finish()
            cluster.wait_until(lambda: len(owned(ours)) == QUEUES, "not all left", within_s=PATIENCE_S)

        def handled() -> list[Event]:
            return members.deliveries() + java.of("message")

        cluster.wait_until(
            lambda: len({(each["queueId"], each["offset"]) for each in handled()}) == sent[0],
            "not all handled",
            within_s=PATIENCE_S,
        )
        ours.finish()
    finally:
        members.stop()
    ours_only, javas_only = in_order(members.deliveries()), in_order(java.of("message"))
    for queue_id, offsets in in_order(handled()).items():
        whose = f"of queue {queue_id} we handled {ours_only[queue_id]}, Java {javas_only[queue_id]}"
        assert ours_only[queue_id] == sorted(set(ours_only[queue_id])), whose
        assert offsets == sorted(offsets), whose


def test_a_message_that_always_fails_becomes_a_dead_letter_and_its_queue_continues(cluster: Cluster) -> None:
    """All allowed tries come before any later message."""
    topic, group = cluster.fresh_name("Buried"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    tried: list[tuple[str, int]] = []
    passed = threading.Event()

    def handle(messages: list[MessageExt]) -> bool:
        tried.extend((message.body.decode(), message.reconsume_times) for message in messages)
        if tried[-1][0] == "good":
            passed.set()
        return tried[-1][0] == "good"

    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for body in (b"bad", b"good"):
            producer.send(Message(topic, body))
    member = PushConsumer(
        group=group,
        namesrv=cluster.namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        orderly=True,
        max_reconsume_times=2,
        suspend_ms=50,
    )
    member.subscribe(topic, "*", handle)
    with member, Admin(namesrv=cluster.namesrv) as admin:
        assert passed.wait(PATIENCE_S)
        dead_letters = f"%DLQ%{group}"
        cluster.wait_until(
            lambda: cluster.route(dead_letters) is not None, "no dead letter queue", within_s=PATIENCE_S
        )
        cluster.wait_until(
            lambda: sum(ends.max_offset for ends in admin.topic_stats(dead_letters).values()) == 1,
            "no dead letter",
            within_s=PATIENCE_S,
        )
    assert tried == [("bad", 0), ("bad", 1), ("bad", 2), ("good", 0)]
