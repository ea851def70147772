"""Apache's orderly Java push consumer: it locks its queues at the broker and consumes each in order."""

import collections

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Event

pytestmark = pytest.mark.interop

QUEUES = 4


@pytest.mark.parametrize("dialect", ["json", "rocketmq"])
def test_each_queue_is_consumed_in_order(cluster: Cluster, dialect: str) -> None:
    topic, group = cluster.fresh_name("Ordered"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    for i in range(40):
        cluster.send(dialect, kind="hash", hashBy=f"plane {i % 7}", topic=topic, body=f"{i % 7}:{i}")

    consumer = cluster.consumer(group, topic, dialect=dialect, orderly=True, threads=8)
    deliveries = consumer.wait_count(40, "message")

    for of_queue in by_queue(deliveries).values():
        assert [delivery["offset"] for delivery in of_queue] == list(range(len(of_queue)))
    consumer.finish()
    assert len(consumer.of("message")) == 40


def test_a_failed_message_holds_its_queue(cluster: Cluster) -> None:
    """The listener sees it again before any later message, and nothing is sent back to the broker."""
    topic, group = cluster.fresh_name("Suspended"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    for i in range(3):
        cluster.send(topic=topic, body=str(i))

    consumer = cluster.consumer(group, topic, orderly=True, fail="first")
    deliveries = consumer.wait_count(6, "message")

    assert [(delivery["body"], delivery["accepted"]) for delivery in deliveries] == [
        (body, accepted) for body in "012" for accepted in (False, True)
    ]


def test_a_leaving_member_releases_its_locks(cluster: Cluster) -> None:
    """Two members share the queues; when one stops, the other locks all of them and continues in order."""
    topic, group = cluster.fresh_name("Handed"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    first = cluster.consumer(group, topic, orderly=True)
    second = cluster.consumer(group, topic, orderly=True)
    for member in (first, second):
        member.wait_until(
            lambda member=member: len(queues_of(member.of("queues", topic=topic))) == QUEUES // 2,  # type: ignore[misc]
            "half of the queues",
            within_s=PATIENCE_S,
        )
    assert not set(queues_of(first.of("queues", topic=topic))) & set(
        queues_of(second.of("queues", topic=topic))
    )
    for i in range(20):
        cluster.send(topic=topic, body=f"both {i}")
    # Together they get all messages. A wait on one member's output would miss the other's, so poll both.
    cluster.wait_until(
        lambda: len(first.of("message")) + len(second.of("message")) >= 20, "20 messages", within_s=PATIENCE_S
    )

    second.finish()
    for i in range(20):
        cluster.send(topic=topic, body=f"alone {i}")
    cluster.wait_until(
        lambda: sum(delivery["body"].startswith("alone") for delivery in first.of("message")) == 20,
        "20 messages after the other left",
        within_s=PATIENCE_S,
    )
    for of_queue in by_queue(first.of("message")).values():
        offsets = [delivery["offset"] for delivery in of_queue]
        assert offsets == sorted(offsets)


def by_queue(deliveries: list[Event]) -> dict[int, list[Event]]:
    queues: dict[int, list[Event]] = collections.defaultdict(list)
    for delivery in deliveries:
        queues[delivery["queueId"]].append(delivery)
    return queues


def queues_of(changes: list[Event]) -> list[str]:
    return changes[-1]["queues"] if changes else []
