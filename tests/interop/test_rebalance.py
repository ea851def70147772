"""A group of Apache's Java push consumers: sharing the queues, and taking over from a member."""

from collections.abc import Callable

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Events, Process, Program

pytestmark = pytest.mark.interop

QUEUES = 8

STOP: Callable[[Program], None] = Program.finish
KILL: Callable[[Process], None] = Process.kill


@pytest.mark.parametrize("leave", [STOP, KILL], ids=["stopped", "killed"])
def test_the_remaining_member_takes_all_queues_and_every_message(
    cluster: Cluster, leave: Callable[[Program], None]
) -> None:
    """One member, then two with four queues each, then one again: all messages are consumed."""
    topic, group = cluster.fresh_name("Shared"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    first = cluster.consumer(group, topic)
    wait_queues(cluster, first, topic, QUEUES)
    send(cluster, topic, "alone", 16)

    second = cluster.consumer_process(group, topic)
    wait_queues(cluster, first, topic, QUEUES // 2)
    wait_queues(cluster, second, topic, QUEUES // 2)
    assert queues_of(first, topic) | queues_of(second, topic) == {
        f"{cluster.broker_name}:{queue}" for queue in range(QUEUES)
    }
    send(cluster, topic, "both", 16)
    wait_bodies(cluster, "both", 16, first, second)
    assert second.of("message"), "the second member consumes its queues' messages"

    leave(second)
    wait_queues(cluster, first, topic, QUEUES)
    send(cluster, topic, "again", 16)
    wait_bodies(cluster, "again", 16, first)
    wait_bodies(cluster, "alone", 16, first, second)


def send(cluster: Cluster, topic: str, what: str, count: int) -> None:
    for i in range(count):
        cluster.send(topic=topic, body=f"{what} {i}")


def queues_of(consumer: Events, topic: str) -> set[str]:
    changes = consumer.of("queues", topic=topic)
    return set(changes[-1]["queues"]) if changes else set()


def wait_queues(cluster: Cluster, consumer: Events, topic: str, count: int) -> None:
    cluster.wait_until(
        lambda: len(queues_of(consumer, topic)) == count, f"{count} queues", within_s=PATIENCE_S
    )


def wait_bodies(cluster: Cluster, what: str, count: int, *consumers: Events) -> None:
    """Wait until each message was delivered. Uncommitted ones of a killed member are delivered twice."""
    wanted = {f"{what} {i}" for i in range(count)}

    def complete() -> bool:
        return wanted <= {delivery["body"] for consumer in consumers for delivery in consumer.of("message")}

    cluster.wait_until(complete, f"not all of {what}", within_s=PATIENCE_S)
