"""Topics that are changed while Apache's clients use them: permission, queues, brokers of ordered topics."""

import pytest

from libramq.sync import Producer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Program

pytestmark = pytest.mark.interop


def publish_queues(producer: Program, topic: str) -> list[int]:
    """Return the queues that a producer sends to, fetched just now."""
    found = producer.ask("sent", {"kind": "queues", "topic": topic})
    return sorted(queue["queueId"] for queue in found["queues"])


def test_a_topic_without_write_permission_is_read_only(cluster: Cluster) -> None:
    """Producers find no queue, and consumers continue. Apache's broker would still accept a message."""
    topic, at = cluster.fresh_name("ReadOnly"), ("-b", cluster.broker_address)
    cluster.create_topic(topic, 1)
    cluster.send(topic=topic, body="before")
    cluster.admin("updateTopicPerm", *at, "-t", topic, "-p", "4")
    assert (cluster.route(topic) or {})["queueDatas"][0]["perm"] == 4
    found = cluster.producer().ask("sent", {"kind": "queues", "topic": topic})
    assert not found.get("queues"), found
    consumer = cluster.consumer(cluster.fresh_name("group"), topic)
    consumer.wait_event("message", body="before")
    cluster.admin("updateTopicPerm", *at, "-t", topic, "-p", "6")
    assert publish_queues(cluster.producer(), topic) == [0]
    consumer.finish()


def test_a_topic_without_read_permission_gives_consumers_no_messages(cluster: Cluster) -> None:
    topic, at = cluster.fresh_name("WriteOnly"), ("-b", cluster.broker_address)
    cluster.create_topic(topic, 1)
    cluster.admin("updateTopicPerm", *at, "-t", topic, "-p", "2")
    cluster.send(topic=topic, body="unread")
    consumer = cluster.start("Consume", {"group": cluster.fresh_name("group"), "topic": topic})
    consumer.wait_event("started")
    assert (cluster.route(topic) or {})["queueDatas"][0]["perm"] == 2
    cluster.admin("updateTopicPerm", *at, "-t", topic, "-p", "6")
    consumer.wait_event("message", body="unread")
    consumer.finish()


def test_consumers_share_the_queues_that_a_topic_gets(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Grown"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    one, two = cluster.consumer(group, topic), cluster.consumer(group, topic)
    names = [f"{cluster.broker_name}:{number}" for number in range(4)]
    cluster.admin("updateTopic", "-b", cluster.broker_address, "-t", topic, "-r", "4", "-w", "4")

    def are_shared() -> bool:
        shares = [member.of("queues", topic=topic)[-1]["queues"] for member in (one, two)]
        return sorted(shares[0] + shares[1]) == names and {len(share) for share in shares} == {2}

    cluster.wait_until(are_shared, "two queues each", within_s=PATIENCE_S)
    for number in range(4):
        cluster.wait_until(
            lambda number=number: (
                cluster.producer().ask(  # type: ignore[misc]
                    "sent", {"kind": "queue", "topic": topic, "body": str(number), "queueId": number}
                )["status"]
                == "SEND_OK"
            ),
            "a message in the new queue",
            within_s=PATIENCE_S,
        )
    cluster.wait_until(
        lambda: {each["body"] for member in (one, two) for each in member.of("message")} == set("0123"),
        "messages of all queues",
        within_s=PATIENCE_S,
    )
    one.finish()
    two.finish()


def test_producers_keep_to_the_order_configuration(cluster: Cluster) -> None:
    """Java's producer and ours send to the queues in the configuration, not to all queues of the topic."""
    topic = cluster.fresh_name("Ordered")
    cluster.create_topic(topic, 4)
    cluster.admin("updateOrderConf", "-t", topic, "-m", "put", "-v", f"{cluster.broker_name}:3")
    cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    try:
        assert publish_queues(cluster.producer(), topic) == [0, 1, 2]
        with Producer(namesrv=cluster.namesrv) as ours:
            assert [queue.queue_id for queue in ours.publish_queues(topic)] == [0, 1, 2]
    finally:
        cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
        cluster.admin("updateOrderConf", "-t", topic, "-m", "delete")
