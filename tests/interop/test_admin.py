"""Apache's mqadmin: the subcommands an operator needs first."""

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop


def test_a_topic_created_by_mqadmin_is_listed_routed_and_counted(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Administered")
    printed = cluster.admin("updateTopic", "-c", cluster.cluster_name, "-t", topic, "-r", "3", "-w", "3")
    assert f"create topic to {cluster.broker_address} success" in printed

    assert topic in cluster.admin("topicList").split()

    route = cluster.admin("topicRoute", "-t", topic)
    assert cluster.broker_address in route
    assert '"readQueueNums":3' in route.replace(" ", "")

    for i in range(6):
        cluster.send(topic=topic, body=str(i))
    cluster.wait_stored(topic, 6)
    status = [line.split() for line in cluster.admin("topicStatus", "-t", topic).splitlines()]
    rows = {int(row[1]): (int(row[2]), int(row[3])) for row in status if row[:1] == [cluster.broker_name]}
    assert rows == {0: (0, 2), 1: (0, 2), 2: (0, 2)}


def test_the_cluster_is_listed_with_its_broker(cluster: Cluster) -> None:
    rows = [line.split() for line in cluster.admin("clusterList").splitlines()]
    (row,) = (row for row in rows if row[:1] == [cluster.cluster_name])
    assert row[1:4] == [cluster.broker_name, "0", cluster.broker_address]


def test_the_progress_and_the_members_of_a_group(cluster: Cluster) -> None:
    """mqadmin prints each queue's offsets and their difference, and a client with its subscription."""
    topic, group = cluster.fresh_name("Progress"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    for i in range(5):
        cluster.send(topic=topic, body=str(i))
    first = cluster.consumer(group, topic, tags="*")
    first.wait_count(5, "message")
    first.finish()
    for i in range(3):
        cluster.send(topic=topic, body=str(i))
    cluster.wait_stored(topic, 8)
    cluster.wait_committed(group, topic, 5)

    rows = [line.split() for line in cluster.admin("consumerProgress", "-g", group).splitlines()]
    (row,) = (row for row in rows if row[:1] == [topic])
    # topic, broker, queue, broker offset, consumer offset, client (N/A or missing), difference …
    assert row[1:5] == [cluster.broker_name, "0", "8", "5"]
    assert "3" in row[5:]

    member = cluster.consumer(group, topic, tags="*")
    printed = cluster.admin("consumerConnection", "-g", group)
    assert member.of("started")[0]["clientId"] in printed
    assert topic in printed


def test_messages_are_found_by_their_keys(cluster: Cluster) -> None:
    """mqadmin queries each broker of the topic, compares the keys itself, and prints the messages' places."""
    topic = cluster.fresh_name("Keyed")
    cluster.create_topic(topic, 2)
    sent = [cluster.send(topic=topic, body=str(number), keys=f"order-{number % 2}") for number in range(4)]

    def found(key: str) -> set[str]:
        printed = cluster.admin("queryMsgByKey", "-t", topic, "-k", key)
        return {each["msgId"] for each in sent if each["msgId"] in printed}

    # Apache's broker acknowledges before its index has the keys; it indexes in the order of the log.
    wanted = {sent[1]["msgId"], sent[3]["msgId"]}
    cluster.wait_until(lambda: found("order-1") == wanted, "messages by key", within_s=PATIENCE_S)
    by_unique_key = cluster.admin("queryMsgByUniqueKey", "-t", topic, "-i", str(sent[2]["msgId"]))
    assert f"Topic: {topic}" in " ".join(by_unique_key.split()), by_unique_key
    assert "order-0" in by_unique_key


@pytest.mark.parametrize("command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"])
def test_mqadmin_frees_a_brokers_disk(cluster: Cluster, command: str) -> None:
    """One broker or all start or complete the cleaning before they answer; data in use is kept."""
    topic = cluster.fresh_name("Kept")
    cluster.create_topic(topic, 1)
    cluster.send(topic=topic, body="kept")
    cluster.wait_stored(topic, 1)
    assert "success" in cluster.admin(command, "-b", cluster.broker_address)
    assert "success" in cluster.admin(command, "-c", cluster.cluster_name)
    status = [line.split() for line in cluster.admin("topicStatus", "-t", topic).splitlines()]
    assert [row[1:4] for row in status if row[:1] == [cluster.broker_name]] == [["0", "0", "1"]]
