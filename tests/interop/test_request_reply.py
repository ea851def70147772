"""Apache's clients with requests sent as messages, and replies passed on by the broker."""

import pytest

from libramq.message import Message, MessageExt
from libramq.sync import Producer, PushConsumer
from tests.interop.cluster import Cluster
from tests.interop.process import Program

pytestmark = pytest.mark.interop

TIMEOUT_MS = 60_000


def asking(cluster: Cluster, *, replies: str | None = None) -> Program:
    properties = {"group": cluster.fresh_name("asking")} | ({"replies": replies} if replies else {})
    program = cluster.start("Ask", properties)
    program.wait_event("started")
    return program


def ask(program: Program, topic: str, body: str, timeout_ms: int = TIMEOUT_MS) -> dict[str, object]:
    return program.ask("replied", {"topic": topic, "body": body, "timeout": timeout_ms})


def test_requests_are_answered_by_another_client(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Asked")
    cluster.create_topic(topic, 2)
    replier, requester = asking(cluster, replies=topic), asking(cluster)
    for body in ("one", "two"):
        replied = ask(requester, topic, body)
        assert replied.get("body") == body.upper(), (replied, replier.of("answered"))
        answered = replier.wait_event("answered", body=body.upper())
        assert answered["status"] == "SEND_OK", answered
        assert str(answered["topic"]).endswith("_REPLY_TOPIC")
    requester.finish()
    replier.finish()


def test_a_reply_to_a_client_that_has_left_is_reported(cluster: Cluster) -> None:
    topic = cluster.fresh_name("Asked")
    cluster.create_topic(topic, 1)
    requester = asking(cluster)
    assert "RequestTimeoutException" in str(ask(requester, topic, "late", 3_000)["error"])
    requester.finish()
    replier = asking(cluster, replies=topic)
    answered = replier.wait_event("answered")
    assert answered["status"] == "FAILED", answered
    assert "not found" in answered["error"], answered
    replier.finish()


def test_our_request_is_answered_by_apaches_client(cluster: Cluster) -> None:
    """This works through a broker of either kind."""
    topic = cluster.fresh_name("Asked")
    cluster.create_topic(topic, 2)
    replier = asking(cluster, replies=topic)
    with Producer(group=cluster.fresh_name("asking"), namesrv=cluster.namesrv) as requester:
        for body in ("one", "two"):
            reply = requester.request(Message(topic, body.encode()), timeout_ms=TIMEOUT_MS)
            assert reply.body == body.upper().encode()
            answered = replier.wait_event("answered", body=body.upper())
            assert answered["status"] == "SEND_OK", answered
    replier.finish()


def test_our_handler_answers_apaches_client(cluster: Cluster) -> None:
    """The reply has the properties that Java's client needs."""
    topic = cluster.fresh_name("Asked")
    cluster.create_topic(topic, 2)
    requester = asking(cluster)
    with Producer(group=cluster.fresh_name("replying"), namesrv=cluster.namesrv) as replier:

        def handle(messages: list[MessageExt]) -> None:
            for message in messages:
                replier.reply(message, message.body.upper(), timeout_ms=TIMEOUT_MS)

        group = cluster.fresh_name("repliers")
        consumer = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from="earliest")
        consumer.subscribe(topic, "*", handle)
        with consumer:
            for body in ("one", "two"):
                replied = ask(requester, topic, body)
                assert replied.get("body") == body.upper(), replied
    requester.finish()
