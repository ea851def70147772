"""The ledger of handovers: one holder per queue, and when the next one is admitted."""

import pytest

from libramq.groups.handover_ledger import HandoverLedger, Holding
from libramq.message.queue import MessageQueue

ONE, TWO = MessageQueue("T", "b", 1), MessageQueue("T", "b", 2)


def held(ledger: HandoverLedger) -> HandoverLedger:
    ledger.hold(ONE, Holding("alice", 3))
    ledger.hold(TWO, Holding("alice", 4))
    return ledger


def test_a_queue_has_one_holder():
    ledger = held(HandoverLedger())
    with pytest.raises(AssertionError, match="one holder"):
        ledger.hold(ONE, Holding("bob", 5))
    ledger.drop(ONE)
    ledger.hold(ONE, Holding("bob", 5))
    assert (ledger.holder(ONE), list(ledger.of("alice")), list(ledger.of("bob"))) == ("bob", [TWO], [ONE])
    ledger.drop(TWO)
    assert (ledger.holder(TWO), ledger.of("alice")) == (None, {})


def test_under_epochs_the_next_member_is_admitted_at_once():
    ledger = held(HandoverLedger())
    ledger.free(ONE, 1_000)
    assert ledger.rest_ms(ONE, 1_000) == 0
    assert ledger.freed == {ONE: 1_000}


def test_under_server_side_assignment_a_queue_rests_before_the_next_member():
    """A held queue does not rest, and the rest is forgotten when it is over."""
    ledger = held(HandoverLedger(rest_ms=100))
    ledger.free(ONE, 1_000)
    assert [ledger.rest_ms(ONE, at_ms) for at_ms in (1_000, 1_060, 1_100, 2_000)] == [100, 40, 0, 0]
    assert ledger.rest_ms(TWO, 1_000) == 0
    ledger.hold(ONE, Holding("bob"))
    assert ledger.rest_ms(ONE, 1_000) == 0
    ledger.free(ONE, 1_050)
    ledger.forget_rested(1_149)
    assert ledger.freed == {ONE: 1_050}
    ledger.forget_rested(1_150)
    assert ledger.freed == {}
