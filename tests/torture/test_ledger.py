"""The ledger records what a broker acknowledged, and detects each way of losing it."""

import pytest
from bench.torturing.ledger import BODY_BYTES_MAX, Identity, Ledger, body_of, identity_of

A, B, C, D = (Identity(1, serial) for serial in range(1, 5))


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger with three acknowledged messages of queue 0, and a commit of two of them."""
    ledger = Ledger()
    for offset, identity in enumerate((A, B, C)):
        assert ledger.acknowledged(0, offset, identity) == []
    ledger.requested("G", 0, 2)
    ledger.committed("G", 0, 2)
    return ledger


def test_a_body_says_which_message_it_is_and_every_byte_of_it_counts() -> None:
    for serial in range(200):
        body = body_of(Identity(3, serial))
        assert len(body) <= BODY_BYTES_MAX
        assert identity_of(body) == Identity(3, serial)
        assert identity_of(body + b"x") is None
        assert identity_of(body[:-1] + bytes([body[-1] ^ 1])) is None
    assert identity_of(b"") is None
    assert identity_of(b"-1-2-") is None


def test_what_was_acknowledged_is_there(ledger: Ledger) -> None:
    assert ledger.check_messages(0, [A, B, C], 0) == []
    assert ledger.check_commit("G", 0, 2) == []
    assert (ledger.message_count, ledger.commit_count) == (3, 1)


def test_a_message_without_an_acknowledgement_may_be_there_and_then_stays(ledger: Ledger) -> None:
    assert ledger.check_messages(0, [A, B, C, D], 0) == []
    (lost,) = ledger.check_messages(0, [A, B, C], 0)
    assert lost == "queue 0: acknowledged message 3 is lost; the queue has 0 to 3"


def test_a_lost_message_is_noticed(ledger: Ledger) -> None:
    (lost,) = ledger.check_messages(0, [A, B], 0)
    assert "message 2 is lost" in lost
    assert ledger.check_messages(0, [], 3) == []


def test_a_message_in_the_place_of_another_is_noticed(ledger: Ledger) -> None:
    changed, *_ = ledger.check_messages(0, [A, D, C], 0)
    assert changed == "queue 0: message 1 was number 2 of producer 1 and is number 4 of producer 1"


def test_a_body_that_nobody_sent_is_noticed(ledger: Ledger) -> None:
    (broken,) = ledger.check_messages(0, [A, B, None], 0)
    assert "a body that nobody sent" in broken


def test_a_message_that_is_stored_twice_is_noticed(ledger: Ledger) -> None:
    (twice,) = ledger.check_messages(1, [B], 0)
    assert twice == "queue 1: message 0 is number 2 of producer 1, as is message 1 of queue 0"


def test_what_a_consumer_saw_counts_as_acknowledged(ledger: Ledger) -> None:
    assert ledger.seen(0, 3, D) == []
    (lost,) = ledger.check_messages(0, [A, B, C], 0)
    assert "message 3 is lost" in lost


def test_a_slave_needs_what_was_acknowledged_alone(ledger: Ledger) -> None:
    ledger.seen(0, 3, D)
    assert ledger.check_messages(0, [A, B, C], 0, is_copy=True) == []
    (lost,) = ledger.check_messages(0, [A, B], 0, is_copy=True)
    assert "message 2 is lost" in lost


def test_many_violations_are_counted_and_few_described() -> None:
    ledger = Ledger()
    for offset in range(100):
        ledger.acknowledged(0, offset, Identity(1, offset))
    *shown, rest = ledger.check_messages(0, [], 0)
    assert (len(shown), rest) == (3, "and 97 more")


@pytest.mark.parametrize(("found", "text"), [(1, "went back to 1"), (None, "went back to None")])
def test_a_commit_that_went_back_is_noticed(ledger: Ledger, found: int | None, text: str) -> None:
    (back,) = ledger.check_commit("G", 0, found)
    assert text in back


def test_a_commit_may_be_ahead_of_its_acknowledgement_and_not_of_its_request(ledger: Ledger) -> None:
    ledger.requested("G", 0, 3)
    assert ledger.check_commit("G", 0, 3) == []
    (back,) = ledger.check_commit("G", 0, 2)  # It has been read, so it counts.
    assert "acknowledged commit 3 went back to 2" in back
    (ahead,) = ledger.check_commit("G", 0, 4)
    assert "commit 4 was never requested" in ahead


def test_a_group_that_committed_nothing_may_have_nothing(ledger: Ledger) -> None:
    assert ledger.check_commit("other", 0, None) == []
    assert ledger.check_commit("other", 0, 0) == []


def test_a_promoted_slave_needs_what_was_acknowledged_and_what_both_had(ledger: Ledger) -> None:
    ledger.seen(0, 3, D)
    ledger.note_replicated()
    (lost,) = ledger.check_messages(0, [A, B, C], 0, is_copy=True)
    assert "message 3 is lost" in lost
    ledger.seen(0, 4, Identity(1, 5))
    ledger.note_promotion()
    assert ledger.check_messages(0, [A, B, C, D], 0) == []
    assert ledger.seen(1, 0, Identity(1, 5)) == []  # Messages that only the master had may appear anywhere.
    (lost,) = ledger.check_messages(0, [A, B, C], 0)
    assert "message 3 is lost" in lost


def test_a_promoted_slave_may_have_older_commits_and_none_that_nobody_requested(ledger: Ledger) -> None:
    ledger.note_promotion()
    (ahead,) = ledger.check_commit("G", 0, 3)
    assert "commit 3 was never requested" in ahead
    assert ledger.check_commit("G", 0, 1) == []
    (back,) = ledger.check_commit("G", 0, 0)  # Messages read at the promoted broker count.
    assert "went back to 0" in back
