"""Tests of the coordination: granted, opened, revoked and fenced queues; the lease; changes of the mode."""

import msgspec
import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.pulling.pulling import PULL_FAILED_MS
from libramq.codes import ResponseCode
from libramq.errors import ConnectFailed, ConnectionLost, HandlerTooSlow, RequestTimeout, SubscriptionsDiffer
from libramq.remoting.body.coordination import QueueGrant
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import found, nothing, q, route
from tests.client.consuming.coordinated import (
    FENCED,
    NOT_YET_GRANTED,
    TOPIC_NOT_EXIST,
    UNKNOWN_MEMBER,
    Member,
    assigned,
    client_mode,
    refusal,
)


def grants(*queues, epoch=1):
    return tuple(QueueGrant.of(queue, epoch) for queue in queues)


# Taking


def test_granted_queues_are_opened_and_pulled_from_the_committed_offset():
    """There is no pause and no lock. The listener gets all of them in one call, and the next poll names
    them.
    """
    talk = Member(orderly=True).member()
    talk.polled(assigned(q(0), q(1), epoch=3))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0), q(1)))]
    assert talk.of(rq.LockQueues) == []
    first, second = talk.of(rq.OpenQueue)
    assert (first.queue, first.address, first.claim) == (q(0), "a:1", talk.claim(3))
    assert talk.held() == {q(0): 3, q(1): 3}
    (pull,) = talk.opened(first, 42)
    assert (pull.offset, pull.claim) == (42, talk.claim(3))
    (question,) = talk.opened(second, None)
    assert isinstance(question, rq.MaxOffset)
    (pull,) = talk.start_at(q(1), 7)
    assert (pull.offset, pull.claim) == (7, talk.claim(3))


@pytest.mark.parametrize("orderly", [False, True])
def test_queues_opened_with_their_grant_are_pulled_at_once(orderly):
    """The coordinator opens the queues of its own broker; the member opens the others."""
    talk = Member(orderly=orderly).looking()
    talk.found_group()
    talk.group_joined(assigned(q(0), q(1), q(2), epoch=3, opened=[(q(0), 42), (q(1), None)]))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0), q(1), q(2)))]
    assert [(pull.queue, pull.offset, pull.claim) for pull in talk.of(rq.Pull)] == [(q(0), 42, talk.claim(3))]
    assert [request.queue for request in talk.of(rq.MaxOffset)] == [q(1)]
    assert [request.queue for request in talk.of(rq.OpenQueue)] == [q(2)]
    assert talk.held() == {q(0): 3, q(1): 3, q(2): 3}
    (pull,) = talk.start_at(q(1), 7)
    assert (pull.offset, pull.claim) == (7, talk.claim(3))


def test_a_queue_that_is_still_being_given_up_is_opened_once_it_is():
    """The coordinator's opening meanwhile is repeated: its offset may be older than the last commit."""
    talk = Member().holding(q(0))
    talk.busy(q(0), 0)
    talk.polled(assigned(revoke=[q(0)], epoch=2))
    talk.polled(assigned((q(0), 3), epoch=3, opened=[(q(0), 0)]))
    assert talk.of(rq.Pull) == talk.of(rq.OpenQueue) == []


def test_an_opening_ahead_of_its_grant_is_repeated_soon():
    """The pause is 10 ms, doubles each time, and is 200 ms at most."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    times = []
    for _ in range(7):
        (request,) = talk.of(rq.OpenQueue)
        talk.opened(request, refusal(NOT_YET_GRANTED))
        before = talk.now_ms
        while not talk.of(rq.OpenQueue):
            talk.at(talk.next_due_ms)
        times.append(talk.now_ms - before)
    assert times == [10, 20, 40, 80, 160, 200, 200]


def test_pulls_name_where_the_topic_begins_that_was_opened():
    """A slave may still have an earlier topic of that name. A later opening may name another offset."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 5, topic_start=1_000)
    (pull,) = talk.of(rq.Pull)
    assert pull.topic_start == 1_000
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, former_epoch=0, topic_start=2_000)
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, former_epoch=2, topic_start=2_000)
    (pull,) = talk.of(rq.Pull)
    assert (pull.offset, pull.topic_start) == (0, 2_000)


def test_messages_of_a_former_topic_are_not_taken():
    """Apache's slaves do not know where the topic begins, and serve the former one's messages."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, topic_start=1_002)
    talk.pulled(q(0), found(0, 1))  # Their physical offsets are 1,000 and 1,001.
    assert talk.deliveries() == []
    (pull,) = [each for each in talk.at(PULL_FAILED_MS) if isinstance(each, rq.Pull)]
    assert pull.offset == 0
    talk.pulled(q(0), found(2, 3))
    assert len(talk.deliveries()) == 2


@pytest.mark.parametrize(("topic_start", "is_lost"), [(0, False), (1_000, False), (1_001, True)])
def test_a_later_beginning_of_the_topic_shows_that_it_was_made_again(topic_start, is_lost):
    """The offset and the former opening may still match. Brokers forget old deletions: 0 is not later."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, topic_start=1_000)
    talk.pulled(q(0), found(0, 1))
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, former_epoch=1, topic_start=topic_start)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))] * is_lost


def test_a_queue_whose_broker_is_away_is_opened_on_its_return():
    """The queue stays with the member, because the coordinator has granted it."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, ConnectFailed("away"))
    assert talk.of(fx.Revoked) == talk.of(fx.Lost) == []
    (request,) = talk.at(10)
    talk.opened(request, 5)
    assert [pull.offset for pull in talk.of(rq.Pull)] == [5]


def test_a_claim_refused_by_a_fence_is_not_repeated():
    """A new claim is made instead."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, refusal(FENCED))
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    talk.polled(assigned(q(0), epoch=2, revoke=[q(3)]))
    assert [each.claim.epoch for each in talk.of(rq.OpenQueue)] == [2]


def released(*queues, epoch=1, is_committed=True):
    """Return the request that releases these queues."""
    released = grants(*queues, epoch=epoch)
    return rq.ReleaseQueues("a:1", "m1", released, uncommitted=() if is_committed else released)


def stays_refused(talk, code):
    """Repeat grant and refusal until the member releases the queue, or for 3 s."""
    for _ in range(30):
        talk.polled(assigned(q(0)))
        for request in talk.of(rq.OpenQueue):
            talk.opened(request, refusal(code))
        effects = talk.of(rq.ReleaseQueues)
        until_ms = talk.now_ms + 100
        while not effects and (talk.next_due_ms or until_ms) <= until_ms:
            talk.at(talk.next_due_ms)
            for request in talk.of(rq.OpenQueue):
                talk.opened(request, refusal(code))
            effects = talk.of(rq.ReleaseQueues)
        if effects:
            return effects
        talk.at(until_ms)
    return []


@pytest.mark.parametrize("code", [NOT_YET_GRANTED, FENCED, TOPIC_NOT_EXIST])
def test_a_claim_refused_for_two_seconds_is_released(code):
    """The member reports that it no longer holds the queue, and gets a new grant."""
    talk = Member().member()
    assert stays_refused(talk, code) == [released(q(0), is_committed=False)]
    assert 2_000 <= talk.now_ms <= 2_300
    assert talk.core.owned() == []
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 5)
    assert [pull.offset for pull in talk.of(rq.Pull)] == [5]
    assert talk.core.owned() == [q(0)]


def test_claims_that_are_refused_in_turn_do_not_keep_each_other_from_being_released():
    """The coordinator repeats a grant that the fence refused, beside one from a cut-off coordinator."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, refusal(FENCED))
    talk.polled(assigned(q(0), epoch=5))
    effects = []
    while released(q(0), is_committed=False) not in effects and talk.now_ms < 5_000:
        for request in talk.of(rq.OpenQueue):
            talk.opened(request, refusal(NOT_YET_GRANTED))
        effects = talk.of(rq.ReleaseQueues)
        talk.polled(assigned(q(0)))
        effects += talk.of(rq.ReleaseQueues)
        talk.at(talk.now_ms + 100)
    assert 2_000 <= talk.now_ms <= 2_300


def test_a_queue_read_under_its_last_claim_survives_a_refused_next_one():
    """The coordinator is notified that the new claim is refused; meanwhile the queue is still read."""
    talk = Member().holding(q(0))
    talk.polled(assigned(q(0), epoch=2))
    while not (effects := talk.of(rq.ReleaseQueues)):
        for request in talk.of(rq.OpenQueue):
            talk.opened(request, refusal(NOT_YET_GRANTED))
        effects = talk.of(rq.ReleaseQueues)
        if effects:
            break
        talk.at(talk.next_due_ms)
    assert effects == [released(q(0), epoch=2, is_committed=False)]
    assert talk.now_ms <= 2_300
    assert talk.of(fx.Lost) == []
    assert talk.core.owned() == [q(0)]


def test_a_queue_read_without_a_claim_is_released_when_its_first_one_stays_refused():
    """Its member allocated for itself before. The fence requires openings again, and has none of this
    queue.
    """
    talk = Member().holding(q(0))
    talk.polled(client_mode())
    talk.members("me")
    assert q(0) in talk.core.owned()
    reported = []
    talk.core.kernel.failed = lambda what, error: reported.append(error)
    assert stays_refused(talk, NOT_YET_GRANTED) == [released(q(0), is_committed=False)]
    assert q(0) not in talk.core.owned()
    assert reported == []


def test_a_queue_whose_broker_is_away_is_not_refused():
    """No other member could read it, and another claim would not help."""
    talk = Member().member()
    talk.polled(assigned(q(0)))
    while talk.now_ms < 3_000:
        for request in talk.of(rq.OpenQueue):
            talk.opened(request, ConnectFailed("away"))
        assert talk.of(rq.ReleaseQueues) == []
        talk.at(talk.next_due_ms)
    assert talk.core.owned() == [q(0)]


def test_an_operators_reset_of_granted_queues_is_left_to_the_broker():
    """It fences the member, which opens them anew."""
    talk = Member().holding(q(0))
    assert talk._(talk.core.offsets_set("T", {q(0): 0}, talk.now_ms)) == []
    assert talk.core.owned() == [q(0)]


def test_a_queue_of_a_recreated_topic_starts_over():
    """Nothing of it was committed before; its offsets now belong to other messages."""
    talk = Member().holding(q(0))
    (pull,) = talk.pulled(q(0), found(0, 1, 2))[-1:]
    talk.pull_failed(pull, TOPIC_NOT_EXIST)
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0)
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0)
    assert [pull.offset for pull in talk.of(rq.Pull)] == [0]


# Releases


def test_revoked_queues_are_drained_committed_and_released_together():
    """Prefetched messages are dropped, running handlers end, and other queues are not disturbed."""
    talk = Member().holding(q(0), q(1), q(2))
    done = [talk.busy(q(number), 0, 1, 2) for number in range(3)]
    talk.polled(assigned((q(2), 1), epoch=2, revoke=[q(0), q(1)]))
    assert talk.of(rq.ReleaseQueues) == talk.of(fx.Revoked) == []
    assert not done[0][1].begin()
    assert done[2][1].begin()
    assert talk.held() == {q(0): 1, q(1): 1, q(2): 1}
    talk.handled((done[0][0], HandlerOutcome.SUCCESS), (done[1][0], HandlerOutcome.SUCCESS))
    commits = talk.of(rq.CommitOffset)
    assert [(each.queue, each.offset, each.claim) for each in commits] == [
        (q(0), 1, talk.claim()),
        (q(1), 1, talk.claim()),
    ]
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0), q(1)))]
    talk.commit_answered(commits[0])
    assert talk.of(rq.ReleaseQueues) == []
    assert talk.commit_answered(commits[1]) == [rq.ReleaseQueues("a:1", "m1", grants(q(0), q(1)))]


def test_a_drained_queue_is_released_soon():
    """It is released after 5 ms, since the broker of another queue may not answer."""
    talk = Member().holding(q(0), q(1))
    for number in range(2):
        (delivery,) = talk.busy(q(number), 0)
        talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.polled(assigned(epoch=2, revoke=[q(0), q(1)]))
    first, _ = talk.of(rq.CommitOffset)
    assert talk.commit_answered(first) == []
    assert talk.at(talk.now_ms + 5) == [rq.ReleaseQueues("a:1", "m1", grants(q(0)))]


def test_a_drained_queue_is_released_as_soon_when_the_member_stops_meanwhile():
    """A stop does not cancel the end of that wait: the other queue's broker may never answer."""
    talk = Member().holding(q(0), q(1))
    for number in range(2):
        (delivery,) = talk.busy(q(number), 0)
        talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.polled(assigned(epoch=2, revoke=[q(0), q(1)]))
    first, _ = talk.of(rq.CommitOffset)
    assert talk.commit_answered(first) == []
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.ReleaseQueues) == []
    assert talk.at(talk.now_ms + 5) == [rq.ReleaseQueues("a:1", "m1", grants(q(0)), leaving=True)]


def test_an_idle_queue_is_released_in_the_same_turn():
    """No handler runs, and there is nothing to commit."""
    talk = Member().holding(q(0), q(1), offset=4)
    talk.polled(assigned(q(0), revoke=[q(1)]))
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", grants(q(1)))]
    assert talk.held() == {q(0): 1}


def test_a_revoked_queue_is_released_after_ten_seconds():
    """The handler still runs then, and the queue is released without its commit."""
    talk = Member(session_ms=60_000).holding(q(0))
    talk.busy(q(0), 0)
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    talk.at(9_999)
    assert talk.of(rq.ReleaseQueues) == []
    assert released(q(0), is_committed=False) in talk.at(10_000)


def without_master(**settings):
    """Return a member that has handled a message of queue 0, whose master is gone, and that is to give up
    the queue.
    """
    talk = Member(session_ms=60_000, **settings).holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.routes(T=route(slaves=True, masters=False))
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    return talk


def test_a_queue_whose_master_has_just_returned_is_committed_before_it_is_released():
    """The coordinator has seen the master already and the member has not: the next owner would begin too
    early.
    """
    talk = without_master()
    assert talk.of(rq.ReleaseQueues) == talk.of(fx.Lost) == []
    talk.at(1_500)
    talk.routes(T=route(slaves=True))
    (commit,) = [each for each in talk.at(2_000) if isinstance(each, rq.CommitOffset)]
    assert (commit.queue, commit.offset) == (q(0), 1)
    assert rq.ReleaseQueues("a:1", "m1", grants(q(0))) in [*talk.commit_answered(commit), *talk.at(2_010)]


def test_a_queue_whose_master_stays_away_is_released_after_ten_seconds():
    talk = without_master()
    assert talk.of(fx.Lost) == []
    assert released(q(0), is_committed=False) not in talk.at(9_999)
    effects = [*talk.at(10_000), *talk.at(10_010)]
    assert fx.Lost((q(0),)) in effects
    assert released(q(0), is_committed=False) in effects


def test_a_queue_whose_master_is_away_and_that_is_committed_was_not_lost():
    """The member gives it up as the coordinator demands, and its listener runs."""
    talk = Member(session_ms=60_000, has_revoke_hook=True).holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(2_000) if isinstance(each, rq.CommitOffset)]
    talk.commit_answered(commit)
    talk.routes(T=route(slaves=True, masters=False))
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    assert (talk.of(fx.Revoked), talk.of(fx.Lost)) == ([fx.Revoked((q(0),))], [])
    talk._(talk.core.hook_done(fx.Revoked((q(0),)), talk.now_ms))
    assert released(q(0)) in talk.effects


def test_a_member_that_stops_waits_for_no_master():
    """This holds before the stop and during it."""
    talk = without_master()
    talk.stop(timeout_ms=5_000)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert talk.of(rq.LeaveGroup) != []


def test_the_listener_runs_before_a_queue_is_released():
    """Its method is on_revoked."""
    talk = Member(has_revoke_hook=True).holding(q(0))
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert talk.of(rq.ReleaseQueues) == []
    talk._(talk.core.hook_done(fx.Revoked((q(0),)), talk.now_ms))
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", grants(q(0)))]


def test_handlers_and_listener_share_the_revoke_timeout():
    """The coordinator does not wait longer than the timeout that the member announced."""
    talk = Member(has_revoke_hook=True, revoke_timeout_ms=12_000, session_ms=60_000)
    talk.looking()
    talk.found_group()
    assert talk.question.header.lb_revoke_timeout_ms == 12_000
    talk.group_joined()
    talk.polled(assigned(q(0)))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0)
    (delivery,) = talk.busy(q(0), 0)
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    talk.at(9_000)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    (commit,) = talk.of(rq.CommitOffset)
    talk.commit_answered(commit)
    talk.at(11_999)
    assert talk.of(rq.ReleaseQueues) == []
    assert rq.ReleaseQueues("a:1", "m1", grants(q(0))) in talk.at(12_000)


def test_a_queue_granted_back_before_its_release_is_opened_again():
    """Another member joined and left meanwhile; the queue is not released at all."""
    talk = Member().holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    talk.polled(assigned((q(0), 1), epoch=3))
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = talk.of(rq.CommitOffset)
    talk.commit_answered(commit)
    assert talk.of(rq.ReleaseQueues) == []
    assert [each.claim for each in talk.of(rq.OpenQueue)] == [talk.claim()]


# Fences


@pytest.mark.parametrize("by", ["pull", "commit"])
def test_a_fenced_queue_is_lost_at_once(by):
    """The member commits nothing more of it and sends no release."""
    talk = Member().holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    if by == "pull":
        talk.pull_failed(talk.of(rq.Pull)[0], FENCED)
    else:
        talk.handled((delivery, HandlerOutcome.SUCCESS))
        (commit,) = [each for each in talk.at(100) if isinstance(each, rq.CommitOffset)]
        talk.commit_refused(commit, FENCED)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert talk.of(rq.ReleaseQueues) == talk.of(rq.CommitOffset) == talk.of(rq.OpenQueue) == []
    assert talk.core.owned() == []
    assert talk.handled((delivery, HandlerOutcome.SUCCESS)) == []


def test_a_commit_that_is_fenced_while_its_queue_leaves_ends_it():
    """The coordinator has granted it to another member."""
    talk = Member().holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    (commit,) = talk.of(rq.CommitOffset)
    talk.commit_refused(commit, FENCED)
    assert talk.of(fx.Lost) == talk.of(rq.ReleaseQueues) == []
    assert talk.held() == {q(0): 1}


def test_a_later_epoch_of_a_queue_of_ours_is_opened_while_it_is_read():
    """Prefetched messages stay. A pull that our own opening fenced is sent again under the new claim."""
    talk = Member().holding(q(0))
    talk.pulled(q(0), found(0, 1))
    first, second = talk.deliveries()
    assert first.begin()
    (pull,) = talk.of(rq.Pull)
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    assert talk.of(fx.Assigned) == talk.of(fx.Revoked) == talk.of(fx.Lost) == []
    talk.pull_failed(pull, FENCED)
    assert talk.effects == []
    (again,) = talk.opened(request, 0)
    assert (again.offset, again.claim) == (2, talk.claim(2))
    assert second.begin()
    talk.handled((first, HandlerOutcome.SUCCESS), (second, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(100) if isinstance(each, rq.CommitOffset)]
    assert (commit.offset, commit.claim) == (2, talk.claim(2))


def test_a_pull_that_is_fenced_after_our_opening_was_answered_goes_out_again():
    """The two answers arrived in the opposite order."""
    talk = Member().holding(q(0))
    (pull,) = talk.of(rq.Pull)
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    assert talk.opened(request, 0) == []
    (again,) = talk.pull_failed(pull, FENCED)
    assert again.claim == talk.claim(2)
    talk.pull_failed(again, FENCED)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]


def test_a_coordinator_with_an_old_epoch_costs_no_queues():
    """It was away and does not know that another one has granted since; that counts only if the fence has
    also forgotten it.
    """
    talk = Member().member()
    talk.polled(assigned(q(0), epoch=9))
    (request,) = talk.of(rq.OpenQueue)
    (pull,) = talk.opened(request, 0)
    talk.polled(assigned(q(0), epoch=3))
    assert talk.of(rq.OpenQueue) == []
    assert talk.held() == {q(0): 9}
    talk.pull_failed(pull, NOT_YET_GRANTED)
    assert [each.claim.epoch for each in talk.of(rq.OpenQueue)] == [9]
    talk.polled(assigned(q(0), epoch=4))
    (request,) = talk.of(rq.OpenQueue)
    assert request.claim.epoch == 4
    (pull,) = talk.opened(request, 0)
    assert pull.claim.epoch == 4


@pytest.mark.parametrize("committed", [5, None])
def test_a_queue_whose_committed_offset_moved_starts_over(committed):
    """Another member has read on, or the offset was removed: prefetched messages are useless."""
    talk = Member().holding(q(0), offset=3)
    (waiting,) = talk.busy(q(0), 3, started=0)
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, committed)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0),))]
    assert not waiting.begin()
    (request,) = talk.of(rq.OpenQueue)
    (pull,) = talk.opened(request, 5)
    assert pull.offset == 5


@pytest.mark.parametrize("former_epoch", [0, 2])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(former_epoch):
    """The offset fits by chance: the messages are of the deleted topic, which began with 0 as well.

    The fence has forgotten our opening together with that topic; or our request to open arrived twice, and
    the answer is that to the first.
    """
    talk = Member().holding(q(0))
    talk.pulled(q(0), found(0))
    (delivery,) = talk.deliveries()
    assert delivery.begin()
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.opened(request, 0, former_epoch=former_epoch)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    (request,) = talk.of(rq.OpenQueue)
    (pull,) = talk.opened(request, 0, former_epoch=2)
    assert pull.offset == 0
    assert [each for each in talk.at(talk.now_ms + 1000) if isinstance(each, rq.CommitOffset)] == []


@pytest.mark.parametrize(("recovered_end", "is_lost"), [(0, True), (1, True), (2, False), (3, False)])
def test_who_has_read_what_the_brokers_disk_has_lost_begins_again(recovered_end, is_lost):
    """Nothing was committed, so the offset fits; but other messages may have the offsets of those that it
    read.
    """
    talk = Member().holding(q(0))
    talk.pulled(q(0), found(0, 1))
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, former_epoch=1, recovered_end=recovered_end)
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))] * is_lost


def test_a_fence_that_knows_our_opening_lets_us_continue():
    talk = Member().holding(q(0))
    talk.pulled(q(0), found(0))
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0, former_epoch=1)
    assert talk.of(fx.Lost) == []
    assert talk.held() == {q(0): 2}


def test_a_fence_that_lost_its_opening_gets_it_again():
    """It answers a pull with NOT_YET_GRANTED, because its file was lost."""
    talk = Member().holding(q(0), offset=2)
    (pull,) = talk.of(rq.Pull)
    (request,) = talk.pull_failed(pull, NOT_YET_GRANTED)
    (pull,) = talk.opened(request, 2)
    assert (pull.offset, pull.claim) == (2, talk.claim())


def test_every_commit_has_a_claim():
    """A member that allocated for itself commits only once the queue is open, and repeats a commit that
    was fenced before.
    """
    talk = Member().looking(1)
    talk.found_group()
    talk.group_joined(client_mode())
    talk.members("me")
    talk.committed(q(0), 0)
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(1000) if isinstance(each, rq.CommitOffset)]
    assert commit.claim is None
    talk.polled(assigned(q(0), epoch=5))
    (request,) = talk.of(rq.OpenQueue)
    talk.commit_refused(commit, FENCED)
    assert talk.of(fx.Lost) == []
    assert [each for each in talk.at(talk.now_ms + 999) if isinstance(each, rq.CommitOffset)] == []
    talk.opened(request, 0)
    (commit,) = [each for each in talk.at(talk.now_ms + 1000) if isinstance(each, rq.CommitOffset)]
    assert (commit.offset, commit.claim) == (1, talk.claim(5))


# Commits


def test_changed_offsets_are_committed_every_tenth_of_a_second():
    """Unchanged offsets are not repeated, since no commit of another member can follow ours."""
    talk = Member(persist_ms=1_000).holding(q(0), q(1))
    talk.at(1_000)
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(1_100) if isinstance(each, rq.CommitOffset)]
    talk.commit_answered(commit)
    later = talk.at(9_000)
    assert [each for each in later if isinstance(each, rq.CommitOffset)] == []


def test_a_member_whose_offsets_are_all_committed_is_not_woken_to_commit():
    """A thousand in one process would wake it ten thousand times a second. A refused commit is repeated."""
    talk = Member(persist_ms=1_000).holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(1_000) if isinstance(each, rq.CommitOffset)]
    talk.commit_answered(commit, ok=False)
    (commit,) = [each for each in talk.at(1_100) if isinstance(each, rq.CommitOffset)]
    talk.commit_answered(commit)
    assert ticks(talk, until_ms=9_100) < 10
    talk.pulled(q(0), found(1))
    talk.handled(*((each, HandlerOutcome.SUCCESS) for each in talk.deliveries()))
    (commit,) = [each for each in talk.at(9_200) if isinstance(each, rq.CommitOffset)]
    assert commit.offset == 2


@pytest.mark.parametrize("rested_ms", [0, 1_000])
def test_a_member_that_allocates_for_itself_goes_on_committing(rested_ms):
    """A stock member has joined; the others then commit less often, and unchanged offsets as well."""
    talk = Member(persist_ms=1_000).holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = [each for each in talk.at(1_000) if isinstance(each, rq.CommitOffset)]
    talk.commit_answered(commit)
    talk.at(1_000 + rested_ms)
    talk.polled(client_mode())
    commits = [each for each in talk.at(9_000) if isinstance(each, rq.CommitOffset)]
    assert [(each.offset, each.claim) for each in commits] == [(1, None)]


def ticks(talk, until_ms):
    """Let time pass; return how often the member was due."""
    count = 0
    while (due_ms := talk.next_due_ms) is not None and due_ms <= until_ms:
        talk.core.kernel.deadlines.run(due_ms)
        talk.now_ms = due_ms
        talk.core.settle()
        count += 1
    talk.now_ms = until_ms
    return count


def test_a_queue_has_one_commit_under_way():
    """A broker with many threads may process two commits in any order."""
    talk = Member().holding(q(0))
    (first,) = talk.busy(q(0), 0)
    talk.handled((first, HandlerOutcome.SUCCESS))
    talk.at(1_000)
    (commit,) = talk.of(rq.CommitOffset)
    talk.pulled(q(0), found(1))
    talk.handled(*((each, HandlerOutcome.SUCCESS) for each in talk.deliveries()))
    assert [each for each in talk.at(2_000) if isinstance(each, rq.CommitOffset)] == []
    talk.commit_answered(commit)
    assert [each.offset for each in talk.at(2_100) if isinstance(each, rq.CommitOffset)] == [2]


# The lease


def asleep(session_ms=3_000):
    """Return a member that was stopped for a minute, with one message handled and another that waits."""
    talk = Member(session_ms=session_ms).holding(q(0))
    done, waiting = talk.busy(q(0), 0, 1)
    talk.handled((done, HandlerOutcome.SUCCESS))
    talk.now_ms += 60_000
    return talk, waiting


def test_a_member_that_wakes_up_starts_no_handler_and_commits_nothing():
    """The coordinator may have reassigned its queues; only its answer can tell."""
    talk, waiting = asleep()
    assert not waiting.begin()
    talk.handled((waiting, HandlerOutcome.SKIPPED))
    assert talk.deliveries() == []
    assert talk.pulled(q(0), found(2))[-1].offset == 3
    assert talk.deliveries() == []
    assert not [each for each in talk.at(talk.now_ms + 100) if isinstance(each, rq.CommitOffset)]


def test_a_member_whose_lease_is_renewed_continues():
    """The coordinator has waited, or was away as well."""
    talk, waiting = asleep()
    assert not waiting.begin()
    talk.handled((waiting, HandlerOutcome.SKIPPED))
    talk.polled(ConnectionLost("after a minute"))
    talk.polled(assigned(q(0)))
    (delivery,) = talk.deliveries()
    assert delivery.begin()
    assert [each.offset for each in talk.at(talk.now_ms + 100) if isinstance(each, rq.CommitOffset)] == [1]


def test_an_answer_from_before_the_sleep_renews_nothing():
    """The answer waited in the socket; the lease counts from the moment the request was sent."""
    talk, waiting = asleep()
    talk.polled(assigned(q(0), epoch=1, revoke=[q(3)]))
    assert not waiting.begin()
    talk.polled(assigned(q(0)))
    assert waiting.begin()


def test_such_an_answer_does_not_end_the_trouble():
    """The end of the lease is reported once, and once that it is renewed."""
    talk, _ = asleep()
    assert [type(each.error) for each in talk.at(talk.now_ms) if isinstance(each, fx.Trouble)] == [
        RequestTimeout
    ]
    talk.polled(assigned(q(0)))
    assert talk.of(rq.SendHeartbeat) == []
    assert [each for each in talk.at(talk.now_ms) if isinstance(each, fx.Trouble)] == []
    talk.polled(assigned(q(0)))
    assert [each.lease_ended for each in talk.of(rq.SendHeartbeat)] == [False]


def test_an_expelled_member_loses_everything_and_joins_again():
    """Its join names its former member id, so that a new coordinator does not wait for that member."""
    talk, _ = asleep()
    talk.polled(refusal(UNKNOWN_MEMBER))
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert talk.of(rq.CommitOffset) == []
    join = talk.question
    assert (join.header.lb_member, join.body.held) == ("m1", [])
    talk.group_joined(member="m2")
    talk.polled(assigned(q(0), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    assert request.claim == talk.claim(2, "m2")


def test_a_queue_revoked_after_the_lease_waits_with_its_commit():
    """The commit is sent when the lease is valid again."""
    talk, _ = asleep()
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    assert talk.of(rq.CommitOffset) == talk.of(rq.ReleaseQueues) == []
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    (commit,) = talk.of(rq.CommitOffset)
    assert talk.commit_answered(commit) == [rq.ReleaseQueues("a:1", "m1", grants(q(0)))]


def test_a_member_consumes_until_its_lease_ends_while_the_coordinator_is_away():
    """It does not consume for a millisecond longer."""
    talk = Member(session_ms=3_000).holding(q(0))
    waiting = talk.busy(q(0), *range(5), started=0)
    talk.polled(ConnectionLost("down"))
    talk.polled(ConnectFailed("down"))
    talk.at(2_999)
    assert waiting[0].begin()
    talk.at(3_000)
    assert not waiting[1].begin()


# Handlers that run too long


def test_a_handler_that_runs_too_long_costs_the_membership_until_it_is_done():
    """If its coordinator is of 0.1.0: its queues go to other members, and the reason is reported."""
    talk = Member(max_processing_ms=1_000, session_ms=600_000).holding(q(0), q(1))
    running, other = talk.busy(q(0), 0), talk.busy(q(1), 0)
    talk.at(500)
    talk.handled((other[0], HandlerOutcome.SUCCESS))
    talk.at(1_000)
    assert talk.core.owned() == [q(0), q(1)]
    talk.at(1_100)
    assert talk.of(fx.Lost) == [fx.Lost((q(0), q(1)))]
    assert talk.of(rq.LeaveGroup) == [rq.LeaveGroup("a:1", "m1", "processing_timeout")]
    (trouble,) = talk.of(fx.Trouble)
    assert (type(trouble.error), trouble.keeps_out) == (HandlerTooSlow, False)
    assert talk.of(rq.CommitOffset)[1:] == []
    assert [each for each in talk.at(10_000) if isinstance(each, rq.FindGroup)] == []
    talk.handled((running[0], HandlerOutcome.SUCCESS))
    assert len(talk.of(rq.FindGroup)) == 1


def test_a_handler_that_never_ends_is_abandoned_and_its_member_returns():
    """It is abandoned at its deadline, and the member returns; its late result counts for nothing."""
    talk = Member(max_processing_ms=1_000, consume_timeout_ms=2_000, session_ms=600_000).holding(q(0), q(1))
    (running,) = talk.busy(q(0), 0, started=1)
    talk.at(1_100)
    assert talk.of(rq.LeaveGroup) == [rq.LeaveGroup("a:1", "m1", "processing_timeout")]
    assert [each for each in talk.at(2_000) if isinstance(each, rq.FindGroup)] == []
    talk.at(2_200)
    assert talk.of(fx.Abandon) == [fx.Abandon((running,))]
    assert len(talk.of(rq.FindGroup)) == 1
    assert talk.of(rq.SendBack) == []  # Its queue's next owner delivers it.
    assert talk.handled((running, HandlerOutcome.SUCCESS)) == []
    assert talk.at(6_000) == []


def slow_member(**settings):
    """A member of which one handler is overdue; its coordinator knows what that means."""
    talk = Member(max_processing_ms=1_000, session_ms=600_000, **settings).holding(q(0), q(1))
    talk.polled(msgspec.structs.replace(assigned(q(0), q(1)), knows_slow=True))
    (running,) = talk.busy(q(0), 0)
    talk.at(1_100)
    return talk, running


def test_a_slow_member_says_so_and_goes_on():
    """Its success counts, and the member reports that it is no longer slow."""
    talk, running = slow_member()
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", (), slow=True)]
    assert talk.core.owned() == [q(0), q(1)]
    talk.handled((running, HandlerOutcome.SUCCESS))
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", ())]
    assert talk.of(rq.SendBack) == talk.of(rq.LeaveGroup) == []
    talk.at(1_300)
    assert [each.offset for each in talk.of(rq.CommitOffset)] == [1]


def test_what_a_slow_handler_has_is_sent_back_when_its_queue_is_revoked():
    """The member is slow until the handler returns, which may be never: until consume_timeout_ms at most."""
    talk, running = slow_member(consume_timeout_ms=3_000)
    talk.polled(msgspec.structs.replace(assigned(epoch=2, revoke=[q(0), q(1)]), knows_slow=True))
    assert talk.of(fx.Abandon) == [fx.Abandon((running,))]
    (sent,) = talk.of(rq.SendBack)
    talk._(sent.ask.done(None, talk.now_ms))
    assert talk.of(rq.CommitOffset)[-1].offset == 1
    assert talk.question.body.slow
    talk.at(3_400)
    assert talk.of(rq.ReleaseQueues)[-1].slow is False
    assert talk.handled((running, HandlerOutcome.SUCCESS)) == []


# Modes


def test_in_client_mode_members_allocate_like_stock_clients():
    """Queues that the strategy leaves with the member continue without a break, and so do the polls."""
    talk = Member().holding(q(0), q(1), count=4)
    (waiting,) = talk.busy(q(0), 0, started=0)
    talk.polled(client_mode(9))
    assert talk.of(rq.FetchConsumerList) == [rq.FetchConsumerList("a:1")]
    assert talk.held() == {q(0): 0, q(1): 0}
    assert talk.question.epoch == 9
    talk.members("me", "you")
    assert talk.of(fx.Revoked) == talk.of(fx.Assigned) == []
    talk.now_ms += 60_000
    assert waiting.begin()
    (pull,) = [each for each in talk.pulled(q(1), found(0)) if isinstance(each, rq.Pull)]
    assert pull.claim is None


def test_in_client_mode_a_queue_waiting_to_be_reopened_continues():
    """Its fence had forgotten the member; members that allocate for themselves need no opening."""
    talk = Member().holding(q(0), offset=2)
    (pull,) = talk.of(rq.Pull)
    (request,) = talk.pull_failed(pull, NOT_YET_GRANTED)
    talk.opened(request, refusal(NOT_YET_GRANTED))
    talk.polled(client_mode(9))
    (pull,) = talk.of(rq.Pull)
    assert (pull.offset, pull.claim) == (2, None)


def test_in_client_mode_queues_in_order_are_locked():
    """Their broker keeps them for the member until then, and handlers continue."""
    talk = Member(orderly=True, rebalance_ms=600_000).holding(q(0), offset=3)
    talk.polled(client_mode(2))
    (request,) = talk.of(rq.LockQueues)
    talk.pulled(q(0), found(3))
    assert len(talk.deliveries()) == 1
    talk._(request.ask.done([q(0)], talk.now_ms))
    assert talk.of(fx.Lost) == []


def test_in_client_mode_a_queue_whose_lock_is_refused_is_lost():
    talk = Member(orderly=True, rebalance_ms=600_000).holding(q(0), offset=3)
    talk.polled(client_mode(2))
    (request,) = talk.of(rq.LockQueues)
    talk._(request.ask.done([], talk.now_ms))
    assert [each.queues for each in talk.of(fx.Lost)] == [(q(0),)]


def test_back_under_epochs_locks_are_released_and_queues_continue():
    """The queues are opened while they are being pulled."""
    talk = Member(orderly=True, rebalance_ms=600_000, orderly_takeover_ms=0).looking(1)
    talk.found_group()
    talk.group_joined(client_mode())
    talk.members("me")
    (request,) = talk.of(rq.LockQueues)
    talk._(request.ask.done([q(0)], talk.now_ms))
    talk.committed(q(0), 0)
    assert len(talk.of(rq.Pull)) == 1
    assert talk.polled(client_mode(2))[-1].body.held == [QueueGrant.of(q(0), 0)]
    talk.polled(assigned(q(0), epoch=3))
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(0),))]
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 0)
    talk.busy(q(0), 0)
    assert talk.of(rq.Pull)[0].claim == talk.claim(3)


def test_a_late_member_list_is_ignored():
    """The list was requested in client mode."""
    talk = Member().looking(2)
    talk.found_group()
    talk.group_joined(client_mode())
    assert len(talk.of(rq.FetchConsumerList)) == 1
    talk.polled(assigned(q(0), epoch=3))
    assert talk.members("me") == []
    assert talk.core.owned() == [q(0)]
    assert talk.notified() == []


def test_a_round_that_a_coordinator_interrupts_does_not_keep_later_ones_from_beginning():
    """Its list arrives while the coordinator allocates. The member used to wait for that list for ever."""
    talk = Member().looking(2)
    talk.found_group()
    talk.group_joined(client_mode())
    talk.polled(assigned(q(0), epoch=3))
    assert talk.members("me") == []
    talk.polled(client_mode(4))
    assert len(talk.of(rq.FetchConsumerList)) == 1
    talk.members("me")
    assert talk.core.owned() == [q(0), q(1)]


# Stopping


def test_a_graceful_stop_commits_leaves_and_unregisters():
    """It does so in this order. Idle queues are released at once, and leaving frees the rest."""
    talk = Member().holding(q(0), q(1))
    (delivery,) = talk.busy(q(0), 0)
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", grants(q(1)), leaving=True)]
    assert talk.of(rq.LeaveGroup) == []
    talk.polled(assigned(q(0), q(1), epoch=2))
    assert talk.of(rq.PollGroup)[-1].body.leaving
    assert talk.of(rq.OpenQueue) == []
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    (commit,) = talk.of(rq.CommitOffset)
    (leave,) = talk.commit_answered(commit)
    assert leave == rq.LeaveGroup("a:1", "m1", "member_left", grants(q(0)))
    (unregister,) = talk._(leave.ask.done(None, talk.now_ms))
    assert unregister == rq.Unregister("a:1")
    assert talk._(unregister.ask.done(None, talk.now_ms)) == [fx.Stopped()]


def test_idle_queues_are_released_while_a_slow_handler_runs():
    """The notice of leaving does not wait for the first release; the last queue goes with the goodbye."""
    talk = Member().holding(q(0), q(1), q(2))
    busy = [talk.busy(q(number), 0)[0] for number in range(3)]
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", (), leaving=True)]
    for number in (2, 0):
        talk.handled((busy[number], HandlerOutcome.SUCCESS))
        (commit,) = talk.of(rq.CommitOffset)
        assert talk.commit_answered(commit) == [
            rq.ReleaseQueues("a:1", "m1", grants(q(number)), leaving=True)
        ]
    talk.handled((busy[1], HandlerOutcome.SUCCESS))
    (commit,) = talk.of(rq.CommitOffset)
    assert talk.commit_answered(commit) == [rq.LeaveGroup("a:1", "m1", "member_left", grants(q(1)))]


def test_an_idle_member_only_unregisters():
    """Its commits have been sent; a leave request besides would be one too many."""
    talk = Member().holding(q(0), q(1))
    for number in range(2):
        (delivery,) = talk.busy(q(number), 0)
        talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.ReleaseQueues) == []
    first, second = talk.of(rq.CommitOffset)
    assert talk.commit_answered(first) == []
    assert talk.commit_answered(second) == [rq.LeaveGroup("a:1", "m1", "member_left", grants(q(0), q(1)))]


def test_a_queue_with_an_unacknowledged_commit_is_released_as_not_committed():
    talk = Member().holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.polled(assigned(epoch=2, revoke=[q(0)]))
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    while commits := talk.of(rq.CommitOffset):
        talk.commit_answered(commits[0], ok=False)
    assert talk.of(rq.ReleaseQueues) == [released(q(0), is_committed=False)]


def test_a_member_that_stops_during_a_handler_releases_its_queue_as_not_committed():
    talk = Member().holding(q(0), q(1))
    talk.busy(q(0), 0)
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.ReleaseQueues) == [rq.ReleaseQueues("a:1", "m1", grants(q(1)), leaving=True)]
    talk.at(talk.now_ms + 5_000)
    assert talk.of(rq.LeaveGroup) == [rq.LeaveGroup("a:1", "m1", "member_left")]


def test_a_static_member_keeps_its_queues_when_it_stops():
    """It commits, and may be back within its session."""
    talk = Member(instance_id="left").holding(q(0))
    (delivery,) = talk.busy(q(0), 0)
    talk.handled((delivery, HandlerOutcome.SUCCESS))
    talk.stop()
    (commit,) = talk.of(rq.CommitOffset)
    assert talk.commit_answered(commit) == [rq.Unregister("a:1")]


# Duplicates


def test_redeliveries_after_a_move_are_counted_and_reported():
    """Messages that the member had handled itself do not count. The count is cleared once the coordinator
    has acknowledged it.
    """
    talk = Member().holding(q(0))
    deliveries = talk.busy(q(0), 0, 1, 2, started=0)
    talk.handled(*((each, HandlerOutcome.SUCCESS) for each in deliveries))
    talk.pulled(q(0), refusal(FENCED), claim=talk.claim())
    talk.polled(assigned((q(0), 2), epoch=2))
    (request,) = talk.of(rq.OpenQueue)
    talk.opened(request, 1)
    talk.pulled(q(0), found(1, 2, 3))
    talk.polled(assigned((q(0), 2), epoch=3))
    assert talk.question.body.duplicates == 2
    talk.polled(assigned((q(0), 2), epoch=4))
    assert talk.question.body.duplicates == 0
    talk.pulled(q(0), nothing(4))


# Problems of the group


def test_a_warning_of_the_coordinator_is_reported_once_per_occurrence():
    """The consumer continues: it is the group that loses messages."""
    talk = Member().holding(q(0))
    talk.polled(assigned(q(0), warning="of T, alice wants 'a' and bob wants 'b'"))
    (trouble,) = talk.of(fx.Trouble)
    talk.polled(assigned(q(0), epoch=2, warning="of T, alice wants 'a' and bob, carol want 'b'"))
    assert talk.of(fx.Trouble) == []
    assert (type(trouble.error), trouble.keeps_out) == (SubscriptionsDiffer, False)
    assert "bob wants 'b'" in str(trouble.error)
    talk.polled(assigned(q(0), epoch=3))
    assert talk.of(fx.Trouble) == talk.of(fx.Recovered) == []
    talk.polled(assigned(q(0), epoch=4, warning="again"))
    assert len(talk.of(fx.Trouble)) == 1
    assert talk.core.owned() == [q(0)]


# A cluster with Apache's brokers


def mixed():
    """Return a member of a group with queues at a broker of ours and at one of Apache's: it allocates for
    itself.
    """
    talk = Member()
    talk.start()
    talk.routes(T=route(2, brokers=("a", "b")))
    talk.heartbeat("a:1", offers=True)
    talk.heartbeat("b:1", offers=False)
    return talk


@pytest.mark.parametrize("first", ["its connection", "its route"])
def test_the_coordinator_is_looked_for_when_the_last_apache_broker_leaves(first):
    """The member may first see the end of its connection, or that name servers no longer know it."""
    talk = mixed()
    assert talk.core.coordination.allocates
    gone = [lambda: talk.lost("b:1"), lambda: talk.routes(T=route(2, brokers=("a",)))]
    for step in gone if first == "its connection" else reversed(gone):
        step()
    talk.at(talk.now_ms + 1_000)
    assert not talk.core.coordination.allocates
    assert isinstance(talk.question, rq.FindGroup | rq.JoinGroup)


def test_our_brokers_know_of_a_member_that_allocates_beside_an_apache_broker():
    """LibraMQ's brokers treat it as a stock member, so they accept its commits, which have no epoch."""
    talk = mixed()
    assert {each.address: each.coordinated for each in talk.of(rq.SendHeartbeat)} == {
        "a:1": False,
        "b:1": False,
    }
    talk.routes(T=route(2, brokers=("a",)))
    assert [(each.address, each.coordinated) for each in talk.of(rq.SendHeartbeat)] == [("a:1", True)]


@pytest.mark.parametrize("brokers", [("a",), ("a", "b")])
def test_our_brokers_know_of_a_member_that_their_coordinator_refuses(brokers):
    """It allocates for itself, as a later version may; otherwise its commits were refused for ever."""
    talk = Member().looking(brokers=brokers)
    talk.found_group(refusal(ResponseCode.VERSION_NOT_SUPPORTED))
    assert [each.coordinated for each in talk.of(rq.SendHeartbeat)] == [False] * len(brokers)
    assert len(talk.of(rq.FetchConsumerList)) == 1


def test_apache_brokers_alone_need_not_know_who_allocates():
    """No heartbeat is sent but the regular ones."""
    talk = Member()
    talk.start()
    talk.routes(T=route(2, brokers=("a", "b")))
    talk.heartbeat("a:1", offers=False)
    assert talk.of(rq.SendHeartbeat) == []
    talk.heartbeat("b:1", offers=False)
    assert talk.of(rq.SendHeartbeat) == []


def test_no_broker_coordinates_beside_an_apache_broker():
    talk = mixed()
    talk.at(talk.now_ms + 30_000)
    assert talk.core.coordination.allocates


def test_an_apache_broker_that_is_only_away_is_awaited():
    """Its connection ended, but it is registered: it may be back in a moment, and everything would change
    again.
    """
    talk = mixed()
    talk.lost("b:1")
    talk.routes(T=route(3, brokers=("a", "b")))
    talk.at(talk.now_ms + 50)
    assert talk.core.coordination.allocates
