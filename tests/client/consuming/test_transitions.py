"""Tests of an owned queue's state machine: its table is complete, and queues keep to it."""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.transitions import ALL, ENDING, TABLE
from libramq.client.consuming.queues.owned_queue import LETTERS, OURS, QueueState
from libramq.errors import LocalProtocolError
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, q
from tests.client.consuming.coordinated import NOT_YET_GRANTED, Member, assigned
from tests.client.consuming.test_orderly import InOrder

DOUBTED = QueueState.DOUBTED
#: The impossible events, with reasons.
IMPOSSIBLE = {
    # Happens only at the first moment.
    ev.Taken: set(ALL),
    # Locks are lifted before a coordinator allocates, and doubted only while they are used.
    ev.Granted: {DOUBTED},
    ev.ClaimsDropped: {DOUBTED},
    # Only ending queues wait for their handlers.
    ev.HandlerEnded: set(ALL) - set(ENDING),
}


def state(talk, queue=None):
    owned = talk.core.table.get(queue or q(0))
    return QueueState.GONE if owned is None else owned.state


def test_the_table_has_a_row_for_every_event():
    assert set(TABLE) == set(ev.Event.__subclasses__())


@pytest.mark.parametrize("event", TABLE, ids=lambda event: event.__name__)
def test_every_combination_that_can_happen_is_in_the_table(event):
    assert set(ALL) - set(TABLE[event]) == IMPOSSIBLE.get(event, set())


def test_every_state_is_entered_by_some_event_and_left_by_another():
    cells = [(before, then) for row in TABLE.values() for before, cell in row.items() for then in cell.then]
    assert {then for before, then in cells if then is not before} == set(QueueState) - {QueueState.NEW}
    assert {before for before, then in cells if then is not before} == set(QueueState) - {QueueState.GONE}


def test_every_state_is_ours_or_ending_or_gone():
    assert {*OURS, *ENDING, QueueState.GONE} == set(QueueState)
    assert len(LETTERS) == len(set(LETTERS)) == len(QueueState)


def test_an_impossible_event_is_reported_and_ignored():
    talk = Conversation().pulling()
    own, owned = talk.core.own, talk.core.table.get(q(0))
    reported = []
    talk.core.kernel.failed = lambda what, error: reported.append(error)
    assert talk._(own.handle(owned, ev.HandlerEnded(), 0)) == []
    (error,) = reported
    assert isinstance(error, LocalProtocolError)
    assert "HandlerEnded cannot happen to a queue that is READING" in str(error)


def test_a_queue_that_its_fence_has_forgotten_is_not_pulled_without_a_claim():
    """When a handler ends while the queue is being opened again, the next pull waits for the answer."""
    talk = Member(pull_threshold_for_queue=1).holding(q(0))
    first, *others = talk.busy(q(0), 0, 1, 2, started=3)
    talk.handled((first, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(100) if isinstance(each, rq.CommitOffset)]
    (request,) = talk.commit_refused(commit, NOT_YET_GRANTED)
    assert isinstance(request, rq.OpenQueue)
    assert state(talk) is QueueState.FORGOTTEN
    assert talk.handled(*((each, HandlerOutcome.SUCCESS) for each in others)) == []
    (pull,) = talk.opened(request, 0, former_epoch=1)
    assert pull.claim == talk.claim()
    assert state(talk) is QueueState.READING


def test_handlers_do_not_begin_while_a_queue_is_opened_again():
    talk = Member().holding(q(0))
    first, second = talk.busy(q(0), 0, 1, started=1)
    talk.handled((first, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(100) if isinstance(each, rq.CommitOffset)]
    (request,) = talk.commit_refused(commit, NOT_YET_GRANTED)
    assert not second.begin()
    assert talk.handled((second, HandlerOutcome.SKIPPED)) == []
    talk.opened(request, 0, former_epoch=1)
    assert talk.deliveries() == [second]


def test_a_queue_revoked_while_its_new_offset_is_committed_is_released():
    """It is not taken again, which the next round would have to undo."""
    talk = Conversation().pulling(2)
    talk._(talk.core.offsets_set("T", {q(1): 7}, 0))
    (commit,) = talk.of(rq.CommitOffset)
    assert state(talk, q(1)) is QueueState.MOVING
    talk.notified()
    assert fx.Revoked((q(1),)) in talk.members("me", "you")
    assert state(talk, q(1)) is QueueState.LEAVING
    talk.commit_answered(commit)
    assert talk.of(rq.QueryOffset) == []
    assert state(talk, q(1)) is QueueState.GONE


def test_a_lock_doubted_before_anything_was_read_is_requested_again():
    """The answer to the former request no longer counts."""
    talk = InOrder().joined(1)
    talk.locks(q(0))
    (query,) = talk.of(rq.QueryOffset)
    talk.lost()
    assert state(talk) is QueueState.LOCKING
    assert talk.committed(query.queue, 5) == []
    talk.at(1_000)
    talk.heartbeat()
    assert rq.LockQueues in {type(each) for each in talk.effects}
    talk.locks(q(0))
    (query,) = talk.of(rq.QueryOffset)
    (pull,) = talk.committed(query.queue, 6)
    assert pull.offset == 6


def test_a_delivery_waiting_for_its_handler_does_not_begin_under_a_doubted_lock():
    talk = InOrder().owning()
    talk.pulled(q(0), found(0, 1))
    (delivery,) = talk.deliveries()
    talk.lost()
    assert state(talk) is QueueState.DOUBTED
    assert not delivery.begin()


def test_a_queue_paused_while_its_lock_is_doubted_stays_paused_when_that_is_confirmed():
    talk = InOrder().owning()
    talk.lost()
    talk._(talk.core.pause(None, talk.now_ms))
    assert state(talk) is QueueState.DOUBTED
    talk.at(1_000)
    talk.heartbeat()
    talk.locks(q(0))
    assert talk.committed(q(0), 0) == []
    assert state(talk) is QueueState.PAUSED
    talk._(talk.core.resume(None, talk.now_ms))
    assert state(talk) is QueueState.READING


def test_a_stale_offset_answer_of_a_granted_queue_changes_nothing():
    """It was requested in client mode, and the coordinator has granted the queue since."""
    talk = Member().looking(1)
    talk.found_group()
    talk.group_joined(assigned())
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    assert talk.committed(q(0), 9) == []
    assert state(talk) is QueueState.OPENING
    (pull,) = talk.opened(request, 4)
    assert pull.offset == 4
