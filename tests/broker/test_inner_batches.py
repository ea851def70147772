"""Pulls of a queue of batches: whole ones for clients that unwrap them, messages for all others."""

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.inner_batch import decode_pulled
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records, peek_record
from libramq.remoting.command import Command
from libramq.remoting.headers import QueueHeader
from libramq.rpc.broker_calls import min_offset
from libramq.store import StoreMessage
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.store.stores import BORN


def bodies(reply):
    return [message.body for message in decode_records(reply.body)]


@pytest.fixture
def filled(talk: Conversation) -> Conversation:
    """Return a broker with a batch of three messages and one of two."""
    assert talk.create_topic("T", 1, attributes="+queue.type=BatchCQ").code == ResponseCode.SUCCESS
    for texts in ("abc", "de"):
        inner = [BatchItem(0, text.encode(), b"TAGS\x01%s\x02" % text.encode()) for text in texts]
        talk.broker.store.append_batch([
            StoreMessage(
                "T", 0, encode_batch(inner), b"INNER_NUM\x01%d\x02" % len(inner), count=len(inner),
                born_host=BORN, sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP,
            )
        ])  # fmt: skip
    return talk


def test_the_least_offset_of_an_empty_queue_is_apaches(talk: Conversation):
    assert talk.create_topic("T", 1, attributes="+queue.type=BatchCQ").code == ResponseCode.SUCCESS
    talk.create_topic("Simple", 1)
    assert [least(talk, topic).ext["offset"] for topic in ("T", "Simple")] == ["-1", "0"]
    for topic, offset in (("T", "-1"), ("Simple", "0")):
        pulled = talk.pull(FakePeer(), topic=topic)
        assert pulled is not None
        assert (pulled.code, pulled.ext["minOffset"]) == (ResponseCode.PULL_NOT_FOUND, offset)
    assert min_offset(MessageQueue("T", "broker-a", 0)).result(least(talk, "T"), where="here") == 0


def least(talk: Conversation, topic: str) -> Command:
    return talk.ask(FakePeer(), RequestCode.GET_MIN_OFFSET, QueueHeader(topic=topic, queue_id=0))


def test_whole_batches_are_for_clients_that_unwrap_them(filled):
    peer = FakePeer()
    reply = filled.pull(peer, queue_offset=1, lb_takes_batches=True)
    first = peek_record(reply.body)
    assert (first.queue_offset, first.sys_flag & flags.INNER_BATCH) == (0, flags.INNER_BATCH)
    assert reply.ext["nextBeginOffset"] == "5"
    messages = decode_pulled(reply.body, 1, check_crc=True)
    assert [(m.queue_offset, m.body) for m in messages] == [(1, b"b"), (2, b"c"), (3, b"d"), (4, b"e")]
    for message in messages:
        found = filled.broker.store.message_at(message.physical_offset)
        assert (found.body, found.store_size) == (message.body, message.store_size)


def test_others_get_messages(filled):
    """These are Java's clients and earlier LibraMQ releases, which would take a batch for one message."""
    reply = filled.pull(FakePeer(), queue_offset=1)
    assert bodies(reply) == [b"b", b"c", b"d", b"e"]
    assert bodies(filled.pull(FakePeer(), queue_offset=1, lb_takes_batches=False)) == [b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(("expression", "kind"), [("a || e", "TAG"), ("TAGS = 'a' or TAGS = 'e'", "SQL92")])
def test_with_a_filter_messages_are_selected_one_by_one(filled, expression, kind):
    reply = filled.pull(FakePeer(), subscription=expression, expression_type=kind, lb_takes_batches=True)
    assert bodies(reply) == [b"a", b"e"]
