"""Silent members: what counts as a sign of life, and the probe that stock clients answer."""

import pytest

from libramq.broker.groups.client_watch import TICK_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.groups.consumer_group import ANSWER_MS_MAX, SILENCE_MS_MAX
from libramq.remoting import headers as h
from libramq.remoting.command import Command, reply_to
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def is_member(talk: Conversation) -> bool:
    return talk.broker.members.consumers.group("G") is not None


def question(peer: FakePeer) -> Command | None:
    """Remove the broker's probe from the peer's replies and return it, or None."""
    for position, sent in enumerate(peer.replies):
        if sent.code == R.GET_CONSUMER_RUNNING_INFO and not sent.is_response:
            return peer.replies.pop(position)
    return None


def silence(talk: Conversation, peer: FakePeer) -> Command:
    talk.beat(peer, "alice")
    talk.advance(SILENCE_MS_MAX)
    asked = question(peer)
    assert asked is not None
    return asked


def test_the_probe_is_one_that_java_answers(talk, peer):
    asked = silence(talk, peer)
    assert asked.ext == {"consumerGroup": "G", "clientId": "alice", "jstackEnable": "false"}
    assert not asked.is_oneway


@pytest.mark.parametrize("code", [C.SUCCESS, C.REQUEST_CODE_NOT_SUPPORTED])
def test_a_client_that_answers_stays(talk, peer, code):
    talk.give(peer, reply_to(silence(talk, peer), code))
    talk.advance(ANSWER_MS_MAX)
    assert is_member(talk)
    assert question(peer) is None


def test_a_client_that_does_not_answer_the_probe_is_removed(talk, peer):
    asked = silence(talk, peer)
    talk.advance(ANSWER_MS_MAX - TICK_MS)
    assert is_member(talk)
    talk.advance(2 * TICK_MS)
    assert not is_member(talk)
    asked = silence(talk, peer)
    talk.give(
        peer, reply_to(asked, C.SYSTEM_ERROR, remark="The Consumer Group <G> not exist in this consumer")
    )
    talk.advance(TICK_MS)
    assert not is_member(talk)


@pytest.mark.parametrize("life", ["pull", "retry", "commit"])
def test_clients_that_pull_or_commit_are_not_probed(talk, peer, life):
    talk.create_topic("T")
    talk.beat(peer, "alice")
    for _ in range(3):
        talk.clock.advance(SILENCE_MS_MAX - 1)
        if life == "commit":
            header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=0)
            assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS
        else:
            assert talk.pull(peer, topic="T" if life == "pull" else "%RETRY%G") is not None
        talk.advance(0)
    assert question(peer) is None
    assert is_member(talk)
