"""Tests of consumption in order, event by event: locks, one batch at a time, failures, the handover of a
queue.
"""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.life import Phase
from libramq.errors import ConnectionLost, RequestTimeout
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import RETRY, SILENT, Conversation, found, nothing, q
from tests.client.consuming.examples import route


class InOrder(Conversation):
    """A conversation whose member locks its queues."""

    def __init__(self, **settings):
        super().__init__(orderly=True, **({"suspend_ms": 1000, "orderly_takeover_ms": 0} | settings))

    def locks(self, *granted, error=None, request=None):
        request = request or self.of(rq.LockQueues)[0]
        return self._(request.ask.done(error or granted, self.now_ms))

    def heard(self, *queues):
        return self._(self.core.hook_done(fx.Revoked(queues), self.now_ms))

    def may_begin(self, queue):
        return self.core.table.get(queue).lock.is_held

    def owning(self, queues=1, offset=0, *members):
        """Return a member that has locked its queues and pulls them."""
        self.joined(queues, *members)
        self.locks(*self.of(rq.LockQueues)[0].queues)
        for effect in self.of(rq.QueryOffset):
            self.committed(effect.queue, offset)
        return self


def succeed(talk):
    (delivery,) = talk.deliveries()
    delivery.begin()
    return talk.handled((delivery, HandlerOutcome.SUCCESS))


def test_a_queue_is_locked_before_anything_else():
    """One request covers all queues of a broker. Granted queues are owned, and their offsets are
    fetched.
    """
    talk = InOrder().joined(2)
    (request,) = talk.of(rq.LockQueues)
    assert (request.address, list(request.queues)) == ("a:1", [q(0), q(1)])
    assert talk.of(fx.Assigned) == []
    assert talk.core.owned() == []
    talk.locks(q(1))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(1),))]
    assert [effect.queue for effect in talk.of(rq.QueryOffset)] == [q(1)]
    assert talk.core.owned() == [q(1)]


def test_a_locked_queue_waits_a_moment_before_its_offset_is_fetched():
    """Java's client commits after it has released its locks; renewals meanwhile change nothing."""
    talk = InOrder(orderly_takeover_ms=50).joined(1)
    (request,) = talk.of(rq.LockQueues)
    talk.locks(q(0))
    assert talk.effects == [fx.Assigned((q(0),))]
    assert talk.locks(q(0), request=request) == []
    assert talk.at(49) == []
    assert [effect.queue for effect in talk.at(50)] == [q(0)]
    (pull,) = talk.committed(q(0), 7)
    assert pull.offset == 7


def test_a_refused_lock_is_requested_again_with_growing_pauses():
    """Its owner is about to release it; upstream would retry after 20 s."""
    talk = InOrder().joined(1)
    talk.locks()
    tries = []
    while len(tries) < 33:
        if talk.at(talk.now_ms + 50) and (asked := talk.of(rq.LockQueues)):
            tries.append(talk.now_ms)
            talk.locks(request=asked[0])
    assert tries[:2] == [100, 200]
    assert tries[32] - tries[31] == 500
    talk.at(talk.now_ms + 500)
    talk.locks(q(0))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0),))]


def test_one_portion_of_each_queue_is_handled_at_a_time():
    """The next one is delivered when the last one is done; queues do not wait for each other."""
    talk = InOrder(batch_size=2).owning(2)
    talk.pulled(q(0), found(0, 1, 2))
    (first,) = talk.deliveries()
    assert [message.queue_offset for message in first.messages] == [0, 1]
    talk.pulled(q(0), found(3))
    assert talk.deliveries() == []
    talk.pulled(q(1), found(0))
    assert len(talk.deliveries()) == 1
    talk.handled((first, HandlerOutcome.SUCCESS))
    (second,) = talk.deliveries()
    assert [message.queue_offset for message in second.messages] == [2, 3]


def test_a_failure_suspends_the_queue_and_counts():
    """The same messages are redelivered before any behind them, and nothing is committed past them."""
    talk = InOrder().owning(1)
    talk.pulled(q(0), found(5, 6))
    for times in range(3):
        (delivery,) = talk.deliveries()
        assert [(m.queue_offset, m.reconsume_times) for m in delivery.messages] == [(5, times)]
        delivery.begin()
        talk.handled((delivery, HandlerOutcome.LATER))
        assert talk.effects == []
        assert talk.at(talk.now_ms + 999) == []
        talk.at(talk.now_ms + 1)
    assert talk.deliveries()[0].messages[0].reconsume_times == 3
    succeed(talk)
    assert [m.queue_offset for m in talk.deliveries()[0].messages] == [6]


@pytest.mark.parametrize("sent_as", [0, -5, -(2**31)])
def test_a_message_that_failed_too_often_goes_to_the_retry_topic(sent_as):
    """Its count makes the broker put it among the dead letters, whatever its producer set; then its queue
    continues.
    """
    talk = InOrder(max_reconsume_times=1)
    talk.start()
    talk.routes(**{"T": route(1), RETRY: route(1)})
    talk.heartbeat()
    talk.members("me")
    talk.locks(q(0))
    talk.committed(q(0), 0)
    reply, messages = found(0, 1)
    messages[0].reconsume_times = sent_as
    talk.pulled(q(0), (reply, messages))
    for _ in range(2):
        (delivery,) = talk.deliveries()
        talk.handled((delivery, HandlerOutcome.LATER))
        sent = talk.of(rq.SendCopy)
        talk.at(talk.now_ms + 1000) if not sent else None
    (copy,) = sent
    assert (copy.queue, copy.message.queue_offset, copy.message.reconsume_times) == (
        q(0, topic=RETRY), 0, 1,
    )  # fmt: skip
    assert talk.deliveries() == []
    talk._(copy.ask.done(None, talk.now_ms))
    assert [m.queue_offset for m in talk.deliveries()[0].messages] == [1]


def test_a_copy_that_cannot_be_sent_suspends_the_queue():
    """The message is then redelivered in its place."""
    talk = InOrder(max_reconsume_times=0)
    talk.start()
    talk.routes(**{"T": route(1), RETRY: route(1)})
    talk.heartbeat()
    talk.members("me")
    talk.locks(q(0))
    talk.committed(q(0), 0)
    talk.pulled(q(0), found(0, 1))
    talk.handled((talk.deliveries()[0], HandlerOutcome.LATER))
    (copy,) = talk.of(rq.SendCopy)
    talk._(copy.ask.done(SILENT, talk.now_ms))
    assert talk.effects == []
    talk.at(1000)
    assert [m.queue_offset for m in talk.deliveries()[0].messages] == [0]


def test_without_a_maximum_a_message_is_retried_for_ever():
    """This is upstream's default for orderly consumption."""
    talk = InOrder().owning(1)
    talk.pulled(q(0), found(0))
    for _ in range(40):
        talk.handled((talk.deliveries()[0], HandlerOutcome.LATER))
        assert talk.of(rq.SendCopy) == []
        talk.at(talk.now_ms + 1000)


def test_a_handover_drains_commits_and_only_then_unlocks():
    """For the next owner everything that was handled is committed."""
    talk = InOrder().owning(2)
    talk.pulled(q(1), found(0, 1))
    (running,) = talk.deliveries()
    running.begin()
    talk.notified()
    talk.members("me", "you")
    assert talk.of(rq.UnlockQueues) == []
    talk.at(4000)  # However long the handler takes, within 20 s.
    assert talk.of(rq.UnlockQueues) == []
    talk.handled((running, HandlerOutcome.SUCCESS))
    (commit,) = talk.of(rq.CommitOffset)
    assert (commit.queue, commit.offset) == (q(1), 1)
    assert talk.of(rq.UnlockQueues) == []
    talk.commit_answered(commit)
    assert talk.effects == [rq.UnlockQueues("a:1", (q(1),))]


def test_two_commits_of_a_queue_are_never_under_way_at_once():
    """Brokers with many threads may process them in any order, and the offset would go back."""
    talk = InOrder(persist_ms=100).owning(2)
    talk.pulled(q(1), found(0, 1))
    succeed(talk)
    (second,) = talk.deliveries()
    second.begin()
    talk.at(100)
    (early,) = talk.of(rq.CommitOffset)
    talk.notified()
    talk.members("me", "you")
    talk.handled((second, HandlerOutcome.SUCCESS))
    assert talk.of(rq.CommitOffset) == []
    talk.commit_answered(early)
    (late,) = talk.of(rq.CommitOffset)
    assert (early.offset, late.offset) == (1, 2)
    talk.commit_answered(late)
    assert len(talk.of(rq.UnlockQueues)) == 1


def test_a_failed_last_commit_is_retried_once():
    """Then the queue is released without it, and the broker keeps the offset that it had."""
    talk = InOrder().owning(2)
    talk.pulled(q(1), found(0))
    succeed(talk)
    talk.notified()
    talk.members("me", "you")
    for _ in range(3):
        commits = talk.of(rq.CommitOffset)
        if commits:
            talk.commit_answered(commits[0], ok=False)
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]


def test_locks_are_renewed_every_20_s():
    """Each broker gets one request."""
    talk = InOrder(heartbeat_ms=60_000, rebalance_ms=600_000).owning(2)
    assert not any(isinstance(effect, rq.LockQueues) for effect in talk.at(19_999))
    talk.at(20_000)
    (request,) = talk.of(rq.LockQueues)
    assert list(request.queues) == [q(0), q(1)]
    talk.locks(q(0), q(1))
    assert talk.effects == []


def test_a_lock_held_by_another_member_loses_the_queue():
    """Pulled messages are dropped, results of running handlers ignored, nothing is committed; the lock is
    requested again.
    """
    talk = InOrder().owning(1)
    talk.pulled(q(0), found(0, 1))
    (running,) = talk.deliveries()
    running.begin()
    talk.at(20_000)
    talk.locks()
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    (request,) = talk.of(rq.LockQueues)
    assert talk.handled((running, HandlerOutcome.SUCCESS)) == []
    assert talk.core.owned() == []
    talk.locks(q(0), request=request)
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0),))]
    (pull,) = talk.committed(q(0), 7)
    assert pull.offset == 7


def test_a_lock_is_trusted_for_30_s():
    """If the broker does not answer for that long, no further handler begins."""
    talk = InOrder().owning(1)
    talk.pulled(q(0), found(0, 1, 2))
    talk.at(20_000)
    while talk.now_ms < 30_000:
        for request in talk.of(rq.LockQueues):
            talk.locks(error=RequestTimeout("x"), request=request)
        if talk.now_ms == 25_000:
            assert talk.may_begin(q(0))
        talk.at(talk.now_ms + 1000)
    for request in talk.of(rq.LockQueues):
        talk.locks(error=RequestTimeout("x"), request=request)
    assert not talk.may_begin(q(0))


@pytest.mark.parametrize(("meanwhile", "goes_on"), [(1, True), (None, True), (2, False)])
def test_after_a_lost_connection_the_lock_is_confirmed_first(meanwhile, goes_on):
    """If another member has read on meanwhile, we begin where it stopped."""
    talk = InOrder().owning(1)
    talk.pulled(q(0), found(0, 1))
    (running,) = talk.deliveries()
    talk.lost()
    talk.handled((running, HandlerOutcome.SUCCESS))
    assert talk.deliveries() == []
    assert talk.at(2_000)
    assert talk.of(rq.CommitOffset) == []
    talk.heartbeat()
    (request,) = talk.of(rq.LockQueues)
    talk.locks(q(0), request=request)
    assert len(talk.of(rq.QueryOffset)) == 1
    talk.committed(q(0), meanwhile)
    if goes_on:
        assert [m.queue_offset for m in talk.deliveries()[0].messages] == [1]
    else:
        assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
        assert len(talk.of(rq.LockQueues)) == 1


def test_a_connection_lost_during_a_handover_loses_the_queue():
    """The next owner may have it already, and our commit would set its offset back."""
    talk = InOrder().owning(2)
    talk.pulled(q(1), found(0))
    (running,) = talk.deliveries()
    running.begin()
    talk.notified()
    talk.members("me", "you")
    talk.lost()
    talk.handled((running, HandlerOutcome.SUCCESS))
    assert talk.of(rq.CommitOffset) == []
    assert talk.of(fx.Lost) == [fx.Lost((q(1),))]


def test_a_lock_granted_for_a_queue_given_up_is_released():
    """The lock request was still under way."""
    talk = InOrder().joined(2)
    (request,) = talk.of(rq.LockQueues)
    talk.notified()
    talk.members("me", "you")
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]
    assert talk.of(fx.Revoked) == []
    talk.locks(q(0), q(1), request=request)
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]
    assert [effect.queue for effect in talk.of(rq.QueryOffset)] == [q(0)]


def test_the_listener_runs_before_the_lock_is_released():
    """The lock waits no longer than the timeout."""
    talk = InOrder(has_revoke_hook=True, revoke_timeout_ms=3000).owning(4)
    talk.notified()
    talk.members("me", "you")
    assert talk.of(fx.Revoked) == [fx.Revoked((q(2), q(3)))]
    assert talk.of(rq.UnlockQueues) == []
    assert talk.heard(q(2)) == [rq.UnlockQueues("a:1", (q(2),))]
    assert talk.at(2999) == []
    assert rq.UnlockQueues("a:1", (q(3),)) in talk.at(3000)


def test_leaving_unlocks_before_it_unregisters():
    """The member commits, unlocks and unregisters, in this order."""
    talk = InOrder().owning(2)
    talk.pulled(q(0), found(0))
    succeed(talk)
    talk.stop()
    (commit,) = talk.of(rq.CommitOffset)
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]
    talk.commit_answered(commit)
    assert talk.effects == [rq.UnlockQueues("a:1", (q(0),)), rq.Unregister("a:1")]


def test_leaving_has_a_deadline_whatever_does_not_answer():
    """The handler, the listener or the commit may hang."""
    talk = InOrder(has_revoke_hook=True).owning(3)
    talk.pulled(q(0), found(0, 1))
    running = talk.deliveries()[0]
    running.begin()
    talk.stop(timeout_ms=1000)
    talk.at(1000)
    talk.at(5000)
    assert talk.core._phase is Phase.LEAVING


def test_a_queue_whose_offset_was_refused_is_not_announced_twice():
    """The queue starts again once it is locked again."""
    talk = InOrder().owning(1)
    talk.pulled(q(0), nothing(40, 21))
    (commit,) = talk.of(rq.CommitOffset)
    talk.commit_answered(commit)
    talk.locks(q(0))
    assert talk.of(fx.Assigned) == []
    assert len(talk.of(rq.QueryOffset)) == 1


def test_an_unreachable_broker_is_retried_in_a_second():
    """Its queues are not taken without their lock."""
    talk = InOrder().joined(1)
    talk.locks(error=ConnectionLost("x"))
    assert talk.of(rq.QueryOffset) == []
    talk.at(1000)
    assert len(talk.of(rq.LockQueues)) == 1


def test_a_copy_for_an_unrouted_retry_topic_goes_to_the_messages_broker():
    """The broker knows the topic before any name server does."""
    talk = InOrder(max_reconsume_times=0).owning(1)
    talk.pulled(q(0), found(0))
    talk.handled((talk.deliveries()[0], HandlerOutcome.LATER))
    (copy,) = talk.of(rq.SendCopy)
    assert (copy.queue, copy.address) == (q(0, topic=RETRY), "a:1")


def test_a_lock_is_released_where_it_was_taken():
    """The name server has forgotten the broker for a moment, and the lock would keep the queue for a
    minute.
    """
    talk = InOrder().owning(1, 0)
    talk.routes(T=route(1, brokers=("b",)))
    talk.heartbeat("b:1")
    talk.members("me", address="b:1")
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(0),))]


def test_an_unlock_lost_with_its_connection_is_repeated():
    """The broker may not have received it, and would keep the lock for the member when it returns."""
    talk = InOrder().owning(2, 0, "me")
    talk.notified()
    talk.members("me", "you")
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]
    talk.lost()
    talk.heartbeat()
    assert talk.of(rq.UnlockQueues) == [rq.UnlockQueues("a:1", (q(1),))]
    talk.lost()
    talk.heartbeat()
    assert talk.of(rq.UnlockQueues) == []
