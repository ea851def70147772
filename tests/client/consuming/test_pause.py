"""Tests of pausing: no handler begins and no pull is sent, and the queues stay with the member."""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, nothing, q


class Pausing(Conversation):
    """A conversation whose user pauses and resumes."""

    def pause(self, *queues):
        self._(self.core.pause(queues or None, self.now_ms))

    def resume(self, *queues):
        return self._(self.core.resume(queues or None, self.now_ms))


def test_a_paused_queue_delivers_nothing_and_is_kept():
    """The pull that is under way is the last one. Heartbeats and rounds continue, and afterwards the queue
    continues where it was.
    """
    talk = Pausing(rebalance_ms=600_000).pulling(2)
    talk.pause()
    assert talk.pulled(q(0), found(0, 1)) == []
    assert talk.pulled(q(1), nothing(0)) == []
    talk.at(300_000)
    assert talk.of(rq.Pull) == []
    assert len(talk.of(rq.SendHeartbeat)) >= 9
    talk.notified()
    talk.members("me")
    assert talk.of(fx.Revoked) == []
    assert talk.core.owned() == [q(0), q(1)]
    talk.resume()
    assert [m.queue_offset for d in talk.deliveries() for m in d.messages] == [0, 1]
    assert [(effect.queue, effect.offset) for effect in talk.of(rq.Pull)] == [(q(0), 2), (q(1), 0)]


def test_waiting_deliveries_wait_for_the_end_of_the_pause():
    """A running handler ends, and its result counts."""
    talk = Pausing().pulling()
    talk.pulled(q(0), found(0, 1))
    running, waiting = talk.deliveries()
    assert running.begin()
    talk.pause()
    assert not waiting.begin()
    assert talk.handled((running, HandlerOutcome.SUCCESS), (waiting, HandlerOutcome.SKIPPED)) == []
    talk.resume()
    (again,) = talk.deliveries()
    assert again is waiting
    assert again.begin()
    talk.handled((again, HandlerOutcome.SUCCESS))
    talk.at(1000)
    assert [effect.offset for effect in talk.of(rq.CommitOffset)] == [2]


def test_a_queue_may_be_resumed_before_its_handler_reports():
    """Its messages are delivered again."""
    talk = Pausing().pulling()
    talk.pulled(q(0), found(0))
    (waiting,) = talk.deliveries()
    talk.pause()
    assert not waiting.begin()
    talk.resume()
    talk.handled((waiting, HandlerOutcome.SKIPPED))
    assert talk.deliveries() == [waiting]


def test_single_queues_are_paused_and_resumed():
    """Other queues are not affected; "all" includes the single ones."""
    talk = Pausing().pulling(2)
    talk.pause(q(0))
    assert talk.pulled(q(0), found(0)) == []
    assert len(talk.pulled(q(1), found(0))) == 2
    talk.resume(q(1))
    assert talk.effects == []
    talk.resume()
    assert len(talk.deliveries()) == 1


def test_a_queue_assigned_during_a_pause_is_paused_too():
    """Its offset is fetched, its messages are not."""
    talk = Pausing()
    talk.pause(q(1))
    talk.joined(2)
    assert len(talk.committed(q(0), 0)) == 1
    assert talk.committed(q(1), 0) == []
    talk.resume()
    assert [effect.queue for effect in talk.of(rq.Pull)] == [q(1)]


def test_in_order_the_same_messages_are_delivered_first_again():
    """A batch whose handling was not begun is put back at the front."""
    talk = Pausing(orderly=True, orderly_takeover_ms=0).joined(1)
    (request,) = talk.of(rq.LockQueues)
    talk._(request.ask.done([q(0)], 0))
    talk.committed(q(0), 0)
    talk.pulled(q(0), found(0, 1))
    (waiting,) = talk.deliveries()
    talk.pause()
    assert not waiting.begin()
    assert talk.handled((waiting, HandlerOutcome.SKIPPED)) == []
    talk.resume()
    assert [m.queue_offset for m in talk.deliveries()[0].messages] == [0]


@pytest.mark.parametrize("paused", [True, False])
def test_a_paused_queue_can_be_revoked(paused):
    """It is released at once, since no handler runs."""
    talk = Pausing().pulling(2)
    talk.pulled(q(1), found(0))
    if paused:
        talk.pause()
    talk.notified()
    talk.members("me", "you")
    assert talk.of(fx.Revoked) == [fx.Revoked((q(1),))]
