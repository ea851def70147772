"""Tests of internal failures: effects decided before one are done, and nothing is done twice."""

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_kernel import FAILED_AGAIN_MS, ConsumerKernel
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, q
from tests.client.consuming.test_orderly import InOrder
from tests.client.consuming.test_pause import Pausing


class Clock:
    now_ms = 0

    def monotonic_ms(self):
        return self.now_ms

    def wall_ms(self):
        return self.now_ms


def failing_once(function, *, at):
    """Return a function that fails the first time that `at` holds for its arguments."""
    left = [1]

    def call(*arguments):
        if left and at(*arguments):
            left.pop()
            raise ValueError("a bug")
        function(*arguments)

    return call


def test_a_deadline_whose_action_fails_is_done_again_and_its_effects_are_kept():
    clock, reported = Clock(), []
    kernel = ConsumerKernel(clock, lambda what, error: reported.append(what))

    def act(now_ms):
        kernel.effects.add(fx.Recovered())
        if now_ms == 1:
            raise ValueError("a bug")

    kernel.deadlines.set(1, act)
    others = []
    kernel.deadlines.set(1, others.append)
    for clock.now_ms in (1, FAILED_AGAIN_MS, 1 + FAILED_AGAIN_MS, 5 * FAILED_AGAIN_MS):
        kernel.deadlines.run(clock.now_ms)
    (what,) = reported
    assert "act failed, and is retried" in what
    assert kernel.effects.pending == [fx.Recovered(), fx.Recovered()]
    assert others == [1]


def test_a_queue_whose_event_fails_keeps_what_it_has_decided_and_the_others_get_theirs():
    """Its messages were dropped with the exception, and no handler ever got them."""
    talk = Pausing().pulling(2)
    talk.pause()
    for number in (0, 1):
        talk.pulled(q(number), found(0))
    reported = []
    talk.core.kernel.failed = lambda what, error: reported.append(what)
    pulling = talk.core.own.pulling
    pulling.pull = failing_once(pulling.pull, at=lambda owned, _: owned.queue == q(0))
    talk.resume()
    assert [each.owned.queue for each in talk.deliveries()] == [q(0), q(1)]
    assert [pull.queue for pull in talk.of(rq.Pull)] == [q(1)]
    assert reported == ["Resumed of T@a:0 could not be handled"]


def test_a_result_that_cannot_be_handled_costs_other_queues_nothing():
    """Results reported with it counted as running for ever: their offsets stood still, or they waited."""
    talk = Conversation(rebalance_ms=600_000).pulling(2)
    running = []
    for number in (0, 1):
        talk.pulled(q(number), found(0))
        running += talk.deliveries()
    assert all(delivery.begin() for delivery in running)
    reported = []
    talk.core.kernel.failed = lambda what, error: reported.append(what)
    pulling = talk.core.own.pulling
    pulling.resume = failing_once(pulling.resume, at=lambda owned, _: owned.queue == q(0))
    talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in running))
    assert [talk.offset(q(number)) for number in (0, 1)] == [1, 1]
    assert reported == ["a result for T@a:0 could not be handled"]


def test_a_lock_that_cannot_be_doubted_does_not_keep_others_from_it(monkeypatch):
    """The broker grants them to others: their handlers ran beside those of another member."""
    talk = InOrder().owning(2)
    reported = []
    talk.core.kernel.failed = lambda what, error: reported.append(what)
    first = (q(0), ev.LockDoubted)
    fails = failing_once(
        Ownership.handle, at=lambda _, owned, event, *__: (owned.queue, type(event)) == first
    )
    monkeypatch.setattr(Ownership, "handle", fails)
    talk.lost()
    assert [talk.may_begin(q(number)) for number in (0, 1)] == [True, False]
    assert reported == ["LockDoubted of T@a:0 could not be handled"]
