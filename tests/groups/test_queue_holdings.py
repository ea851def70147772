"""The holdings of queues: one holder per queue, and when the next one is admitted."""

import pytest

from libramq.groups.queue_holdings import Holding, QueueHoldings
from libramq.message.queue import MessageQueue

ONE, TWO = MessageQueue("T", "b", 1), MessageQueue("T", "b", 2)


def held(holdings: QueueHoldings) -> QueueHoldings:
    holdings.hold(ONE, Holding("alice", 3))
    holdings.hold(TWO, Holding("alice", 4))
    return holdings


def test_a_queue_has_one_holder():
    holdings = held(QueueHoldings())
    with pytest.raises(AssertionError, match="one holder"):
        holdings.hold(ONE, Holding("bob", 5))
    holdings.drop(ONE)
    holdings.hold(ONE, Holding("bob", 5))
    assert (holdings.holder(ONE), list(holdings.of("alice")), list(holdings.of("bob"))) == (
        "bob",
        [TWO],
        [ONE],
    )
    holdings.drop(TWO)
    assert (holdings.holder(TWO), holdings.of("alice")) == (None, {})


def test_under_epochs_the_next_member_is_admitted_at_once():
    holdings = held(QueueHoldings())
    holdings.free(ONE, 1_000)
    assert holdings.rest_ms(ONE, 1_000) == 0
    assert holdings.freed == {ONE: 1_000}


def test_under_server_side_assignment_a_queue_rests_before_the_next_member():
    """A held queue does not rest, and the rest is forgotten when it is over."""
    holdings = held(QueueHoldings(rest_ms=100))
    holdings.free(ONE, 1_000)
    assert [holdings.rest_ms(ONE, at_ms) for at_ms in (1_000, 1_060, 1_100, 2_000)] == [100, 40, 0, 0]
    assert holdings.rest_ms(TWO, 1_000) == 0
    holdings.hold(ONE, Holding("bob"))
    assert holdings.rest_ms(ONE, 1_000) == 0
    holdings.free(ONE, 1_050)
    holdings.forget_rested(1_149)
    assert holdings.freed == {ONE: 1_050}
    holdings.forget_rested(1_150)
    assert holdings.freed == {}
