"""Apache's mqadmin at a broker: the effects and output of its further commands."""

import json
from pathlib import Path

import pytest

from tests.docs.requests import COMMANDS
from tests.interop.apache import java
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Process

pytestmark = pytest.mark.interop

MQ_ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


def test_every_command_of_mqadmin_is_in_our_table(cluster: Cluster) -> None:
    cluster.admin("topicList")
    help_ = cluster.admin._running().ask("ran", {"arguments": []}, within_s=PATIENCE_S)["out"]
    printed = {line.split()[0] for line in help_.splitlines() if line.startswith("   ")}
    assert printed == {command.name for command in COMMANDS}


def test_topics_and_groups_are_made_and_changed(cluster: Cluster, tmp_path: Path) -> None:
    one, two, group = (cluster.fresh_name(what) for what in ("One", "Two", "group"))
    at = ("-b", cluster.broker_address)
    cluster.admin("updateTopic", *at, "-t", one, "-r", "2", "-w", "2", "-a", "+message.type=FIFO")
    cluster.admin("updateTopicPerm", *at, "-t", one, "-p", "4")
    cluster.wait_until(
        lambda: (cluster.route(one) or {"queueDatas": [{}]})["queueDatas"][0].get("perm") == 4,
        "the permission in the route",
        within_s=PATIENCE_S,
    )
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps([{"topicName": two, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}]))
    assert "success" in cluster.admin("updateTopicList", *at, "-f", str(topics))
    cluster.wait_until(lambda: cluster.route(two) is not None, f"the route of {two}", within_s=PATIENCE_S)
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([{"groupName": group, "retryMaxTimes": 7}]))
    assert "success" in cluster.admin("updateSubGroupList", *at, "-f", str(groups))
    assert "retryMaxTimes                           =  7" in cluster.admin("getConsumerConfig", "-g", group)
    exported = tmp_path / "exported"
    cluster.admin("exportMetadata", "-c", cluster.cluster_name, "-f", str(exported))
    metadata = json.loads((exported / "metadata.json").read_text())
    assert metadata["topicConfigTable"][one]["attributes"] == {"message.type": "FIFO"}
    assert metadata["subscriptionGroupTable"][group]["retryMaxTimes"] == 7


def test_statistics_offsets_and_options(cluster: Cluster, tmp_path: Path) -> None:
    topic, group, other = (cluster.fresh_name(what) for what in ("Counted", "group", "other"))
    at = ("-b", cluster.broker_address)
    cluster.create_topic(topic, 1)
    for number in range(3):
        cluster.send(topic=topic, body=str(number))
    member = cluster.consumer(group, topic, tags="*")
    member.wait_count(3, "message")
    member.finish()
    cluster.admin("updateSubGroup", *at, "-g", other)
    cluster.admin("cloneGroupOffset", "-s", group, "-d", other, "-t", topic)
    rows = [line.split() for line in cluster.admin("brokerConsumeStats", *at).splitlines()]
    progress = {row[1]: row[4:6] for row in rows if row[:1] == [topic]}
    assert progress == {group: ["3", "3"], other: ["3", "3"]}
    assert "max: 3, min: 0" in cluster.admin("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "2", *at)
    assert group in cluster.admin("statsAll", "-t", topic)
    options = cluster.admin("getBrokerConfig", *at)
    assert cluster.broker_name in options
    assert "success" in cluster.admin("updateBrokerConfig", *at, "-k", "fileReservedTime", "-v", "70")
    assert "70" in next(
        line for line in cluster.admin("getBrokerConfig", *at).splitlines() if "fileReservedTime" in line
    )
    cluster.admin("exportConfigs", "-c", cluster.cluster_name, "-f", str(tmp_path))
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["brokerConfigs"][cluster.broker_name]["fileReservedTime"] == "70"
    cluster.admin("exportMetrics", "-c", cluster.cluster_name, "-f", str(tmp_path))
    assert (tmp_path / "metrics.json").stat().st_size > 0


def test_messages_are_sent_printed_and_found(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Printed")
    cluster.create_topic(topic, 1)
    queue = ("-b", cluster.broker_name, "-i", "0")
    sent = cluster.admin("sendMessage", "-t", topic, "-p", "from mqadmin", "-k", "k1", "-c", "A", *queue)
    assert "SEND_OK" in sent
    cluster.send(topic=topic, body="from a producer", tags="B")
    assert "from mqadmin" in cluster.admin("printMsg", "-t", topic, "-s", "A")
    counted = cluster.admin(
        "printMsgByQueue", "-t", topic, "-a", cluster.broker_name, "-i", "0", "-f", "true", "-p", "true"
    )
    assert "Tag: A" in counted, counted
    assert "from a producer" in cluster.admin("consumeMessage", "-t", topic, *queue, "-o", "1", "-c", "1")
    found = cluster.admin("queryMsgByOffset", "-t", topic, *queue, "-o", "0")
    assert "k1" in found, found
    assert "SEND_OK" in cluster.admin("sendMsgStatus", "-b", cluster.broker_name, "-c", "1", "-s", "10")
    assert "Avg RT" in cluster.admin("checkMsgSendRT", "-t", topic, "-a", "3", "-s", "10")


def test_the_trace_of_a_message_is_found(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Traced")
    cluster.create_topic(topic, 1)
    # mqadmin's own sendMessage -m true ends before its trace is written.
    producer = cluster.start("Produce", {"group": cluster.fresh_name("group"), "trace": "true"})
    producer.wait_event("started")
    sent = producer.ask("sent", {"kind": "sync", "topic": topic, "body": "traced"})
    cluster.wait_until(
        lambda: "Pub" in _printed(cluster, "queryMsgTraceById", "-i", sent["msgId"]),
        "the trace of a message",
        within_s=PATIENCE_S,
    )


def _printed(cluster: Cluster, command: str, *options: str) -> str:
    """Return a command's output; nothing if it failed because the data does not exist yet."""
    try:
        return cluster.admin(command, *options)
    except AssertionError:
        return ""


def test_topics_and_groups_are_inspected_and_deleted(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Deleted"), cluster.fresh_name("group")
    cluster.create_topic(topic, 4)
    assert cluster.cluster_name in cluster.admin("topicClusterList", "-t", topic)
    allocated = cluster.admin("allocateMQ", "-t", topic, "-i", "10.0.0.1,10.0.0.2")
    assert "10.0.0.1" in allocated
    assert "10.0.0.2" in allocated
    cluster.send(topic=topic, body="skipped")
    cluster.wait_stored(topic, 1)
    producers = ("-g", "producers_json", "-t", topic)
    cluster.wait_until(
        lambda: "127.0.0.1" in _printed(cluster, "producerConnection", *producers),
        "the producer in the list",
        within_s=PATIENCE_S,
    )
    cluster.admin("updateSubGroup", "-b", cluster.broker_address, "-g", group)
    cluster.admin("skipAccumulatedMessage", "-g", group, "-t", topic)
    cluster.wait_committed(group, topic, 1)
    cluster.admin("deleteSubGroup", "-c", cluster.cluster_name, "-g", group)
    cluster.admin("deleteTopic", "-c", cluster.cluster_name, "-t", topic)
    assert cluster.route(topic) is None
    assert topic not in cluster.admin("topicList").split()


def test_brokers_are_inspected(cluster: Cluster) -> None:
    status = cluster.admin("brokerStatus", "-b", cluster.broker_address)
    values = {line.split(":")[0].strip() for line in status.splitlines() if ":" in line}
    assert values >= {"bootTimestamp", "brokerVersionDesc", "commitLogMaxOffset", "getTotalTps", "runtime"}
    cluster.admin("resetMasterFlushOffset", "-b", cluster.broker_address, "-o", "0")
    # clusterRT never ends: it runs in its own process, which is ended after the first round.
    options = ("-n", cluster.namesrv, "-a", "2", "-s", "10")
    home = cluster.home / cluster.fresh_name("cluster_rt")
    command = java(MQ_ADMIN, "clusterRT", *options, home=home)
    with Process("cluster-rt", command, directory=home) as measured:
        row = measured.wait_line(cluster.broker_name, within_s=PATIENCE_S).split()
    assert row[:2] == [cluster.cluster_name, cluster.broker_name]
    assert row[3:] == ["2", "0"], row
