"""Message traces of our clients, found by Apache's mqadmin, on either broker."""

import threading

import pytest

from libramq.integrations.message_traces import traced, traced_handler
from libramq.message import Message, MessageExt
from libramq.sync import Producer, PushConsumer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop]


def test_mqadmin_finds_who_sent_and_who_handled_a_message(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Traced"), cluster.fresh_name("kitchen")
    cluster.create_topic(topic, 1)
    handled = threading.Event()

    def handle(messages: list[MessageExt]) -> None:
        handled.set()

    def printed() -> str:
        try:
            return cluster.admin("queryMsgTraceById", "-i", sent.message_id)
        except AssertionError:  # There is no trace yet, nor perhaps its topic.
            return ""

    with traced(Producer(group="cooks", namesrv=cluster.namesrv)) as producer:
        sent = producer.send(Message(topic, b"tea", tags="hot", keys=["k1"]))
        consumer = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from="earliest")
        consumer.subscribe(topic, "*", traced_handler(handle, group=group, producer=producer))
        with consumer:
            assert handled.wait(PATIENCE_S)
    cluster.wait_until(
        lambda: "Pub" in (shown := printed()) and "Sub" in shown and group in shown,
        "the trace of a message",
        within_s=PATIENCE_S,
    )
    lines = [line.split() for line in printed().splitlines()]
    (pub,) = [line for line in lines if line and line[0] == "Pub"]
    assert "cooks" in pub
    assert "success" in pub
    (sub,) = [line for line in lines if line and line[0] == "Sub"]
    assert group in sub
    assert "success" in sub
