"""Delayed messages whose topic or queue is gone when they are due: where they are stored and read."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body
from libramq.kernel.effect import Thread
from libramq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import KVTable
from tests.broker.brokers import Conversation
from tests.broker.test_transactions import INTERVAL_MS, checks, end, place_of, prepare, resume
from tests.fakes import FakePeer

WAITS = [
    pytest.param({"DELAY": "1"}, id="delay level"),
    pytest.param({"TIMER_DELAY_MS": "1000"}, id="timer"),
]


def wait(talk: Conversation) -> None:
    """Let the time of due messages pass, with the disk keeping up."""
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


def delete(talk: Conversation) -> None:
    assert talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T")).code == C.SUCCESS


def dropped(talk: Conversation) -> str:
    """Return the number of messages the broker reports as dropped."""
    reply = talk.ask(FakePeer(), R.GET_BROKER_RUNTIME_INFO)
    return decode_body(reply.body, KVTable).table["libraDroppedOfDeletedTopics"]


@pytest.mark.parametrize("has_queues", [False, True])
@pytest.mark.parametrize("properties", WAITS)
def test_messages_for_a_deleted_topic_are_not_for_the_next_one_of_its_name(
    talk, peer, properties, has_queues, caplog
):
    """They used to be delivered to the new topic (apache/rocketmq #8537)."""
    talk.create_topic("T", 1)
    if has_queues:
        talk.send(peer, "T", queue_id=0)
    for number in range(2):
        talk.send(peer, "T", queue_id=0, body=b"old %d" % number, properties=properties)
    delete(talk)
    talk.create_topic("T", 1)
    talk.send(peer, "T", queue_id=0, body=b"new", properties=properties)
    wait(talk)
    assert bodies(talk, 0) == [b"new"]
    assert caplog.text.count("delayed messages for a deleted topic were dropped") == 1
    assert dropped(talk) == "2"


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_half_message_of_a_deleted_topic_is_not_committed_into_the_next_one(
    tmp_path, peer, is_made_again, is_killed, caplog
):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    old = prepare(talk, peer, b"old")
    delete(talk)
    if is_made_again:
        talk.create_topic("T", 4)
    if is_killed:
        talk.kill()
        talk = Conversation(tmp_path, clock=talk.clock)
    for _ in range(2):
        assert end(talk, peer, old).code == C.SUCCESS
    assert talk.messages("T", 2) == []
    assert caplog.text.count("delayed messages for a deleted topic were dropped") == 1
    assert dropped(talk) == "1"
    if is_made_again:
        assert end(talk, peer, prepare(talk, peer, b"new")).code == C.SUCCESS
        assert bodies(talk, 2) == [b"new"]
    talk.close()


def test_nobody_is_asked_about_a_half_message_of_a_deleted_topic(talk, peer):
    """A half message under check is not committed either; a rollback drops nothing."""
    talk.create_topic("T", 4)
    asked = FakePeer("10.0.0.7:1")
    talk.beat_producer(asked, "producer")
    prepare(talk, peer, b"old")
    talk.advance(INTERVAL_MS)
    ((check, _),) = checks(asked)
    rolled_back, young = prepare(talk, peer, b"rolled back"), prepare(talk, peer, b"young")
    delete(talk)
    talk.create_topic("T", 4)
    assert end(talk, peer, rolled_back, how=12).code == C.SUCCESS
    assert dropped(talk) == "0"
    assert end(talk, asked, place_of(check)).code == C.SUCCESS
    talk.advance(INTERVAL_MS)
    assert checks(asked) == []
    assert end(talk, peer, young).code == C.SUCCESS
    assert bodies(talk, 2) == []
    assert dropped(talk) == "2"


def test_a_half_message_that_was_given_up_is_not_resumed_for_the_next_topic(tmp_path, peer):
    talk = Conversation(tmp_path, transaction_check_max=1)
    talk.create_topic("T", 4)
    prepare(talk, peer, b"old")
    for _ in range(3):
        talk.advance(INTERVAL_MS)
    (given_up,) = talk.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    delete(talk)
    talk.create_topic("T", 4)
    reply = resume(talk, peer, given_up.offset_id)
    assert (reply.code, reply.remark) == (
        C.TOPIC_NOT_EXIST,
        "its topic was deleted since it was stored",
    )
    talk.close()


@pytest.mark.parametrize("properties", WAITS)
def test_messages_for_a_deleted_topic_are_dropped_after_a_kill(tmp_path, peer, properties):
    """The deletion's place in the log counts; the clock is an hour back."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", 1)
    talk.send(peer, "T", queue_id=0, body=b"old", properties=properties)
    delete(talk)
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock)
    again.create_topic("T", 1)
    again.send(peer, "T", queue_id=0, body=b"new", properties=properties)
    wait(again)
    assert bodies(again, 0) == [b"new"]
    again.close()


def test_a_message_that_rolls_on_is_dropped_with_its_topic(tmp_path, peer):
    """Stored again meanwhile, it lies behind the deletion in the log."""
    talk = Conversation(tmp_path, timer_roll_window_slot=4)
    talk.create_topic("T", 1)
    talk.send(peer, "T", queue_id=0, body=b"old", properties={"TIMER_DELAY_MS": "9000"})
    delete(talk)
    talk.create_topic("T", 1)
    for _ in range(6):
        wait(talk)
    assert bodies(talk, 0) == []
    talk.close()


@pytest.mark.parametrize("properties", WAITS)
def test_messages_for_an_unknown_topic_are_reported_and_read_once_it_is_known(
    tmp_path, peer, properties, caplog
):
    """A slave that became master may not know the topic yet."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", 1)
    for _ in range(2):
        talk.send(peer, "T", queue_id=0, properties=properties)
    talk.close()
    (tmp_path / "config" / "topics.json").unlink()
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
    talk = Conversation(tmp_path, clock=talk.clock)
    wait(talk)
    assert caplog.text.count("delayed messages are for an unknown topic") == 1
    talk.create_topic("T", 1)
    assert bodies(talk, 0) == [b"hello", b"hello"]
    assert talk.pull(peer).code == C.SUCCESS
    talk.close()
