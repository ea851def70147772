"""SQL92 filters: Apache's consumer and ours at both brokers, and our evaluation compared with Apache's."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, assume, given, settings

from libramq import Message, Sql
from libramq.client.queue_reader import PullFilter, QueueReader
from libramq.errors import ConfigError
from libramq.filter.sql import parse_sql
from libramq.message import MessageExt, MessageQueue, decode_records
from libramq.message.properties import encode_properties
from libramq.sync import Producer
from tests.filter.sql.test_sql import WHAT_MATCHES
from tests.filter.sql.trees import EXPRESSIONS
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.test_our_client import Inbox, consumer

pytestmark = pytest.mark.interop

SHARED = "SqlProperties"
WANTED = "a BETWEEN 2 AND 4 AND colour IN ('red', 'it''s') AND name NOT CONTAINS 'x'"
#: Messages have pairs of these values as properties; some of them are almost numbers.
VALUES = (
    *("3", "-3", "03", "3.5", "4", "2147483648", "true", "TRUE", "x", "axb", "it's", " 3", "1_0", "ü"),
    None,
)


@pytest.fixture
def queue(cluster: Cluster) -> MessageQueue:
    """The queue with messages of `VALUES` and `WHAT_MATCHES`; the first test that needs it fills it."""
    queue = MessageQueue(SHARED, cluster.broker_name, 0)
    if cluster.route(SHARED) is None:
        cluster.create_topic(SHARED, 1)
        with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            for number, a in enumerate(VALUES):
                for b in VALUES[number % 3 :: 3]:
                    properties = {name: value for name, value in (("a", a), ("b", b)) if value is not None}
                    producer.send(Message(SHARED, b"x", properties=properties), queue=queue)
            for _, properties, _ in WHAT_MATCHES:
                own = {name: value for name, value in properties.items() if name != "TAGS"}
                message = Message(SHARED, b"x", tags=properties.get("TAGS"), properties=own)
                producer.send(message, queue=queue)
            sent = producer.send(Message(SHARED, b"last"), queue=queue)
        cluster.wait_stored(SHARED, sent.queue_offset + 1)
    return queue


def read(cluster: Cluster, queue: MessageQueue, expression: str) -> Iterator[MessageExt]:
    """Yield the messages of a queue that pass the broker's filter."""
    pull_filter = PullFilter.of(Sql(expression) if expression else "*")
    with closing(QueueReader([cluster.namesrv], group="sql-readers", pull_filter=pull_filter)) as reader:
        end = reader.max_offsets([queue])[queue]
        for stretch in reader.read(queue, 0, end):
            yield from decode_records(stretch.body)


def check_against_ours(cluster: Cluster, queue: MessageQueue, expression: str) -> None:
    every = list(read(cluster, queue, ""))
    ours = [m.queue_offset for m in every if parse_sql(expression).matches(encode_properties(m.properties))]
    assert [message.queue_offset for message in read(cluster, queue, expression)] == ours


def test_a_broker_passes_what_our_evaluation_does(cluster: Cluster, queue: MessageQueue) -> None:
    """At Apache's broker this compares Apache's evaluation of the whole table with ours."""
    for expression in dict.fromkeys(expression for expression, _, _ in WHAT_MATCHES):
        check_against_ours(cluster, queue, expression)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expression=EXPRESSIONS)
def test_random_expressions(cluster: Cluster, queue: MessageQueue, expression: str) -> None:
    try:
        parse_sql(expression)
    except ConfigError:
        assume(False)
    check_against_ours(cluster, queue, expression)


def send_some(cluster: Cluster, topic: str) -> set[str]:
    """Send messages; return the bodies of those matching `WANTED`."""
    wanted = set()
    for number in range(24):
        colour, name = ("red", "it's", "blue")[number % 3], ("abc", "axc")[number % 4 == 0]
        properties = {"a": str(number % 6), "colour": colour, "name": name}
        cluster.send(topic=topic, body=str(number), properties=properties)
        if 2 <= number % 6 <= 4 and colour != "blue" and name == "abc":
            wanted.add(str(number))
    return wanted


def test_javas_consumer_gets_what_its_expression_wants(cluster: Cluster) -> None:
    """It gets stored messages, messages that arrive during held pulls, and others after a new expression."""
    topic, group = cluster.fresh_name("Sql"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    wanted = send_some(cluster, topic)
    java = cluster.consumer(group, topic, sql=WANTED)
    first = java.wait_count(len(wanted), "message")
    assert {delivery["body"] for delivery in first} == wanted
    cluster.send(topic=topic, body="no", properties={"a": "1"})
    cluster.send(topic=topic, body="held", properties={"a": "3", "colour": "red", "name": "late"})
    java.wait_event("message", body="held")
    java.finish()
    assert len(java.of("message")) == len(wanted) + 1

    again = cluster.consumer(group, topic, sql="a = 5 AND colour IS NULL")
    cluster.send(topic=topic, body="old", properties={"a": "3", "colour": "red", "name": "late"})
    cluster.send(topic=topic, body="new", properties={"a": "5"})
    again.wait_event("message", body="new")
    again.finish()
    assert [delivery["body"] for delivery in again.of("message")] == ["new"]


def test_javas_consumer_does_not_start_with_a_fault(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Sql"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    java = cluster.start("Consume", {"group": group, "topic": topic, "sql": "a > 3 AND OR b = 1"})
    refused = java.wait_event("refused")
    if cluster.kind == "libra":
        assert "column 11: a value is missing before 'OR'" in refused["reason"]


def test_our_consumer_gets_what_its_expression_wants(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Sql"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    wanted = send_some(cluster, topic)
    inbox = Inbox()
    with consumer(cluster, group, topic, inbox, Sql(WANTED)):
        inbox.wait_count(len(wanted))
        cluster.send(topic=topic, body="no", properties={"a": "1"})
        cluster.send(topic=topic, body="held", properties={"a": "3", "colour": "red", "name": "late"})
        inbox.wait(lambda: "held" in inbox.bodies())
    assert inbox.bodies() == wanted | {"held"}


def test_a_retried_message_is_redelivered_regardless_of_its_filter(cluster: Cluster) -> None:
    """Retry topics are read without the filter, unless a broker and a group are configured otherwise."""
    topic, group = cluster.fresh_name("Sql"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    cluster.create_topic(f"%RETRY%{group}", 1)
    java = cluster.consumer(group, topic, sql="a > 3", fail="first", delayLevel=1)
    cluster.send(topic=topic, body="again", properties={"a": "7"})
    cluster.send(topic=topic, body="never", properties={"a": "2"})
    java.wait_event("message", reconsumeTimes=1)
    java.finish()
    assert {delivery["body"] for delivery in java.of("message")} == {"again"}
