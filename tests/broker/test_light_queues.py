"""Light queues (LMQ): addressed by a property, read as topics and by groups that were never created."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.tables import MessageRequestMode
from libramq.message import decode_records
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import QueryAssignmentBody, QueryAssignmentReply
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

A, B, GROUP = "%LMQ%a", "%LMQ%b", "%LMQ%readers"
NUMBERS = "INNER_MULTI_QUEUE_OFFSET"


def broker(path, **options) -> Conversation:
    return Conversation(path, enable_lmq=True, enable_multi_dispatch=True, **options)


def send(talk, peer, body: bytes, names: str, **properties):
    text = properties_to_text({"INNER_MULTI_DISPATCH": names, "TAGS": "x", **properties})
    return talk.send(peer, body=body, properties=text)


def pulled(talk, peer, topic: str, group: str = "G", **fields) -> list[bytes]:
    reply = talk.pull(peer, group, topic, **fields)
    assert reply is not None
    return [each.body for each in decode_records(reply.body)] if reply.code == C.SUCCESS else []


def test_messages_are_read_from_light_topics(tmp_path, peer):
    """A held pull is answered by the next message; nothing is created, and no tool lists them."""
    talk = broker(tmp_path, auto_create_subscription_group=False)
    assert send(talk, peer, b"ab", f"{A},{B}").code == C.SUCCESS
    assert (pulled(talk, peer, A, GROUP), pulled(talk, peer, B, GROUP)) == ([b"ab"], [b"ab"])
    assert pulled(talk, peer, A, GROUP, subscription="x") == [b"ab"]
    assert pulled(talk, peer, A, GROUP, subscription="y") == []
    held = FakePeer()
    assert talk.pull(held, GROUP, A, queue_offset=1, suspend_timeout_millis=9_000) is None
    send(talk, peer, b"a", A)
    (answer,) = held.replies
    assert [each.body for each in decode_records(answer.body)] == [b"a"]
    ends = [talk.ask(peer, R.GET_MAX_OFFSET, h.QueueHeader(topic=A, queue_id=0)).ext["offset"]]
    ends += [talk.ask(peer, R.GET_MIN_OFFSET, h.QueueHeader(topic=A, queue_id=0)).ext["offset"]]
    assert ends == ["2", "0"]
    assert not any(each.topic_name.startswith("%LMQ%") for each in talk.broker.tables.topics)
    assert talk.pull(peer, GROUP, "%LMQ%nothing").code == C.PULL_NOT_FOUND
    talk.close()


def test_without_the_options_there_are_none(tmp_path, peer):
    talk = Conversation(tmp_path)
    send(talk, peer, b"ab", f"{A},{B}", **{NUMBERS: "0,0"})
    assert talk.pull(peer, "G", A).code == C.TOPIC_NOT_EXIST
    (message,) = talk.messages("T") + talk.messages("T", 1) + talk.messages("T", 2) + talk.messages("T", 3)
    assert NUMBERS not in message.properties, "a broker that builds queues again would believe it"
    talk.close()


def test_the_log_says_once_which_options_are_missing(tmp_path, peer, caplog):
    """Such a send succeeds, as at Apache's broker, and its readers wait for ever."""
    talk = Conversation(tmp_path)
    talk.send(peer, body=b"for no light queue")
    assert "light queues" not in caplog.text
    for _ in range(3):
        assert send(talk, peer, b"ab", f"{A},{B}").code == C.SUCCESS
    assert caplog.text.count("a message names light queues, which are switched off") == 1
    assert "set enableLmq=true and enableMultiDispatch=true" in caplog.text
    talk.close()


@pytest.mark.parametrize("names", ["orders", f"{A},", "%LMQ%a/../b"])
def test_other_names_are_refused(tmp_path, peer, names):
    """Apache's broker accepts them, and its dispatch fails."""
    talk = broker(tmp_path)
    reply = send(talk, peer, b"x", names)
    assert reply.code == C.MESSAGE_ILLEGAL
    assert "is not the name of a light queue" in reply.remark
    talk.close()


def test_there_is_a_limit(tmp_path, peer):
    talk = broker(tmp_path, max_lmq_consume_queue_num=2)
    assert send(talk, peer, b"1", A).code == C.SUCCESS
    assert send(talk, peer, b"2", f"{A},{B},%LMQ%c").code == C.SYSTEM_ERROR
    assert send(talk, peer, b"3", f"{A},{B}").code == C.SUCCESS
    refused = send(talk, peer, b"4", "%LMQ%c")
    assert refused.remark.startswith("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]")
    assert pulled(talk, peer, A) == [b"1", b"3"]
    talk.close()


def test_offsets_of_light_groups_are_kept_as_apaches_broker_keeps_them(tmp_path, peer):
    """They are in lmqConsumerOffset.json, with all others; switching the options loses none."""
    talk = broker(tmp_path)
    send(talk, peer, b"ab", f"{A},{B}")

    def commit(group, topic):
        header = h.UpdateConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)
        return talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code

    def query(talk, group, topic):
        header = h.QueryConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=0)
        return talk.ask(peer, R.QUERY_CONSUMER_OFFSET, header).ext.get("offset")

    talk.pull(peer, GROUP, A)
    talk.pull(peer, "G", B)
    assert [commit(GROUP, A), commit("G", B), commit(GROUP, "%LMQ%nothing")] == [C.SUCCESS] * 3
    talk.close()
    file = tmp_path / "config" / "lmqConsumerOffset.json"
    document = fastjson.loads(file.read_text())
    assert isinstance(document, dict)
    assert document["lmqOffsetTable"] == {f"{A}@{GROUP}": 1}
    assert document["offsetTable"] == {f"{B}@G": {0: 1}}
    for options in ({}, {"enable_lmq": True, "enable_multi_dispatch": True}):
        talk = Conversation(tmp_path, **options)
        assert [query(talk, GROUP, A), query(talk, "G", B)] == ["1", "1"]
        talk.close()


def test_a_light_topic_is_not_configured(tmp_path, peer):
    talk = broker(tmp_path)
    assert talk.create_topic(A, 4).code == C.INVALID_PARAMETER
    talk.close()


def test_a_delayed_message_is_in_its_light_queue_when_it_is_delivered(tmp_path, peer):
    talk = broker(tmp_path)
    send(talk, peer, b"later", A, DELAY="1")
    assert pulled(talk, peer, A) == []
    talk.advance(1_500)
    assert pulled(talk, peer, A) == [b"later"]
    talk.close()


@pytest.mark.parametrize("mode", ["PULL", "POP"])
def test_members_are_assigned_the_queue_of_a_light_topic_here(tmp_path, mode):
    """No name server knows a light topic, so members that queried their broker got no queues."""
    talk = broker(tmp_path, namesrv_addr="127.0.0.1:9876")
    if mode == "POP":
        body = MessageRequestMode(topic=A, consumer_group="G", mode="POP", pop_share_queue_num=0)
        assert talk.ask(FakePeer(), R.SET_MESSAGE_REQUEST_MODE, None, body).code == C.SUCCESS
    members = {name: FakePeer(f"10.0.0.{number}:1") for number, name in enumerate(("alice", "bob"), 1)}
    for name, member in members.items():
        talk.beat(member, name)
    found = {}
    for name, member in members.items():
        body = QueryAssignmentBody(topic=A, consumer_group="G", client_id=name, strategy_name="AVG")
        reply = talk.ask(member, R.QUERY_ASSIGNMENT, None, body)
        assigned = decode_body(reply.body, QueryAssignmentReply).message_queue_assignments or []
        found[name] = [
            (each.message_queue.topic, each.message_queue.queue_id, each.mode) for each in assigned
        ]
    mine = [(A, 0, mode)]
    if mode == "PULL":
        assert found == {"alice": mine, "bob": []}
    else:  # Both pop from the whole broker.
        assert [topic for topic, _, _ in found["alice"] + found["bob"]] == [A, A]
    talk.close()


def test_members_keep_the_queue_of_a_light_topic_that_a_broker_does_not_serve(tmp_path, peer):
    """An answer without queues is not an empty share: after that one a member gives up what it has."""
    talk = Conversation(tmp_path)
    talk.beat(peer, "alice")
    body = QueryAssignmentBody(topic=A, consumer_group="G", client_id="alice", strategy_name="AVG")
    reply = talk.ask(peer, R.QUERY_ASSIGNMENT, None, body)
    assert decode_body(reply.body, QueryAssignmentReply).message_queue_assignments is None
    talk.close()


def test_a_member_of_an_unknown_strategy_is_told_which_there_are(tmp_path, peer):
    talk = broker(tmp_path)
    talk.beat(peer, "alice")
    body = QueryAssignmentBody(topic=A, consumer_group="G", client_id="alice", strategy_name="NONE")
    assert "AVG or AVG_BY_CIRCLE is allowed" in (talk.ask(peer, R.QUERY_ASSIGNMENT, None, body).remark or "")
    talk.close()
