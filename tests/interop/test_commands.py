"""The libra command works against Apache's servers and ours alike."""

import json
from typing import Any

import pytest

from tests.cli.commands import libra, one_line
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop


def ask(cluster: Cluster, *arguments: str) -> Any:
    done = libra("admin", *arguments, "-n", cluster.namesrv, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_topic_is_created_listed_and_routed(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Commanded")
    made = ask(cluster, "updateTopic", "-t", topic, "-c", cluster.cluster_name, "-r", "3", "-w", "3")
    assert made["brokers"] == [cluster.broker_address]
    cluster.wait_until(lambda: cluster.route(topic) is not None, f"no route of {topic}", within_s=PATIENCE_S)
    assert topic in ask(cluster, "topicList")
    route = ask(cluster, "topicRoute", "-t", topic)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": cluster.broker_address}
    assert (route["queueDatas"][0]["readQueueNums"], route["queueDatas"][0]["perm"]) == (3, 6)


def test_the_cluster_is_listed(cluster: Cluster) -> None:
    rows: list[dict[str, Any]] = []

    def is_answered() -> bool:  # A busy broker may exceed the command's 3 s timeout.
        rows[:] = ask(cluster, "clusterList")
        return "error" not in rows[0]

    cluster.wait_until(is_answered, "what the broker says of itself", within_s=PATIENCE_S)
    (row,) = rows
    assert (row["cluster"], row["broker"], row["id"]) == (cluster.cluster_name, cluster.broker_name, 0)
    assert row["active"] is True
    assert row["version"]


def test_lines_are_sent_and_consumed(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Lines")
    cluster.create_topic(topic, 4)
    lines = [f"line {number}" for number in range(200)]
    sent = libra("send", "-n", cluster.namesrv, "-t", topic, "--tags", "red", stdin="\n".join(lines))
    assert sent.out == f"sent 200 messages to {topic}\n", sent
    read = libra("tail", "-n", cluster.namesrv, "-t", topic, "--from", "earliest", "--count", "200", "--json")
    rows = [json.loads(line) for line in read.out.splitlines()]
    assert sorted(row["body"] for row in rows) == sorted(lines)
    assert {row["properties"]["TAGS"] for row in rows} == {"red"}


def test_a_java_groups_progress_and_members_are_shown(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Watched"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    for number in range(5):
        cluster.send(topic=topic, body=str(number))
    first = cluster.consumer(group, topic, tags="*")
    first.wait_count(5, "message")
    first.finish()
    for number in range(3):
        cluster.send(topic=topic, body=str(number))
    cluster.wait_stored(topic, 8)
    cluster.wait_committed(group, topic, 5)
    progress = ask(cluster, "consumerProgress", "-g", group)
    (row,) = (row for row in progress["queues"] if row["topic"] == topic)
    assert (row["brokerOffset"], row["consumerOffset"], row["diff"]) == (8, 5, 3)
    assert "206 CONSUMER_NOT_ONLINE" in one_line(
        libra("admin", "consumerConnection", "-n", cluster.namesrv, "-g", group)
    )
    member = cluster.consumer(group, topic, tags="red || blue")
    connection = ask(cluster, "consumerConnection", "-g", group)
    assert [one["clientId"] for one in connection["connections"]] == [member.of("started")[0]["clientId"]]
    assert connection["subscriptions"][topic] == "red || blue"
    assert (connection["consumeType"], connection["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    summary = next(row for row in ask(cluster, "consumerProgress") if row["group"] == group)
    assert (summary["count"], summary["type"], summary["model"]) == (1, "PUSH", "CLUSTERING")


def test_benchmarks_run_against_apaches_broker(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Bench")
    cluster.create_topic(topic, 4)
    produced = libra("bench", "produce", "-n", cluster.namesrv, "-t", topic, "--count", "2000", "--batched")
    assert produced.code == 0, produced
    cluster.wait_stored(topic, 2000)
    consumed = libra("bench", "consume", "-n", cluster.namesrv, "-t", topic, "--json")
    assert consumed.code == 0, consumed
    assert json.loads(consumed.out)["messages"] == 2000


def test_missing_topics_and_groups_are_reported(cluster: Cluster) -> None:
    said = one_line(libra("admin", "topicRoute", "-n", cluster.namesrv, "-t", "Nope"))
    assert said.startswith("no broker has the topic Nope; create it")
