"""The admin commands about topics, groups, messages and statistics, against a `libra up`."""

import asyncio
import contextlib
import io
import json
import time
from pathlib import Path

import pytest

from libramq.cli.admin.frame import rows
from libramq.cli.main import run
from libramq.client import Producer, PushConsumer
from libramq.message.message import Message, MessageExt
from libramq.message.trace import Pub, SubAfter, SubBefore, encode_trace
from tests.cli.commands import SECONDS_MAX, Result, one_line


def ask(up, *arguments: str):
    done = libra("admin", *arguments, "-n", up.namesrv, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def libra(*arguments: str) -> Result:
    """Run a command in this process: this module runs too many to start a process for each."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return Result(code, out.getvalue(), err.getvalue())


def broker(up) -> str:
    return f"127.0.0.1:{up.broker_port}"


def made(up, topic: str, *more: str) -> str:
    ask(up, "updateTopic", "-b", broker(up), "-t", topic, "-r", "1", "-w", "1", *more)
    return topic


def sent(up, topic: str, *messages: Message):
    async def send():
        async with Producer(group="surface", namesrv=up.namesrv) as producer:
            return [await producer.send(message) for message in messages]

    return asyncio.run(send())


def test_the_permission_of_a_topic_is_changed(up):
    topic = made(up, "SurfacePerm")
    rows = ask(up, "updateTopicPerm", "-b", broker(up), "-t", topic, "-p", "4")
    assert rows == [{"broker": broker(up), "from": 6, "to": 4}]
    assert [queues["perm"] for queues in ask(up, "topicRoute", "-t", topic)["queueDatas"]] == [4]
    refused = libra("admin", "updateTopicPerm", "-n", up.namesrv, "-b", broker(up), "-t", topic, "-p", "3")
    assert "3 is not a permission" in one_line(refused)


def test_topics_and_groups_are_made_from_files(up, tmp_path: Path):
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps([{"topicName": "SurfaceList", "readQueueNums": 3, "writeQueueNums": 3}]))
    made_now = ask(up, "updateTopicList", "-b", broker(up), "-f", str(topics))
    assert made_now == {"topics": ["SurfaceList"]}
    assert ask(up, "topicRoute", "-t", "SurfaceList")["queueDatas"][0]["readQueueNums"] == 3
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([{"groupName": "surface-list", "retryMaxTimes": 3}]))
    ask(up, "updateSubGroupList", "-b", broker(up), "-f", str(groups))
    assert ask(up, "getConsumerConfig", "-g", "surface-list")[broker(up)]["retryMaxTimes"] == 3
    missing = libra("admin", "updateTopicList", "-n", up.namesrv, "-b", broker(up), "-f", "/nowhere.json")
    assert "cannot read /nowhere.json" in one_line(missing)


def test_a_group_keeps_unnamed_settings(up):
    ask(up, "updateSubGroup", "-b", broker(up), "-g", "surface", "-r", "5", "-s", "false")
    changed = ask(up, "updateSubGroup", "-b", broker(up), "-g", "surface", "-q", "2")
    kept = [changed[name] for name in ("retryMaxTimes", "retryQueueNums", "consumeEnable")]
    assert kept == [5, 2, False]
    assert "no broker has a configuration" in one_line(
        libra("admin", "getConsumerConfig", "-n", up.namesrv, "-g", "surface-none")
    )


def test_an_ordered_topic_has_its_brokers_at_the_name_servers(up):
    topic = made(up, "SurfaceOrdered", "-o", "true")
    shown = ask(up, "updateOrderConf", "-t", topic, "-m", "get")
    assert shown == {"topic": topic, "orderConf": "broker-a:1"}
    ask(up, "updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:4;broker-b:4")
    assert ask(up, "updateOrderConf", "-t", topic, "-m", "get")["orderConf"] == "broker-a:4;broker-b:4"
    made(up, topic, "-o", "true")
    assert ask(up, "updateOrderConf", "-t", topic, "-m", "get")["orderConf"] == "broker-b:4;broker-a:1"
    ask(up, "updateOrderConf", "-t", topic, "-m", "delete")
    gone = libra("admin", "updateOrderConf", "-n", up.namesrv, "-t", topic, "-m", "get")
    assert "No config item" in one_line(gone)
    wrong = ("updateOrderConf", "-n", up.namesrv, "-t", topic, "-m", "put", "-v", "broker-a")
    assert "'broker-a' in the order configuration is not BROKER:QUEUES" in one_line(libra("admin", *wrong))


def test_queues_are_divided_among_members_to_come(up):
    topic = made(up, "SurfaceAllocate", "-r", "3")
    assert ask(up, "allocateMQ", "-t", topic, "-i", "alice,bob") == {
        "alice": ["broker-a:0", "broker-a:1"],
        "bob": ["broker-a:2"],
    }
    assert ask(up, "topicClusterList", "-t", topic) == ["DefaultCluster"]


def test_messages_are_found_by_ids_keys_and_offsets(up):
    topic = made(up, "SurfaceFound")
    first, second = sent(
        up,
        topic,
        Message(topic, b"one", tags="A", keys=("k1",)),
        Message(topic, b"\xff", tags="B", keys=("k2",)),
    )
    for arguments in (
        ("queryMsgById", "-i", first.offset_message_id),
        ("queryMsgById", "-i", first.message_id),
        ("queryMsgByUniqueKey", "-i", first.message_id),
        ("queryMsgByKey", "-k", "k1"),
        ("queryMsgByOffset", "-b", "broker-a", "-i", "0", "-o", "0"),
    ):
        (row,) = ask(up, *arguments, "-t", topic)
        assert (row["messageId"], row["offsetMessageId"]) == (first.message_id, first.offset_message_id)
        assert (row["broker"], row["queueId"], row["queueOffset"]) == ("broker-a", 0, 0)
        assert (row["body"], row["tags"], row["keys"]) == ("one", "A", ["k1"])
    both = ask(up, "queryMsgById", "-t", topic, "-i", f"{first.message_id},{second.message_id}")
    assert [row.get("bodyBase64") for row in both] == [None, "/w=="]
    assert ask(up, "queryMsgByKey", "-t", topic, "-k", "k3") == []
    none = libra("admin", "queryMsgByUniqueKey", "-n", up.namesrv, "-t", topic, "-i", "F" * 32)
    assert f"no message {'F' * 32} in this topic" in one_line(none)
    none = libra(
        "admin", "queryMsgByOffset", "-n", up.namesrv, "-t", topic, "-b", "broker-a", "-i", "0", "-o", "7"
    )
    assert f"the queue {topic}@broker-a:0 has no message at offset 7" in one_line(none)


def test_messages_are_printed_and_counted(up):
    topic = made(up, "SurfacePrinted")
    sent(up, topic, *(Message(topic, f"{number}".encode(), tags="AB"[number % 2]) for number in range(5)))
    lines = libra("admin", "printMsg", "-n", up.namesrv, "-t", topic, "--json").out.splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["0", "1", "2", "3", "4"]
    of_tag = ("printMsg", "-n", up.namesrv, "-t", topic, "-s", "B", "-d", "false", "--json")
    rows = [json.loads(line) for line in libra("admin", *of_tag).out.splitlines()]
    assert [row["queueOffset"] for row in rows] == [1, 3]
    assert not any("body" in row for row in rows)
    in_queue = ("printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", "0")
    counts = ask(up, *in_queue, "-f", "true")
    assert counts == [{"tag": "A", "count": 3}, {"tag": "B", "count": 2}]
    assert "name what to do" in one_line(libra("admin", *in_queue, "-n", up.namesrv))
    one = ("consumeMessage", "-n", up.namesrv, "-t", topic, "-b", "broker-a", "-i", "0", "-o", "2", "-c", "2")
    assert [line.split()[-1] for line in libra("admin", *one).out.splitlines()] == ["2", "3"]
    later = str(time.time_ns() // 1_000_000 + 3_600_000)
    assert libra("admin", "printMsg", "-n", up.namesrv, "-t", topic, "-b", later).out == ""
    units = ask(up, "queryCq", "-t", topic, "-q", "0", "-i", "1", "-c", "2")
    assert (units["maxQueueIndex"], units["minQueueIndex"], len(units["queueData"])) == (5, 0, 2)


def test_who_sent_and_who_consumed_a_message(up):
    traces = made(up, "SurfaceTraces")
    id_ = "7F00000100002A9F0000000000000A01"
    records = (
        Pub(1_000, "r", "producers", "T", id_, None, "k", "h", 4, 7, 0, None, True, "10.0.0.1"),
        SubBefore(2_000, "r", "readers", "q1", id_, 0, "k"),
        SubAfter("q1", id_, 9, False, "k", 1, 3_000, "readers"),
        SubAfter("q2", "another", 9, True, "k", 1, 3_000, "readers"),
    )
    sent(up, traces, *(Message(traces, encode_trace([record]), keys=(id_,)) for record in records))
    rows = ask(up, "queryMsgTraceById", "-i", id_, "-t", traces)
    shown = [[row[name] for name in ("type", "group", "atTimestamp", "costMs", "status")] for row in rows]
    assert shown == [["Pub", "producers", 1_000, 7, "success"], ["Sub", "readers", 3_000, 9, "failed"]]
    assert "no trace of none" in one_line(
        libra("admin", "queryMsgTraceById", "-n", up.namesrv, "-i", "none", "-t", traces)
    )


async def test_a_connected_group_and_its_progress(up):
    topic = await asyncio.to_thread(made, up, "SurfaceGroup")
    read: asyncio.Queue[MessageExt] = asyncio.Queue()
    reader = PushConsumer(group="surface-readers", namesrv=up.namesrv, consume_from="earliest")
    reader.subscribe(topic, "*", read.put)
    async with Producer(group="surface-writers", namesrv=up.namesrv) as producer, reader:
        result = await producer.send(Message(topic, b"x"))
        await asyncio.wait_for(read.get(), SECONDS_MAX)

        async def shown(*arguments: str):
            return await asyncio.to_thread(ask, up, *arguments)

        # A producer that sent its first message has not sent its heartbeat yet.
        while "surface-writers" not in {row["group"] for row in await shown("producer", "-b", broker(up))}:
            pass
        (connected,) = await shown("producerConnection", "-g", "surface-writers", "-t", topic)
        assert connected["clientId"] == producer.client_id
        status = await shown("consumerStatus", "-g", "surface-readers")
        assert list(status) == [reader.client_id]
        assert topic in {each["topic"] for each in status[reader.client_id]["subscriptionSet"]}
        pushed = ("queryMsgById", "-t", topic, "-i", result.message_id, "-g", "surface-readers")
        assert (await shown(*pushed, "-d", reader.client_id))["consumeResult"] == "CR_SUCCESS"
    await shown("updateSubGroup", "-b", broker(up), "-g", "surface-copies")
    groups = ("-s", "surface-readers", "-d", "surface-copies")
    await shown("cloneGroupOffset", *groups, "-t", topic, "-o", "true")
    progress = await shown("brokerConsumeStats", "-b", broker(up))
    offsets = {row["group"]: row["consumerOffset"] for row in progress if row["topic"] == topic}
    assert offsets == {"surface-readers": 1, "surface-copies": 1}
    rows = await shown("statsAll", "-t", topic)
    assert {(row["group"], row["accumulation"]) for row in rows} == {
        ("surface-readers", 0),
        ("surface-copies", 0),
    }
    await asyncio.to_thread(sent, up, topic, Message(topic, b"y"))
    (skipped,) = await shown("skipAccumulatedMessage", "-g", "surface-copies", "-t", topic)
    assert skipped["offset"] == 2
    mode = await shown("setConsumeMode", "-b", broker(up), "-t", topic, "-g", "surface-copies", "-m", "POP")
    assert mode["mode"] == "POP"


def test_a_cluster_is_exported(up, tmp_path: Path):
    topic = made(up, "SurfaceExported")
    at = ("-c", "DefaultCluster", "-f", str(tmp_path))
    ask(up, "exportMetadata", *at)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["topicConfigTable"][topic]["writeQueueNums"] == 1
    assert not {"TBW102", "DefaultCluster", "broker-a"} & set(metadata["topicConfigTable"])
    ask(up, "exportMetadata", *at, "-t")
    assert set(json.loads((tmp_path / "topic.json").read_text())) == {"topicConfigTable", "exportTime"}
    ask(up, "exportConfigs", *at)
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    assert configs["brokerConfigs"]["broker-a"]["brokerClusterName"] == "DefaultCluster"
    ask(up, "exportMetrics", *at)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["evaluateReport"]["broker-a"]["runtimeQuota"]["topicSize"] >= 1
    assert set(metrics["totalData"]["totalTps"]) == {
        "totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["brokerStatus", "getBrokerConfig"])
def test_masters_of_a_cluster_are_shown_by_address(up, command):
    assert list(ask(up, command, "-c", "DefaultCluster")) == [broker(up)]
    assert "name the brokers" in one_line(libra("admin", command, "-n", up.namesrv, "--json"))


def test_a_master_and_its_slaves(up):
    status = ask(up, "haStatus", "-b", broker(up))
    assert (status["master"], status["haConnectionInfo"]) == (True, [])


def test_a_message_is_sent_to_the_queue_that_is_named(up):
    topic = made(up, "SurfaceSend")
    route = ask(up, "topicRoute", "-t", topic)
    name = route["brokerDatas"][0]["brokerName"]
    (row,) = ask(
        up, "sendMessage", "-t", topic, "-p", "hello", "-k", "k1 k2", "-c", "A", "-b", name, "-i", "0"
    )
    assert (row["broker"], row["queueId"], row["status"]) == (name, 0, "SEND_OK")
    (found,) = ask(up, "queryMsgById", "-t", topic, "-i", row["messageId"])
    assert (found["body"], found["keys"], found["tags"]) == ("hello", ["k1", "k2"], "A")
    refused = libra("admin", "sendMessage", "-n", up.namesrv, "-t", topic, "-p", "x", "-i", "0")
    assert "name both the broker (-b) and its queue (-i)" in one_line(refused)


def test_a_message_is_sent_again(up):
    """The copy keeps tags, keys, flag and user properties, and gets a new id."""
    topic = made(up, "SurfaceResend")
    message = Message(topic, b"once", tags="A", keys="k1", properties={"colour": "red"}, flag=7)
    (before,) = sent(up, topic, message)
    (row,) = ask(up, "queryMsgById", "-t", topic, "-i", before.message_id, "-s", "true")
    assert row["messageId"] != before.message_id
    (found,) = ask(up, "queryMsgById", "-t", topic, "-i", row["messageId"])
    assert (found["body"], found["tags"], found["keys"], found["flag"]) == ("once", "A", ["k1"], 7)
    assert found["properties"]["colour"] == "red"
    none = libra("admin", "queryMsgById", "-n", up.namesrv, "-t", topic, "-i", "0" * 32, "-s", "true")
    assert "no message" in one_line(none)


def test_how_long_sends_take(up):
    topic = made(up, "SurfaceTimes")
    rows = ask(up, "checkMsgSendRT", "-t", topic, "-a", "3", "-s", "10")
    assert [row["status"] for row in rows] == ["SEND_OK"] * 3
    assert all(row["ms"] > 0 for row in rows)
    (cluster,) = ask(up, "clusterRT", "-a", "2")
    assert (cluster["stored"], cluster["failed"]) == (2, 0)
    assert len(ask(up, "sendMsgStatus", "-b", cluster["broker"], "-c", "2", "-s", "10")) == 2
    shown = libra("admin", "checkMsgSendRT", "-n", up.namesrv, "-t", topic, "-a", "2")
    assert "Avg RT: " in shown.out
    refused = libra("admin", "clusterRT", "-n", up.namesrv, "-c", "nowhere")
    assert "no cluster nowhere" in one_line(refused)


def test_units_of_topics(up):
    made(up, "SurfaceUnit", "-u", "true", "-s", "true")
    assert ask(up, "topicRoute", "-t", "SurfaceUnit")["queueDatas"][0]["topicSysFlag"] == 3


def test_queues_with_unread_messages_are_abandoned_on_request_only(up):
    topic = made(up, "Shrinking", "-r", "2", "-w", "2")
    sent(up, topic, *(Message(topic, b"m") for _ in range(4)))
    ask(up, "updateSubGroup", "-b", broker(up), "-g", "slow")
    ask(up, "resetOffsetByTime", "-g", "slow", "-t", topic, "-s", "0")
    fewer = ("updateTopic", "-b", broker(up), "-t", topic, "-r", "1", "-w", "1")
    refused = libra("admin", *fewer, "-n", up.namesrv)
    assert refused.code != 0
    assert "groups have not read: slow 2" in refused.err
    ask(up, *fewer, "--abandon-unread")
    assert ask(up, "topicRoute", "-t", topic)["queueDatas"][0]["readQueueNums"] == 1


def test_a_table_has_a_dash_for_none(capsys):
    """A message without tags used to show the tags None."""
    rows([{"tags": None, "queueOffset": 0, "storeTimestamp": 0}], "tags, queueOffset, storeTimestamp").show(
        json=False
    )
    assert capsys.readouterr().out.split()[-3:] == ["–", "0", "–"]
