"""`libra send` and `libra tail`: the parts sent with each message, and which messages are shown, and how."""

import json
import time

import pytest

from libramq.testing import Broker
from tests.cli.commands import libra, one_line


@pytest.fixture(scope="module")
def namesrv():
    with Broker(enable_property_filter=True) as broker:
        yield broker.namesrv


def create(namesrv, topic, queues=2):
    counts = ["-r", str(queues), "-w", str(queues)]
    assert (
        libra("admin", "updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", topic, *counts).code == 0
    )


def send(namesrv, topic, *arguments, stdin=""):
    done = libra("send", "-n", namesrv, "-t", topic, *arguments, stdin=stdin)
    assert (done.code, done.err) == (0, "")
    return done.out


def tail(namesrv, topic, *arguments):
    """Return the lines of all messages stored now."""
    done = libra("tail", "-n", namesrv, "-t", topic, "--exit", *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


def test_a_message_is_sent_with_all_it_may_have(namesrv):
    create(namesrv, "Sent")
    send(
        namesrv,
        "Sent",
        "x",
        "-p",
        "colour=red",
        "-p",
        "n=1=2",
        "--tags",
        "A",
        "--keys",
        "k1 k2",
        "--queue",
        "1",
    )
    (line,) = tail(namesrv, "Sent", "--from", "earliest", "--json")
    row = json.loads(line)
    assert (row["queueId"], row["body"]) == (1, "x")
    wanted = {"colour": "red", "n": "1=2", "TAGS": "A", "KEYS": "k1 k2"}
    assert wanted.items() <= row["properties"].items()


def test_a_delay_and_a_time_hold_a_message_back(namesrv):
    """Both were sent before the last one, but are not stored in their topic yet."""
    create(namesrv, "Later", 1)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 3600))
    for body, when in (("delayed", ("--delay", "1h")), ("at", ("--at", at))):
        assert send(namesrv, "Later", body, *when).endswith(
            " to Later@broker-a:0, delivered when it is due\n"
        )
    send(namesrv, "Later", "now")
    assert tail(namesrv, "Later", "--from", "earliest", "--format", "{body}") == ["now"]


def test_lines_of_a_file_with_one_order_key_go_to_one_queue(namesrv, tmp_path):
    create(namesrv, "Ordered", 4)
    file = tmp_path / "lines"
    file.write_text("a\nb\n\nc\n")
    assert (
        send(namesrv, "Ordered", "-f", str(file), "--order-key", "customer-7")
        == "sent 3 messages to Ordered\n"
    )
    lines = tail(namesrv, "Ordered", "--from", "earliest", "--format", "{queue} {offset} {body}")
    (queue,) = {line.split()[0] for line in lines}
    assert lines == [f"{queue} 0 a", f"{queue} 1 b", f"{queue} 2 c"]


def test_tails_output_can_be_sent_elsewhere(namesrv):
    """This covers binary bodies, properties, tags and keys; the properties added by a broker are left out."""
    create(namesrv, "From", 1)
    create(namesrv, "To", 1)
    rows = [
        {"body": "one", "tags": "A", "keys": ["k"], "properties": {"colour": "rot"}},
        {"bodyBase64": "/wA=", "orderKey": "x"},
        {"body": {"cents": 220}},
    ]
    send(namesrv, "From", "--rows", stdin="\n".join(map(json.dumps, rows)))
    printed = tail(namesrv, "From", "--from", "earliest", "--json")
    send(namesrv, "To", "--rows", stdin="\n".join(printed))
    copies = [json.loads(line) for line in tail(namesrv, "To", "--from", "earliest", "--json")]
    by_body = {row.get("body", row.get("bodyBase64")): row for row in copies}
    assert by_body.keys() == {"one", "/wA=", '{"cents": 220}'}
    assert {"colour": "rot", "TAGS": "A", "KEYS": "k"}.items() <= by_body["one"]["properties"].items()
    ids = [{json.loads(line)["messageId"] for line in lines} for lines in (printed, map(json.dumps, copies))]
    assert not ids[0] & ids[1]


def test_tail_selects_by_tags_sql_queue_offset_and_time(namesrv):
    create(namesrv, "Chosen")
    for number in range(4):
        tag = "AB"[number % 2]
        send(namesrv, "Chosen", str(number), "--tags", tag, "-p", f"n={number}", "--queue", str(number // 2))

    def bodies(*arguments):
        return tail(namesrv, "Chosen", *arguments, "--format", "{body}")

    assert bodies("--from", "earliest") == ["0", "1", "2", "3"]
    assert bodies("--from", "earliest", "--tags", "B || C") == ["1", "3"]
    assert bodies("--from", "earliest", "--sql", "n > 1") == ["2", "3"]
    assert bodies("--from", "earliest", "--queue", "broker-a:1") == ["2", "3"]
    assert sorted(bodies("--offset", "1")) == ["1", "3"]
    assert bodies("--from", "1h") == ["0", "1", "2", "3"]
    assert bodies("--from", "1767010112345") == ["0", "1", "2", "3"]  # Not a date in the year 1767.
    assert bodies("--from", "2100-01-01") == bodies("--offset", "9") == bodies() == []
    (line,) = tail(
        namesrv, "Chosen", "--offset", "1", "--queue", "1", "--format", "{p.n}|{tags}|{stored}\\t{size}"
    )
    assert line.startswith("3|B|20")
    assert line.endswith("\t1")


def test_topics_are_listed_with_their_messages_and_the_queues_of_one(namesrv):
    """Brokers' own topics are left out."""
    create(namesrv, "Listed", 2)
    send(namesrv, "Listed", "x", "--queue", "1")
    send(namesrv, "Listed", "y", "--queue", "1")
    rows = {row["topic"]: row for row in json.loads(libra("topics", "-n", namesrv, "--json").out)}
    own = {"TBW102", "BenchmarkTest", "LIBRA_REBALANCE_EVENTS", "broker-a", "DefaultCluster"}
    assert not (own | {"DefaultCluster_REPLY_TOPIC"}) & rows.keys()
    assert (rows["Listed"]["brokers"], rows["Listed"]["queues"], rows["Listed"]["messages"]) == (1, 2, 2)
    every = {row["topic"] for row in json.loads(libra("topics", "-n", namesrv, "--all", "--json").out)}
    assert {"TBW102", "DefaultCluster_REPLY_TOPIC"} <= every
    lines = libra("topics", "-n", namesrv, "-t", "Listed").out.splitlines()
    queues = [line.split() for line in lines if line.strip()]
    assert queues[0] == ["broker", "queue", "first", "offset", "end", "messages", "last", "stored"]
    assert [line[:5] for line in queues[2:]] == [
        ["broker-a", "0", "0", "0", "0"], ["broker-a", "1", "0", "2", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["tail"], ["topics"], ["admin", "topicRoute"]], ids=lambda each: each[-1]
)
def test_a_topic_that_is_missing_has_its_nearest_name_in_the_error(namesrv, arguments):
    create(namesrv, "Shipments", 1)
    said = one_line(libra(*arguments, "-n", namesrv, "-t", "Shipmnets"))
    assert "Shipmnets (did you mean Shipments?)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["send", "-t", "T", "x", "-p", "colour"], "--property colour: write NAME=VALUE"),
        (
            ["send", "-t", "T", "x", "--delay", "soon"],
            "'soon' is not a duration: write a number with ms, s, m, h or d",
        ),
        (["send", "-t", "T", "x", "--delay", "1s", "--at", "now"], "name either --delay or --at"),
        (
            ["send", "-t", "T", "x", "--queue", "0", "--order-key", "k"],
            "name either --queue or --order-key",
        ),
        (["send", "-t", "T", "x", "--at", "9" * 20], f"'{'9' * 20}' is not a time from 1970 to 9999"),
        (["tail", "-t", "T", "--from", "99999999999d"], "'99999999999d' is not a time from 1970 to 9999"),
        (["send", "-t", "T", "x", "--rows"], "name either a message, or lines of a file"),
        (["send", "-t", "T", "-f", "/nowhere"], "--file /nowhere: No such file or directory"),
        (
            ["tail", "-t", "T", "--format", "{bdy}"],
            "--format has no field {bdy} (did you mean {body}?): there are",
        ),
        (["tail", "-t", "T", "--format", "{body"], "--format '{body' has an unmatched brace; a field looks"),
        (["tail", "-t", "T", "--format", "body}{"], "--format 'body}{' has an unmatched brace"),
        (["tail", "-t", "T", "--tags", "A", "--sql", "a = 1"], "name either --tags or --sql"),
        (["tail", "-t", "T", "--queue", "first"], "--queue first: a queue's number, or BROKER:NUMBER"),
        (["tail", "-t", "T", "--sql", "a >"], "column"),
    ],
)
def test_mistakes_are_named_in_one_line(arguments, said):
    assert said in one_line(libra(*arguments))


def test_unreadable_input_ends_the_command(namesrv, tmp_path):
    """A directory used to leave a traceback, and a command that waited forever."""
    done = libra("send", "-n", namesrv, "-t", "Wrong", "-f", str(tmp_path))
    assert "0 sent; then: line 1 cannot be read: Is a directory" in one_line(done)


def test_a_wrong_line_is_named_after_those_before_it_were_sent(namesrv):
    create(namesrv, "Wrong", 1)
    done = libra("send", "-n", namesrv, "-t", "Wrong", "--rows", stdin='{"body": "1"}\n{"bodie": "2"}\n')
    assert "1 sent; then: line 2: no field 'bodie' (did you mean body?)" in one_line(done)
    long = "x\n" + "y" * 5_000_000
    done = libra("send", "-n", namesrv, "-t", "Wrong", stdin=long)
    assert "1 sent; then: line 2: a body has between 1 and 4194304 bytes" in one_line(done)
    lone = '{"body": "\\ud800"}'
    assert "line 1: 'utf-8' codec" in one_line(
        libra("send", "-n", namesrv, "-t", "Wrong", "--rows", stdin=lone)
    )
    deep = "[" * 100_000
    assert "line 1: '[[[" in one_line(libra("send", "-n", namesrv, "-t", "Wrong", "--rows", stdin=deep))
    refused = libra("send", "-n", namesrv, "-t", "Wrong", "x", "--queue", "7")
    assert "--queue 7: name one of these queues of Wrong: broker-a:0" in one_line(refused)
