"""Delayed messages whose topic or queue is gone when they are due: where they are stored, who reads them."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.kernel.effect import Thread
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation
from tests.broker.test_transactions import end, prepare
from tests.fakes import FakePeer

WAITS = [
    pytest.param({"DELAY": "1"}, id="delay level"),
    pytest.param({"TIMER_DELAY_MS": "1000"}, id="timer"),
]


def wait(talk: Conversation) -> None:
    """Let the time pass in which messages are due, with the disk keeping up."""
    for _ in range(4):
        talk.advance(500)
        talk.flush()
        talk.threads.run_all(Thread.DISK)


def bodies(talk: Conversation, queue_id: int) -> list[bytes]:
    return [message.body for message in talk.messages("T", queue_id)]


@pytest.mark.parametrize("properties", WAITS)
def test_a_message_whose_queue_is_gone_goes_to_another_of_its_topic(talk, peer, properties):
    """The topic has 2 queues instead of 8, so no consumer would read queue 5."""
    talk.create_topic("T", 8)
    talk.send(peer, "T", queue_id=5, properties=properties)
    talk.send(peer, "T", queue_id=0, body=b"stays", properties=properties)
    talk.create_topic("T", 2)
    wait(talk)
    assert (bodies(talk, 5), bodies(talk, 1), bodies(talk, 0)) == ([], [b"hello"], [b"stays"])


def test_the_commit_of_a_message_whose_queue_is_gone_goes_to_another(talk, peer):
    talk.create_topic("T", 4)
    place = prepare(talk, peer)
    talk.create_topic("T", 1)
    assert end(talk, peer, place).code == C.SUCCESS
    assert (bodies(talk, 2), bodies(talk, 0)) == ([], [b"order"])


@pytest.mark.parametrize("properties", WAITS)
def test_messages_for_a_deleted_topic_are_reported_and_read_once_it_exists_again(
    talk, peer, properties, caplog
):
    """They are stored all the same: a slave that became master may simply not know the topic yet."""
    talk.create_topic("T", 1)
    for _ in range(2):
        talk.send(peer, "T", queue_id=0, properties=properties)
    talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    wait(talk)
    assert caplog.text.count("messages that waited are for a topic that is gone") == 1
    talk.create_topic("T", 1)
    assert bodies(talk, 0) == [b"hello", b"hello"]
    assert talk.pull(peer).code == C.SUCCESS
