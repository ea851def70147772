"""The tools against a `libra up`: their output for people and for programs."""

import json
import os
import signal

import pytest

from libramq.cli.options import timestamp_of
from libramq.errors import InvalidParameter, RouteNotFound
from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.sync import Admin, Consumer, Producer
from tests.cli.commands import SECONDS_MAX, end, libra, one_line, start


@pytest.fixture
def topic(up, request) -> str:
    name = "T_" + request.node.name.replace("[", "_").strip("]")
    created = libra(
        "admin", "updateTopic", "-n", up.namesrv, "-t", name, "-c", "DefaultCluster", "-r", "3", "-w", "3"
    )
    assert created.code == 0, created
    assert f"create topic to 127.0.0.1:{up.broker_port} success." in created.out
    return name


def ask(up, *arguments: str):
    done = libra("admin", *arguments, "-n", up.namesrv, "--json")
    assert done.code == 0, done
    return json.loads(done.out)


def test_one_message_is_sent_and_consumed(up, topic):
    sent = libra("send", "-n", up.namesrv, "-t", topic, "--tags", "red", "--keys", "k1 k2", "héllo")
    assert sent.code == 0, sent
    assert f"to {topic}@broker-a:" in sent.out
    shown = libra("tail", "-n", up.namesrv, "-t", topic, "--from", "earliest", "--count", "1")
    assert shown.out.rstrip().endswith("[red] k1,k2 héllo")
    read = libra("tail", "-n", up.namesrv, "-t", topic, "--from", "earliest", "--count", "1", "--json")
    message = json.loads(read.out)
    assert (message["topic"], message["body"], message["properties"]["TAGS"]) == (topic, "héllo", "red")
    assert message["messageId"] in sent.out


def test_every_line_is_a_message(up, topic):
    lines = [f"line {number}" for number in range(1000)]
    sent = libra(
        "send", "-t", topic, stdin="\n".join(lines) + "\n\r\n\nlast, without an end", namesrv=up.namesrv
    )
    assert sent.out == f"sent 1001 messages to {topic}\n"
    read = libra("tail", "-t", topic, "--from", "earliest", "--count", "1001", "--json", namesrv=up.namesrv)
    bodies = [json.loads(line)["body"] for line in read.out.splitlines()]
    assert sorted(bodies) == sorted([*lines, "last, without an end"])


def test_a_body_is_sent_byte_for_byte(up, topic):
    """A body need not be UTF-8; it may have another encoding."""
    sent = libra("send", "-n", up.namesrv, "-t", topic, os.fsdecode(b"caf\xe9"))
    assert sent.err == ""
    shown = libra("tail", "-n", up.namesrv, "-t", topic, "--from", "earliest", "--count", "1")
    assert shown.out.endswith(" caf\\xe9\n")


def test_results_of_a_send_are_printed_as_json(up, topic):
    sent = libra("send", "-n", up.namesrv, "-t", topic, "--json", stdin="a\nb\n")
    rows = [json.loads(line) for line in sent.out.splitlines()]
    assert [row["status"] for row in rows] == ["SEND_OK", "SEND_OK"]
    assert {row["topic"] for row in rows} == {topic}


def test_an_overlong_line_is_reported_with_the_number_sent_before(up, topic):
    sent = libra("send", "-n", up.namesrv, "-t", topic, stdin="short\n" + "x" * (4 * 1024 * 1024 + 1) + "\n")
    assert "a body has between 1 and 4194304 bytes, not 4194305" in one_line(sent)
    read = libra("tail", "-n", up.namesrv, "-t", topic, "--from", "earliest", "--count", "1")
    assert read.out.rstrip().endswith("short")


def test_following_ends_quietly(up, topic):
    """An interrupt ends `libra tail` without a message, and so does a reader that closes the pipe."""
    assert libra("send", "-n", up.namesrv, "-t", topic, "first").code == 0
    process = start(["tail", "-n", up.namesrv, "-t", topic, "--from", "earliest"])
    try:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip().endswith("first")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS_MAX) == ("", "")
        assert process.returncode == 130
    finally:
        end(process)
    process = start(["tail", "-n", up.namesrv, "-t", topic, "--from", "earliest"])
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert libra("send", "-n", up.namesrv, "-t", topic, "second").code == 0
        assert process.wait(timeout=SECONDS_MAX) in (0, 1)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        end(process)


def test_topics_are_listed(up, topic):
    assert topic in ask(up, "topicList")
    row = next(row for row in ask(up, "topicList", "-c") if row["topic"] == topic)
    assert row == {"cluster": "DefaultCluster", "topic": topic, "groups": []}
    assert topic in libra("admin", "topicList", "-n", up.namesrv).out.splitlines()


def test_a_topics_route_is_printed(up, topic):
    route = ask(up, "topicRoute", "-t", topic)
    assert route["queueDatas"][0]["writeQueueNums"] == 3
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{up.broker_port}"}
    assert f"0=127.0.0.1:{up.broker_port}" in libra("admin", "topicRoute", "-n", up.namesrv, "-t", topic).out


def test_a_topics_status_is_printed_and_it_can_be_deleted(up, topic):
    libra("send", "-n", up.namesrv, "-t", topic, "one")
    rows = ask(up, "topicStatus", "-t", topic)
    assert [(row["broker"], row["queueId"], row["minOffset"]) for row in rows] == [
        ("broker-a", queue, 0) for queue in range(3)
    ]
    ((last,),) = [[row["lastUpdateTimestamp"]] for row in rows if row["maxOffset"] == 1]
    assert last > 0
    wrong = one_line(libra("admin", "deleteTopic", "-n", up.namesrv, "-t", topic, "-c", "Nope"))
    assert wrong == f"the topic {topic} is not in cluster Nope; it is in: DefaultCluster"
    done = libra("admin", "deleteTopic", "-n", up.namesrv, "-t", topic, "-c", "DefaultCluster")
    assert done.out.splitlines() == [
        f"delete topic [{topic}] from cluster [DefaultCluster] success.",
        f"delete topic [{topic}] from NameServer success.",
    ]
    assert topic not in ask(up, "topicList")


@pytest.mark.parametrize("command", [("admin", "topicList"), ("send", "-t", "T", "x"), ("tail", "-t", "T")])
def test_a_brokers_address_is_not_taken_for_a_name_servers(up, command):
    broker = f"127.0.0.1:{up.broker_port}"
    said = one_line(libra(*command, "-n", broker))
    assert f"{broker} is the address of a broker, not of a name server" in said


def test_the_cluster_is_listed(up):
    (row,) = [row for row in ask(up, "clusterList") if row["cluster"] == "DefaultCluster"]
    assert (row["broker"], row["id"], row["address"]) == ("broker-a", 0, f"127.0.0.1:{up.broker_port}")
    assert row["active"] is True


def test_a_benchmark_runs_and_its_groups_progress_is_shown(up, topic):
    produced = libra(
        "bench", "produce", "-n", up.namesrv, "-t", topic, "--count", "500", "--size", "100", "--json"
    )
    report = json.loads(produced.out)
    assert (report["messages"], report["mode"]) == (500, "waiting")
    assert 0 < report["latencyMs"]["p50"] <= report["latencyMs"]["max"]
    batched = libra("bench", "produce", "-n", up.namesrv, "-t", topic, "--count", "500", "--batched")
    headings, _, cells = [line.split() for line in batched.out.splitlines() if line.strip()]
    assert dict(zip(headings, cells, strict=True))["messages"] == "500"
    group = f"G_{topic}"
    consumed = libra("bench", "consume", "-n", up.namesrv, "-t", topic, "-g", group, "--json")
    assert json.loads(consumed.out)["messages"] == 1000, consumed
    progress = ask(up, "consumerProgress", "-g", group)
    assert sum(row["consumerOffset"] for row in progress["queues"] if row["topic"] == topic) == 1000
    assert progress["diffTotal"] == 0
    assert group in [row["group"] for row in ask(up, "consumerProgress")]
    assert "0 behind" in libra("admin", "consumerProgress", "-n", up.namesrv, "-g", group).out
    # Its only member has left.
    gone = one_line(libra("admin", "consumerConnection", "-n", up.namesrv, "-g", group))
    assert "206 CONSUMER_NOT_ONLINE" in gone


def test_a_benchmark_warms_up_and_its_bodies_do_not_compress(up, topic):
    """They used to consist of x's: from 4 KiB on, producers compressed them to nothing."""
    arguments = ("--count", "5", "--warm-up", "3", "--size", "10000", "--json")
    report = json.loads(libra("bench", "produce", "-n", up.namesrv, "-t", topic, *arguments).out)
    assert report["messages"] == 5
    consumer = Consumer(group=f"G_{topic}", namesrv=up.namesrv, consume_from="earliest")
    consumer.subscribe(topic)
    found = []
    with consumer:
        while len(found) < 8:
            found += [one for lot in consumer.getmany(timeout_ms=5_000).values() for one in lot]
    assert {len(message.body) for message in found} == {10_000}
    assert min(message.store_size for message in found) > 9_000


def test_the_latency_from_send_to_handler_is_measured(up, topic):
    """A second run skips messages left in the topic by the first one; the rate excludes the warm-up."""
    for warm_up in ("0.1", "2"):
        arguments = ("--rate", "100", "--seconds", "0.5", "--warm-up", warm_up, "--json")
        report = json.loads(libra("bench", "latency", "-n", up.namesrv, "-t", topic, *arguments).out)
        assert report["messages"] == 50
        assert report["seconds"] < 2
        assert 0 < report["latencyMs"]["p50"] <= report["latencyMs"]["p99"] <= report["latencyMs"]["max"]
    libra("bench", "consume", "-n", up.namesrv, "-t", topic)
    # Its groups used to remain, and had the problem no_members as soon as a message arrived in the topic.
    groups = json.loads(libra("groups", "--json", "-n", up.namesrv).out)
    assert not [row["group"] for row in groups if row["group"].startswith("LIBRA_BENCH_")]


def test_offsets_are_reset_by_time(up, topic):
    libra("bench", "produce", "-n", up.namesrv, "-t", topic, "--count", "30", "--size", "10")
    group = f"G_{topic}"
    libra("bench", "consume", "-n", up.namesrv, "-t", topic, "-g", group)
    assert ask(up, "consumerProgress", "-g", group)["diffTotal"] == 0
    rows = ask(up, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert rows == [{"broker": "broker-a", "queueId": queue, "offset": 0} for queue in range(3)]
    assert ask(up, "consumerProgress", "-g", group)["diffTotal"] == 30
    forwards = ("resetOffsetByTime", "-g", group, "-t", topic, "-s", "now")
    ask(up, *forwards, "-f", "false")
    assert ask(up, "consumerProgress", "-g", group)["diffTotal"] == 30
    shown = libra("admin", *forwards, "-n", up.namesrv).out
    assert f"group[{group}], topic[{topic}], force[true], timestamp(string)[now]" in shown
    assert ask(up, "consumerProgress", "-g", group)["diffTotal"] == 0


def test_the_offset_of_one_queue_is_reset(up, topic):
    with Producer(namesrv=up.namesrv) as producer:
        for number in range(30):
            producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", number % 3))
    group = f"G_{topic}"
    libra("bench", "consume", "-n", up.namesrv, "-t", topic, "-g", group)
    ends = {row["queueId"]: row["brokerOffset"] for row in ask(up, "consumerProgress", "-g", group)["queues"]}
    one = ("resetOffsetByTime", "-g", group, "-t", topic, "-q", "1")
    assert ask(up, *one, "-o", "4") == [{"broker": "broker-a", "queueId": 1, "offset": 4}]
    assert behind(up, group) == {0: 0, 1: ends[1] - 4, 2: 0}
    by_time = libra("admin", *one, "-n", up.namesrv, "-b", f"127.0.0.1:{up.broker_port}", "-s", "0")
    assert by_time.out == "reset consumer offset to 0\n"
    queue = MessageQueue(topic, "broker-a", 2)
    with Admin(namesrv=up.namesrv) as admin:
        assert admin.reset_queue(group, queue, 3) == 3
        assert admin.reset_queue(group, queue, timestamp_ms=0) == 0
        assert admin.reset_queue(group, queue, 1_000) == admin.reset_queue(group, queue) == ends[2]
        with pytest.raises(RouteNotFound, match="is not at broker broker-z; it is at: broker-a"):
            admin.reset_queue(group, MessageQueue(topic, "broker-z", 0), 1)
        with pytest.raises(InvalidParameter, match="has 3 queues, no 3"):
            admin.reset_queue(group, MessageQueue(topic, "broker-a", 3), 1)
    assert behind(up, group) == {0: 0, 1: ends[1], 2: 0}


def behind(up, group: str) -> dict[int, int]:
    return {row["queueId"]: row["diff"] for row in ask(up, "consumerProgress", "-g", group)["queues"]}


def test_a_group_is_deleted_with_its_offsets_retries_and_dead_letters(up, topic):
    address = f"127.0.0.1:{up.broker_port}"
    libra("bench", "produce", "-n", up.namesrv, "-t", topic, "--count", "3", "--size", "10")
    group = f"G_{topic}"
    libra("bench", "consume", "-n", up.namesrv, "-t", topic, "-g", group)
    assert f"%RETRY%{group}" in ask(up, "topicList")
    nowhere = libra("admin", "deleteSubGroup", "-n", up.namesrv, "-g", group)
    assert one_line(nowhere).startswith("name the brokers: -c CLUSTER")
    done = libra("admin", "deleteSubGroup", "-n", up.namesrv, "-g", group, "-c", "DefaultCluster", "-r")
    said = f"delete subscription group [{group}] from broker [{address}] in cluster [DefaultCluster] success."
    assert done.out == f"{said}\n"
    assert f"%RETRY%{group}" not in ask(up, "topicList")
    with Admin(namesrv=up.namesrv) as admin:
        with pytest.raises(RouteNotFound, match="no broker knows group"):
            admin.consume_stats(group)
        assert admin.delete_group(group, offsets=True) == [address]
    assert ask(up, "deleteSubGroup", "-g", "Other", "-b", address) == {"group": "Other", "brokers": [address]}


def test_a_time_may_lack_its_milliseconds():
    """The guide writes times this way; mqadmin requires milliseconds."""
    moment = timestamp_of("2026-05-01#08:00:00")
    assert timestamp_of("2026-05-01#08:00:00:000") == moment
    assert timestamp_of("2026-05-01#08:00:00:250") == moment + 250


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-s", "yesterday"], "'yesterday' is not a time: now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS"),
        (["-s", "now", "-f", "perhaps"], "-f is true or false, not 'perhaps'"),
        (["-s", "now", "-o", "3"], "an offset belongs to one queue: name the queue with -q"),
        (["-q", "1"], "name the target: -s TIME, or -q QUEUE -o OFFSET"),
    ],
)
def test_an_invalid_reset_is_refused(up, more, said):
    done = libra("admin", "resetOffsetByTime", "-n", up.namesrv, "-g", "g", "-t", "T", *more)
    assert one_line(done) == said


def test_missing_topics_and_groups_are_named(up):
    assert one_line(libra("admin", "topicRoute", "-n", up.namesrv, "-t", "Nope")) == (
        f"no broker has the topic Nope; create it "
        f"(libra admin updateTopic -n {up.namesrv} -c CLUSTER -t Nope) or check its name"
    )
    assert "no group nobody at" in one_line(
        libra("admin", "consumerProgress", "-n", up.namesrv, "-g", "nobody")
    )
    missing = one_line(libra("admin", "updateTopic", "-n", up.namesrv, "-t", "T", "-c", "Nope"))
    assert missing.startswith("no cluster Nope at name server")
    assert "DefaultCluster" in missing
    assert "Nope" in one_line(libra("tail", "-n", up.namesrv, "-t", "Nope"))


def test_the_second_name_server_is_used_when_the_first_is_away(up):
    done = libra("admin", "topicList", "-n", f"127.0.0.1:1;{up.namesrv}", "--json")
    assert "TBW102" in json.loads(done.out)


@pytest.mark.parametrize("command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"])
def test_brokers_free_their_disks(up, command):
    address = f"127.0.0.1:{up.broker_port}"
    assert ask(up, command) == ask(up, command, "-b", address) == {"brokers": [address]}
    done = libra("admin", command, "-n", up.namesrv, "-c", "DefaultCluster")
    assert (done.code, done.out) == (0, f"success at broker [{address}]\n")
    both = one_line(libra("admin", command, "-n", up.namesrv, "-c", "DefaultCluster", "-b", address))
    assert "neither for all brokers" in both
