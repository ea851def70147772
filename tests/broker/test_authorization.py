"""Requests that name a message by its offset: only the store knows which topic it belongs to."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message import decode_records
from libramq.message import properties as p
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.headers import PopMessageHeader
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def talk(tmp_path: Path, guard: Guard):
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("open")
    talk.create_topic("secret")
    talk.send(FakePeer(), "secret")
    guard.denied = {"Topic:secret"}
    yield talk
    talk.close()


def secret_offset(talk: Conversation) -> int:
    (message,) = talk.messages("secret")
    return message.physical_offset


@pytest.mark.parametrize("claim", [None, "open"])
def test_a_view_by_offset_shows_no_message_of_another_topic(talk: Conversation, claim: str | None):
    header = h.ViewMessageHeader(offset=secret_offset(talk), topic=claim)
    reply = talk.ask(FakePeer(), R.VIEW_MESSAGE_BY_ID, header)
    assert (reply.code, reply.body) == (C.NO_PERMISSION, b"")


@pytest.mark.parametrize("claim", [None, "open"])
def test_a_send_back_needs_permission_for_the_messages_topic(talk: Conversation, claim: str | None):
    header = h.SendBackHeader(offset=secret_offset(talk), group="G", delay_level=0, origin_topic=claim)
    reply = talk.ask(FakePeer(), R.CONSUMER_SEND_MSG_BACK, header)
    assert reply.code == C.NO_PERMISSION


def test_permitted_requests_are_served(talk: Conversation, guard: Guard):
    guard.denied = set()
    offset = secret_offset(talk)
    viewed = talk.ask(FakePeer(), R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=offset))
    assert [message.topic for message in decode_records(viewed.body)] == ["secret"]
    header = h.SendBackHeader(offset=offset, group="G", delay_level=0)
    assert talk.ask(FakePeer(), R.CONSUMER_SEND_MSG_BACK, header).code == C.SUCCESS


@pytest.mark.parametrize("topic", ["open", "DefaultCluster_REPLY_TOPIC"])
def test_a_reply_needs_permission_for_the_topic_of_replies_whatever_it_names(
    talk: Conversation, guard: Guard, topic: str
):
    """Otherwise a user with one writable topic could have bodies pushed to all other users' clients."""
    waiting = FakePeer()
    talk.beat_producer(waiting, "waiting@1", "requesters")
    waiting.replies.clear()
    guard.denied = {"Topic:DefaultCluster_REPLY_TOPIC"}
    header = send_header(topic, queue_id=0, properties=properties_to_text({p.REPLY_TO_CLIENT: "waiting@1"}))
    reply = talk.ask(FakePeer(), R.SEND_REPLY_MESSAGE_V2, header, b"forged")
    assert reply.code == C.NO_PERMISSION
    assert waiting.replies == []
    assert talk.messages(topic) == []


@pytest.mark.parametrize("names", [("secret",), ("open", "secret"), ("secret", "open")])
def test_a_retry_needs_permission_for_the_topic_that_it_says_it_came_from(
    talk: Conversation, guard: Guard, names: tuple[str, ...]
):
    """Members handle it as a message of that topic, and its dead letter is resent to that topic."""
    text = "".join(f"{p.RETRY_TOPIC}\x01{name}\x02" for name in names)
    sent = talk.send(FakePeer(), "%RETRY%G", properties=text, reconsume_times=100)
    assert sent.code == C.NO_PERMISSION
    assert talk.send(FakePeer(), "%RETRY%G", properties={p.RETRY_TOPIC: "open"}).code == C.SUCCESS
    assert guard.asked[-1] == ("Topic:open", "Sub")


def test_nothing_of_a_denied_heartbeat_is_registered(talk: Conversation, guard: Guard):
    guard.denied = {"Topic:T"}
    assert talk.beat(FakePeer(), "alice").code == C.NO_PERMISSION
    assert talk.broker.members.consumers.group("G") is None


def test_what_a_group_popped_is_not_in_the_retry_topic_of_another_group(talk: Conversation, guard: Guard):
    """Readers of the group "G_open" need no permission for G or for the topic to read `%RETRY%G_open`."""
    talk.send(FakePeer(), "open")
    header = PopMessageHeader(
        consumer_group="G",
        topic="open",
        queue_id=-1,
        max_msg_nums=1,
        invisible_time=10_000,
        poll_time=0,
        born_time=int(talk.clock.wall_ms()),
        init_mode=0,
    )
    popped = talk.ask(FakePeer(), R.POP_MESSAGE, header)
    assert len(decode_records(popped.body)) == 1
    talk.advance(10_000)
    assert "%RETRY%G_open" not in talk.broker.topics
    assert len(talk.messages("%RETRY%G+open")) == 1
    guard.denied = {"Group:G"}
    read = talk.pull(FakePeer(), "G_open", "%RETRY%G+open")
    assert read is not None
    assert read.code == C.NO_PERMISSION
