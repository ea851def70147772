"""Apache's concurrent Java push consumer: tags, held pulls, retries, dead letters, resuming after a stop."""

import statistics
from typing import Any

import pytest

from tests.interop.cluster import Cluster, Consumer
from tests.interop.process import PATIENCE_S, Event

pytestmark = pytest.mark.interop

RETRY_DELAY_MS = 1_000  # Delay level 1 of the default messageDelayLevel.
TIMER_SLACK_MS = 50  # The broker counts the delay from the time of storing, the test from the delivery.
IDLE_MESSAGES = 9
PUSH_LATENCY_MAX_MS = 1_000  # The message wakes a held pull; otherwise the next check is 5 s away.


def test_only_the_tags_of_the_subscription_are_delivered(cluster: Cluster) -> None:
    """This holds even for tags with the same Java hash code, such as Aa and BB."""
    topic = cluster.fresh_name("Tags")
    cluster.create_topic(topic, 2)
    for tags in ("Aa", "BB", "C", "D"):
        cluster.send(topic=topic, body=f"tagged {tags}", tags=tags)
    cluster.send(topic=topic, body="without a tag")
    cluster.send(topic=topic, body="last", tags="C")

    consumer = cluster.consumer(cluster.fresh_name("group"), topic, tags="Aa || C")

    deliveries = consumer.wait_count(3, "message")
    assert sorted(delivery["body"] for delivery in deliveries) == ["last", "tagged Aa", "tagged C"]
    consumer.finish()
    assert len(consumer.of("message")) == 3


def test_an_idle_consumer_gets_a_message_at_once(cluster: Cluster) -> None:
    """The broker holds pulls and answers them when a message arrives.

    The median counts because the machine may stall during a single message.
    """
    topic = cluster.fresh_name("Idle")
    cluster.create_topic(topic, 2)
    consumer = cluster.consumer(cluster.fresh_name("group"), topic)
    latencies_ms = []
    for i in range(IDLE_MESSAGES):
        sent = cluster.send(topic=topic, body=str(i))
        delivery = consumer.wait_event("message", body=str(i))
        assert delivery["msgId"] == sent["msgId"]
        latencies_ms.append(delivery["atMs"] - delivery["storeTimestamp"])
    assert statistics.median(latencies_ms) < PUSH_LATENCY_MAX_MS, latencies_ms


def test_a_failed_message_is_redelivered_after_its_delay(cluster: Cluster) -> None:
    """After RECONSUME_LATER it is redelivered once, with a count of 1 and otherwise unchanged."""
    topic, group = cluster.fresh_name("Retried"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    cluster.create_topic(f"%RETRY%{group}", 1)
    cluster.send(topic=topic, body="again", tags="TagA", keys="key-1", properties={"colour": "blue"})

    consumer = start_for_retries(cluster, group, topic, fail="first", delayLevel=1)
    first = consumer.wait_event("message", reconsumeTimes=0)
    second = consumer.wait_event("message", reconsumeTimes=1)

    assert second["atMs"] - first["atMs"] >= RETRY_DELAY_MS - TIMER_SLACK_MS
    for field in ("topic", "body", "tags", "keys", "msgId", "bornTimestamp"):
        assert second[field] == first[field], field
    assert second["properties"]["colour"] == "blue"
    assert second["properties"]["RETRY_TOPIC"] == topic
    assert second["accepted"]
    consumer.finish()
    assert len(consumer.of("message")) == 2


def test_a_message_that_always_fails_becomes_a_dead_letter(cluster: Cluster) -> None:
    """It is delivered as often as the consumer allows, and then no more."""
    topic, group = cluster.fresh_name("Dead"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    cluster.create_topic(f"%RETRY%{group}", 1)
    cluster.send(topic=topic, body="never", tags="TagA", keys="key-1")

    consumer = start_for_retries(cluster, group, topic, fail="always", delayLevel=1, maxReconsume=2)
    deliveries = consumer.wait_count(3, "message")
    assert [delivery["reconsumeTimes"] for delivery in deliveries] == [0, 1, 2]

    offsets = cluster.start("Offsets", {"group": cluster.fresh_name("asking")})
    dead = {"topic": f"%DLQ%{group}", "broker": cluster.broker_name, "queueId": 0}
    cluster.wait_until(
        lambda: cluster.route(f"%DLQ%{group}") is not None, "no dead letters", within_s=PATIENCE_S
    )
    cluster.wait_until(
        lambda: offsets.ask("answer", {**dead, "ask": "max"}).get("answer") == 1,
        "no dead letter",
        within_s=PATIENCE_S,
    )
    pulled = offsets.ask("answer", {**dead, "ask": "pull", "tags": "*", "offset": 0, "count": 8})["answer"]
    assert pulled["bodies"] == ["never"]
    consumer.finish()
    assert len(consumer.of("message")) == 3


def test_a_group_resumes_where_it_stopped(cluster: Cluster) -> None:
    """A clean stop commits consumed messages, so a later member gets only the rest.

    The topic has one queue because Apache's broker can lose one of two simultaneous first commits.
    """
    topic, group = cluster.fresh_name("Committed"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    for i in range(10):
        cluster.send(topic=topic, body=f"before {i}")
    first = cluster.consumer(group, topic)
    first.wait_count(10, "message")
    first.finish()
    cluster.wait_committed(group, topic, 10)

    offsets = cluster.start("Offsets", {"group": group})
    question = {"ask": "committed", "topic": topic, "broker": cluster.broker_name, "queueId": 0}
    assert offsets.ask("answer", question)["answer"] == 10
    offsets.finish()

    for i in range(4):
        cluster.send(topic=topic, body=f"after {i}")
    second = cluster.consumer(group, topic)
    second.wait_count(4, "message")
    second.finish()
    assert bodies(second.of("message")) == {f"after {i}" for i in range(4)}
    assert len(second.of("message")) == 4


def bodies(deliveries: list[Event]) -> set[str]:
    return {delivery["body"] for delivery in deliveries}


def start_for_retries(cluster: Cluster, group: str, topic: str, **settings: Any) -> Consumer:
    """Start a consumer and wait for its retry queue; the retry topic must exist already."""
    consumer = cluster.consumer(group, topic, **settings)
    consumer.wait_event("queues", topic=f"%RETRY%{group}", queues=[f"{cluster.broker_name}:0"])
    return consumer
