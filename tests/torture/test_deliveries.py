"""The deliveries record what was promised for later messages, and detect each way of breaking a promise."""

import pytest
from bench.torturing.ledger import Deliveries, Identity

A, B = Identity(1, 1), Identity(1, 2)


@pytest.fixture
def once() -> Deliveries:
    return Deliveries("T")


def test_a_committed_message_is_delivered_once(once: Deliveries) -> None:
    once.withhold(A)
    once.allow(A)
    once.promise(A)
    assert once.is_missing_any
    assert once.missing() == ["T: number 1 of producer 1 was acknowledged and is lost"]
    assert once.delivered(A, 5) == []
    assert not once.is_missing_any
    assert once.missing() == []
    assert once.delivered(A, 6) == ["T: number 1 of producer 1 was delivered twice"]


def test_a_commit_without_an_answer_may_be_delivered_or_not(once: Deliveries) -> None:
    once.withhold(A)
    once.allow(A)
    assert not once.is_missing_any
    assert once.delivered(A, 5) == []
    once.promise(A)  # Repeated, and acknowledged then.
    assert not once.is_missing_any


def test_what_was_rolled_back_or_never_sent_is_not_delivered(once: Deliveries) -> None:
    once.withhold(A)
    for identity in (A, B):
        (wrong,) = once.delivered(identity, 5)
        assert wrong.endswith("was delivered, and was never to be")
    assert once.delivered(None, 5) == ["T: a message has a body that nobody sent"]


def test_a_timer_message_is_neither_early_nor_twice_there(once: Deliveries) -> None:
    once.allow(A, 1_000)
    once.promise(A)
    assert once.delivered(A, 990) == ["T: number 1 of producer 1 was delivered 10 ms early"]
    assert once.is_missing_any
    assert once.delivered(A, 1_000) == []
    assert once.delivered(A, 1_400) == ["T: number 1 of producer 1 was delivered twice"]
    assert (once.promised_count, once.twice_count) == (1, 1)


def test_a_promoted_slave_has_every_promised_message_and_none_that_was_rolled_back(once: Deliveries) -> None:
    """All that it has is read from the beginning."""
    for identity in (A, B):
        once.withhold(identity)
    once.allow(A)
    once.promise(A)
    assert once.delivered(A, 5) == []
    once.note_promotion(())
    assert once.is_missing_any
    assert once.delivered(A, 5) == []
    assert once.delivered(A, 6) == ["T: number 1 of producer 1 was delivered twice"]
    (wrong,) = once.delivered(B, 7)
    assert wrong.endswith("was delivered, and was never to be")


def test_a_commit_that_no_promotion_found_acknowledged_may_be_delivered_twice(once: Deliveries) -> None:
    """The slave may have the message, and not the end of its transaction behind it."""
    once.allow(A)
    once.note_promotion([A])
    once.promise(A)
    assert [once.delivered(A, 5), once.delivered(A, 6)] == [[], []]
    assert once.twice_count == 1
