"""Replies to requests: pushed to the waiting client, stored, and answered with the outcome of the push."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message import properties as p
from libramq.message.properties import properties_from_text, properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.command import FLAG_RESPONSE, Command
from libramq.remoting.headers import PushReplyHeader
from tests.broker.brokers import Conversation, answer, find_answer, send_header
from tests.fakes import FakePeer

TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def requester(talk: Conversation) -> FakePeer:
    peer = FakePeer("127.0.0.1:50007")
    talk.beat_producer(peer, "requester@1", "requesters")
    peer.replies.clear()
    return peer


def reply(talk: Conversation, to: str | None = "requester@1", **fields: object) -> Command:
    properties = {p.CORRELATION_ID: "c1", p.MESSAGE_TYPE: "reply", p.TTL: "3000"}
    if to is not None:
        properties[p.REPLY_TO_CLIENT] = to
    header = send_header(TOPIC, queue_id=0, properties=properties_to_text(properties), **fields)
    return talk.command(R.SEND_REPLY_MESSAGE_V2, header, b"the answer")


def pushed(peer: FakePeer) -> Command:
    (command,) = [each for each in peer.replies if each.code == R.PUSH_REPLY_MESSAGE_TO_CLIENT]
    peer.replies.remove(command)
    return command


def test_a_reply_reaches_the_requester_before_it_is_acknowledged(talk, peer, requester):
    sent = reply(talk)
    talk.give(peer, sent)
    push = pushed(requester)
    header = h.decode_header(push, PushReplyHeader)
    assert (push.body, header.topic, header.queue_id) == (b"the answer", TOPIC, 0)
    assert (header.born_host, header.store_host) == (peer.address, talk.config.address)
    properties = properties_from_text(header.properties or "")
    assert properties[p.CORRELATION_ID] == "c1"
    assert properties[p.PUSH_REPLY_TIME] == str(header.store_timestamp)
    assert find_answer(peer, sent) is None
    talk.give(requester, Command(code=C.SUCCESS, opaque=push.opaque, flag=FLAG_RESPONSE))
    acknowledged = answer(peer, sent)
    assert (acknowledged.code, acknowledged.ext["queueId"], acknowledged.ext["queueOffset"]) == (0, "0", "0")
    (stored,) = talk.messages(TOPIC)
    assert (stored.body, stored.offset_id) == (b"the answer", acknowledged.ext["msgId"])
    assert p.PUSH_REPLY_TIME not in stored.properties


def test_a_reply_with_the_long_names_is_the_same(talk, peer, requester):
    fields = {"producer_group": "P", "topic": TOPIC, "default_topic": "TBW102", "flag": 0, "queue_id": 0}
    header = h.SendMessageHeader(
        **fields,
        default_topic_queue_nums=4,
        sys_flag=0,
        born_timestamp=1,
        properties=properties_to_text({p.REPLY_TO_CLIENT: "requester@1"}),
    )
    talk.give(peer, talk.command(R.SEND_REPLY_MESSAGE, header, b"long"))
    assert pushed(requester).body == b"long"


@pytest.mark.parametrize(
    ("to", "remark"),
    [
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
        ("nobody@1", "push reply message fail, channel of <nobody@1> not found."),
    ],
)
def test_a_reply_to_nobody_is_stored_and_reported(talk, peer, requester, to, remark):
    sent = reply(talk, to)
    talk.give(peer, sent)
    acknowledged = answer(peer, sent)
    assert (acknowledged.code, acknowledged.remark) == (C.SYSTEM_ERROR, remark)
    assert [message.body for message in talk.messages(TOPIC)] == [b"the answer"]


def test_a_requester_that_refuses_leaves_or_is_silent_is_reported(talk, peer, requester):
    refused, silent, left = reply(talk), reply(talk), reply(talk)
    talk.give(peer, refused)
    refusal = Command(code=C.SYSTEM_ERROR, opaque=pushed(requester).opaque, flag=FLAG_RESPONSE)
    talk.give(requester, refusal)
    talk.give(peer, silent)
    assert find_answer(peer, silent) is None
    talk.advance(10_000)
    talk.give(peer, left)
    talk.performer.closed(requester)
    for sent in (refused, silent, left):
        acknowledged = answer(peer, sent)
        assert (acknowledged.code, acknowledged.remark) == (
            C.SYSTEM_ERROR, "push reply message to requester@1 fail.",
        )  # fmt: skip
    late = reply(talk)
    talk.give(peer, late)
    assert "not found" in answer(peer, late).remark


def test_replies_are_not_stored_where_the_operator_says_so(tmp_path, peer):
    talk = Conversation(tmp_path, store_replies=False)
    sent = reply(talk, None)
    talk.give(peer, sent)
    assert answer(peer, sent).ext["msgId"] == "0"
    assert talk.messages(TOPIC) == []
    talk.close()


def test_a_batch_is_no_reply(talk, peer, requester):
    sent = reply(talk, batch=True)
    talk.give(peer, sent)
    assert answer(peer, sent).code == C.MESSAGE_ILLEGAL
    assert requester.replies == []


def test_a_client_is_found_while_one_of_its_groups_is_there(talk, peer, requester):
    talk.beat_producer(requester, "requester@1", "more")
    talk.ask(
        requester,
        R.UNREGISTER_CLIENT,
        h.UnregisterClientHeader(client_id="requester@1", producer_group="requesters"),
    )
    talk.give(peer, reply(talk))
    assert pushed(requester).body == b"the answer"
    talk.ask(
        requester,
        R.UNREGISTER_CLIENT,
        h.UnregisterClientHeader(client_id="requester@1", producer_group="more"),
    )
    late = reply(talk)
    talk.give(peer, late)
    assert "not found" in answer(peer, late).remark
