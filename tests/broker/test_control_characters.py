"""Control characters in displayed text: a terminal that prints one obeys it."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.properties import encode_properties
from libramq.remoting.body.consumers import LockBatchBody, QueueRef
from libramq.remoting.body.coordination import GroupJoinBody
from libramq.remoting.headers import GroupJoinHeader
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer

#: Control characters of ASCII and Latin-1: they clear a terminal, end a line, delete, begin a sequence.
CONTROLS = ["\x1b[2J", "\n", "\x7f", "\x9b", "\x01", "\x00"]
IDS = [ascii(each) for each in CONTROLS]


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()


@pytest.mark.parametrize("control", ["\x1b[2J", "\n", "\x7f", "\x9b"])
@pytest.mark.parametrize("name", ["TAGS", "KEYS"])
def test_messages_with_one_in_tag_or_key_are_not_stored(
    talk: Conversation, peer: FakePeer, name: str, control: str
):
    talk.create_topic("T", queues=1)
    talk.create_topic("B", queues=1, attributes="+queue.type=BatchCQ")
    properties = {name: f"a{control}b"}
    assert talk.send(peer, "T", properties=properties).code == C.MESSAGE_ILLEGAL
    for topic in ("T", "B"):
        batch = encode_batch(
            [
                BatchItem(0, b"good", encode_properties({"UNIQ_KEY": "1", "TAGS": "good"})),
                BatchItem(0, b"bad", encode_properties({"UNIQ_KEY": "2", **properties})),
            ]
        )
        sent = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(topic, batch=True), batch)
        assert sent.code == C.MESSAGE_ILLEGAL
        assert talk.messages(topic) == []
    assert talk.send(peer, "T", properties={name: "ä 名 b", "own": f"a{control}b"}).code == C.SUCCESS


@pytest.mark.parametrize("control", ["\x1b[2J", "\t", "\x7f", "\x9b"])
def test_messages_that_are_sent_back_lose_them(talk: Conversation, peer: FakePeer, control: str):
    """Older ones are in logs; if refused, an ordered group's message would block its queue for ever."""
    talk.beat(peer, "client", "G")
    properties = {"TAGS": f"a{control}b", "KEYS": f"k{control}", "own": f"x{control}", "DELAY": "1"}
    assert talk.send(peer, "%RETRY%G", properties=properties).code == C.SUCCESS
    (kept,) = talk.messages("SCHEDULE_TOPIC_XXXX")
    blank = control.replace(control[0], " ")
    assert (kept.properties["TAGS"], kept.properties["own"]) == (f"a{blank}b", f"x{control}")
    assert kept.properties["KEYS"] == f"k{blank}"


@pytest.mark.parametrize("control", CONTROLS, ids=IDS)
def test_topics_and_groups_have_none(talk: Conversation, peer: FakePeer, control: str):
    name = f"T{control}"
    assert talk.send(peer, name).code != C.SUCCESS
    assert talk.create_topic(name).code != C.SUCCESS
    talk.beat(peer, "client", name)
    assert name not in talk.broker.groups
    assert all(each.topic_name != name for each in talk.broker.tables.topics)


@pytest.mark.parametrize("control", CONTROLS, ids=IDS)
def test_client_ids_with_one_are_refused(talk: Conversation, peer: FakePeer, control: str):
    talk.create_topic("T", queues=1)
    talk.beat(FakePeer(), "honest", "G")
    client_id = f"evil{control}"
    assert talk.beat(peer, client_id, "G").code == C.INVALID_PARAMETER
    assert talk.beat_producer(peer, client_id).code == C.INVALID_PARAMETER
    refs = [QueueRef(topic="T", broker_name="broker-a", queue_id=0)]
    body = LockBatchBody(consumer_group="G", client_id=client_id, mq_set=refs)
    assert talk.ask(peer, R.LOCK_BATCH_MQ, None, body).code == C.INVALID_PARAMETER
    for name, instance in ((client_id, None), ("c", client_id)):
        header = GroupJoinHeader(
            consumer_group="H", client_id=name, lb_session_ms=10_000, lb_instance=instance
        )
        joined = talk.ask(peer, R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"}))
        assert joined.code == C.INVALID_PARAMETER
